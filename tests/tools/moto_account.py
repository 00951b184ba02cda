"""An account in moto that may send a job, what is asked of it, and a job that fits."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.client
import pytest
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator
from moto import mock_aws
from policies import evaluation

from small_job import PROJECT
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job import request, sent_jobs
from smlightning_sagemaker.job.job import Job, Network
from smlightning_sagemaker.preflight import account, launcher, requirements

ACCOUNT, REGION = "123456789012", "us-east-1"
TRUST = {
    "Effect": "Allow",
    "Principal": {"Service": ["sagemaker.amazonaws.com"]},
    "Action": "sts:AssumeRole",
}


@pytest.fixture
def aws(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[boto3.Session]:
    """An account with one role that SageMaker may take on, and an empty bucket."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    monkeypatch.setattr(sent_jobs, "FILE", str(tmp_path_factory.mktemp("history") / "jobs.jsonl"))
    # uv would ask its index; the template's tests let it.
    monkeypatch.setattr(requirements, "resolved", lambda *_, **__: iter(()))
    record(monkeypatch, SimulatePrincipalPolicy=simulated())  # which moto does not know
    with mock_aws():
        session = boto3.Session(region_name=REGION)
        policy = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
        session.client("iam").create_role(RoleName="training", AssumeRolePolicyDocument=policy)
        session.client("s3").create_bucket(Bucket="language-id")
        yield session


@pytest.fixture
def good() -> Job:
    return Job(
        name="language-id",
        region=REGION,
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        role=f"arn:aws:iam::{ACCOUNT}:role/training",
        bucket="language-id",
        hyperparameters={"epochs": 6, "lr": 2e-3},
    )


def findings(job: Job) -> list[Finding]:
    """Preflight's findings about the account, and about the key of its volumes."""
    body = request.dry_run(job, PROJECT)
    return [*launcher.volume_key(job, body, PROJECT), *account.check(job, body, PROJECT)]


def levels(job: Job) -> list[tuple[str, str]]:
    """Level and key of each finding about the account."""
    return [(finding.level, finding.key) for finding in findings(job)]


def simulated(*denied: str, decision: str = "implicitDeny", **details: Any) -> Any:
    """An answer of IAM's simulation that allows all but these actions."""

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        (action,) = arguments["ActionNames"]
        decided = decision if action in denied else "allowed"
        return evaluation(action, dict.fromkeys(arguments["ResourceArns"], decided), **details)

    return answer


def record(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> dict[str, Any]:
    """Records calls to AWS by operation; ``answers`` replace moto's answers."""
    asked: dict[str, Any] = {}
    call = botocore.client.BaseClient._make_api_call

    def recording(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        asked[operation] = arguments
        if operation not in answers:
            return call(client, operation, arguments)
        model = client.meta.service_model.operation_model(operation).input_shape
        assert not ParamValidator().validate(arguments, model).has_errors()
        answer = answers[operation]
        answer = answer(arguments) if callable(answer) else answer
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", recording)
    return asked


def refusal(code: str, operation: str = "GetCallerIdentity") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, operation)


@dataclass(frozen=True)
class Vpc:
    """A VPC in moto: one subnet that leads nowhere, one security group."""

    ec2: Any
    id: str
    subnet: str
    table: str
    group: str

    @property
    def network(self) -> Network:
        return Network(subnets=[self.subnet], security_groups=[self.group])

    def endpoints(self, *services: str) -> None:
        """Interface endpoints on the subnet, with the hosts' own security group."""
        for service in services:
            self.ec2.create_vpc_endpoint(
                VpcId=self.id,
                ServiceName=f"com.amazonaws.{REGION}.{service}",
                VpcEndpointType="Interface",
                SubnetIds=[self.subnet],
                SecurityGroupIds=[self.group],
            )

    def gateway(self, service: str) -> None:
        """An endpoint by a route, as AWS's guide on training in a VPC creates it for S3."""
        self.ec2.create_vpc_endpoint(
            VpcId=self.id,
            ServiceName=f"com.amazonaws.{REGION}.{service}",
            VpcEndpointType="Gateway",
            RouteTableIds=[self.table],
        )

    def route(self, block: str, **target: str) -> None:
        self.ec2.create_route(RouteTableId=self.table, DestinationCidrBlock=block, **target)


@pytest.fixture
def vpc(aws: boto3.Session) -> Vpc:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    zone = {"AvailabilityZone": f"{REGION}a"}
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", **zone)["Subnet"]
    subnet = made["SubnetId"]
    of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    (table,) = ec2.describe_route_tables(Filters=of_vpc)["RouteTables"]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]  # as EFA needs it
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    return Vpc(ec2, vpc, subnet, table["RouteTableId"], group)
