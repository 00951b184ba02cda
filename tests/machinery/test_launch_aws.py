"""The real SDK and boto3 against moto, in process: preflight's questions, sending, following, stopping, fetching."""

import datetime
import functools
import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import boto3
import botocore.client
import botocore.loaders
import botocore.session
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError, ProfileNotFound
from botocore.validate import ParamValidator
from moto import mock_aws
from moto.sagemaker.models import sagemaker_backends
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

from launch import SRC, account, follow, jobs, preflight, request, requirements, tune
from launch import aws as launch_aws
from launch.__main__ import main
from launch.job import Job, Network, Spot, Tune
from runtime import hub
from runtime.report import UserError

ACCOUNT, REGION = "123456789012", "us-east-1"
LAMBDA = {"Arn": "arn:aws:iam::123456789012:role/lambda", "AssumeRolePolicyDocument": {"Statement": []}}
TRUST = {"Effect": "Allow", "Principal": {"Service": ["sagemaker.amazonaws.com"]}, "Action": "sts:AssumeRole"}


# AWS's models and endpoints are parsed once, and pip resolves the same requirements once.
botocore.loaders.create_loader = botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
requirements.resolve = functools.cache(requirements.resolve)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[boto3.Session]:
    """An empty account with one role that SageMaker may take on, and a quota of four p4d."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(jobs, "MEMORY", tmp_path_factory.mktemp("memory") / "jobs.jsonl")
    record(monkeypatch, SimulatePrincipalPolicy=simulated())  # which moto does not know
    quotas = [{"QuotaName": f"ml.p4d.24xlarge for {kind}training job usage", "Value": 4.0} for kind in ("", "spot ")]
    quotas.append({"QuotaName": "Longest run time for a training job", "Value": 432_000.0})
    # moto knows quotas of VPC only, and not the call for those that were granted
    monkeypatch.setattr(ServiceQuotasBackend, "list_aws_default_service_quotas", lambda *_, **__: quotas)
    listing = ServiceQuotasResponse.list_aws_default_service_quotas
    monkeypatch.setattr(ServiceQuotasResponse, "list_service_quotas", listing, raising=False)
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


def findings(job: Job) -> list[str]:
    return [str(finding) for finding in account.check(job, request.dry_run(job))]


def simulated(*denied: str) -> Any:
    """An answer of IAM's simulation that allows everything but these actions."""

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        (action,) = arguments["ActionNames"]
        return {"EvaluationResults": [{"EvalActionName": action, "EvalDecision": decision(action)}]}

    def decision(action: str) -> str:
        return "implicitDeny" if action in denied else "allowed"

    return answer


def test_a_good_job_passes(aws, good):
    assert findings(good) == []
    assert findings(replace(good, role="training")) == []


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("", "role: empty, and these credentials are a user's"),
        ("nobody", "role: nobody does not exist in account 123456789012"),
        ("arn:aws:iam::999999999999:role/training", "role: it is in account 999999999999"),
        (f"arn:aws:iam::{ACCOUNT}:role/service-role/training", f"training is arn:aws:iam::{ACCOUNT}:role/training"),
        ("lambda", "role: lambda does not trust SageMaker"),
        ("sso", "role: empty, and these credentials are single sign-on's, not an execution role's"),
    ],
)
def test_role(aws, good, role, said, monkeypatch):
    policy = {"Version": "2012-10-17", "Statement": TRUST | {"Principal": {"Service": "lambda.amazonaws.com"}}}
    aws.client("iam").create_role(RoleName="lambda", AssumeRolePolicyDocument=json.dumps(policy))
    caller = "assumed-role/AWSReservedSSO_Admin_0123/me" if role == "sso" else "user/me"
    record(monkeypatch, GetCallerIdentity=identity(caller))
    found = findings(replace(good, role=role.removeprefix("sso")))
    assert len(found) == 1 and said in found[0], found


def identity(caller: str) -> dict[str, str]:
    return {"UserId": "x", "Account": ACCOUNT, "Arn": f"arn:aws:sts::{ACCOUNT}:{caller}"}


def test_the_caller_may_send_the_job_and_the_role_may_read_and_write(aws, good, monkeypatch):
    """By IAM's own simulation; only the caller's own lack refuses, since a bucket's policy may let the role in."""
    asked: list[dict[str, Any]] = []
    answer = simulated("iam:PassRole", "s3:GetObject")
    record(monkeypatch, SimulatePrincipalPolicy=lambda arguments: asked.append(arguments) or answer(arguments))
    aws.client("s3").put_object(Bucket="language-id", Key="data/x", Body=b"x")
    found = findings(replace(good, channels={"training": "s3://language-id/data"}, tags={"a": "b"}))
    role = f"arn:aws:iam::{ACCOUNT}:role/training"
    assert [line.split(" on ")[0] for line in found] == [
        "error   caller.iam:PassRole: moto may not iam:PassRole",
        "warning role.s3:GetObject: training may not s3:GetObject",
    ]
    assert role in found[0] and "arn:aws:s3:::language-id/data/*" in found[1]
    by = {(a["PolicySourceArn"].split(":")[5], a["ActionNames"][0]) for a in asked}
    assert by >= {("user/moto", "sagemaker:CreateTrainingJob"), ("user/moto", "sagemaker:AddTags")}
    assert by >= {("role/training", "s3:PutObject"), ("role/training", "logs:PutLogEvents")}
    (passing,) = (a for a in asked if a["ActionNames"] == ["iam:PassRole"])
    assert passing["ContextEntries"][0]["ContextKeyValues"] == ["sagemaker.amazonaws.com"]


HUB = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hub-AbCdEf"


@pytest.mark.parametrize(
    ("secret", "action", "resource"),
    [
        ("hub", "secretsmanager:GetSecretValue", HUB.replace("AbCdEf", "*")),
        (HUB, "secretsmanager:GetSecretValue", HUB),
        ("ssm:/team/hub", "ssm:GetParameter", "arn:aws:ssm:us-east-1:123456789012:parameter/team/hub"),
    ],
)
def test_the_role_may_read_the_secret_that_the_request_names(aws, good, monkeypatch, secret, action, resource):
    record(monkeypatch, SimulatePrincipalPolicy=simulated(action))
    job = replace(good, hub_token_secret=secret)
    assert request.dry_run(job)["Environment"] == {"HUB_TOKEN_SECRET": secret}
    assert not preflight.refused(preflight.offline_checks(job)[0])
    (found,) = findings(job)
    assert found.startswith(f"warning role.{action}: training may not {action} on {resource}")


@pytest.mark.parametrize("kind", ["plain", "arn", "ssm:"])
def test_the_hubs_token_is_read_by_one_process_of_each_host(aws, kind, capsys):
    made = aws.client("secretsmanager").create_secret(Name="hub", SecretString="hf_abc\n")
    aws.client("ssm").put_parameter(Name="hub", Value="hf_abc", Type="SecureString")
    name = {"plain": "hub", "arn": made["ARN"], "ssm:": "ssm:hub"}[kind]
    env, other = ({"HUB_TOKEN_SECRET": name, "AWS_REGION": REGION} for _ in range(2))
    hub.sign_in(0, env)
    hub.sign_in(1, other)
    assert env.pop("HF_TOKEN", "") == "hf_abc" and "HF_HUB_OFFLINE" not in env
    assert "HF_TOKEN" not in other and other["HF_HUB_OFFLINE"] == "1"
    assert "hf_" not in "".join(capsys.readouterr())
    hub.sign_in(0, given := {"HUB_TOKEN_SECRET": "none", "HF_TOKEN": "hf_own"})
    assert list(given.values()) == ["none", "hf_own"]


def test_a_hub_token_that_cannot_be_read_is_a_sentence(aws):
    aws.client("secretsmanager").create_secret(Name="keyed", SecretString='{"HF_TOKEN": "hf_abc"}')
    for name, said in {"keyed": "holds no token alone", "none": "cannot be read", "ssm:none": "cannot be read"}.items():
        with pytest.raises(UserError, match=said) as raised:
            hub.sign_in(0, {"HUB_TOKEN_SECRET": name, "AWS_REGION": REGION})
        assert "hf_abc" not in str(raised.value) and raised.value.__cause__ is None


def network(aws: boto3.Session, *, cidr: str = "10.0.0.0/16", routed: bool = True) -> tuple[str, str]:
    """A new VPC with one subnet and one security group without inbound rules: their IDs."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr.replace("/16", "/24"), AvailabilityZone="us-east-1a")["Subnet"]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)
    if routed:
        way_out(aws, subnet["SubnetId"])
    return subnet["SubnetId"], group["GroupId"]


def way_out(aws: boto3.Session, subnet: str) -> None:
    """A NAT gateway, to which the subnet's route table leads."""
    ec2 = aws.client("ec2")
    vpc = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    (table,) = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    route = {"RouteTableId": table["RouteTableId"], "DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": gateway}
    ec2.create_route(**route)


def test_a_way_out_of_the_subnets_for_pip(aws, good):
    subnet, group = network(aws, routed=False)
    open_to_itself(aws, group)
    job = replace(good, network=Network([subnet], [group]))
    (found,) = findings(job)
    assert found.startswith(f"warning network.subnets: {subnet} has no route to a NAT gateway") and "for S3" in found
    ec2 = aws.client("ec2")
    vpc = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    (table,) = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    route = {"RouteTableId": table["RouteTableId"], "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": gateway}
    ec2.create_route(**route)
    assert len(findings(job)) == 1  # SageMaker's hosts have no public address
    ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")
    way_out(aws, subnet)
    assert findings(job) == []


def open_to_itself(aws: boto3.Session, group: str) -> None:
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    aws.client("ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=rule)
    aws.client("ec2").authorize_security_group_egress(GroupId=group, IpPermissions=rule)


def test_security_groups_let_their_members_reach_each_other_both_ways(aws, good):
    subnet, group = network(aws)
    job = replace(good, network=Network([subnet], [group]))
    found = findings(job)
    assert [bool(re.search("has no inbound rule", found[0])), bool(re.search("has no outbound rule", found[1]))] == [
        True
    ] * 2
    assert all(group in line and line.startswith("error   network.security_groups") for line in found)
    assert findings(replace(job, instance_count=1)) == []  # nobody to reach
    assert len(findings(replace(job, instance_type="ml.g5.xlarge"))) == 2  # no EFA: the open outbound rule will do
    open_to_itself(aws, group)
    assert findings(job) == []


def test_one_of_several_groups_or_without_efa_the_subnets_addresses_will_do(aws, good):
    subnet, bare = network(aws)
    ec2 = aws.client("ec2")
    vpc = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="h", Description="h", VpcId=vpc)["GroupId"]
    open_to_itself(aws, group)
    assert findings(replace(good, network=Network([subnet], [bare, group]))) == []
    for block, works in (("10.9.0.0/16", False), ("10.0.0.0/8", True)):
        rule = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": block}]}]
        ec2.authorize_security_group_ingress(GroupId=bare, IpPermissions=rule)
        found = findings(replace(good, network=Network([subnet], [bare]), instance_type="ml.g5.xlarge"))
        assert any("inbound" in line for line in found) != works
        assert any("inbound" in line for line in findings(replace(good, network=Network([subnet], [bare]))))


def test_a_trust_policy_with_a_wildcard_will_do(aws, good):
    policy = json.dumps({"Version": "2012-10-17", "Statement": TRUST | {"Action": "sts:*"}})
    aws.client("iam").create_role(RoleName="wild", AssumeRolePolicyDocument=policy)
    assert findings(replace(good, role="wild")) == []


def test_subnets_in_one_vpc_and_for_efa_in_one_zone(aws, good):
    (first, group), (other, _) = network(aws), network(aws, cidr="10.1.0.0/16")
    open_to_itself(aws, group)
    assert "2 VPCs" in findings(replace(good, network=Network([first, other], [group])))[0]
    vpc = aws.client("ec2").describe_subnets(SubnetIds=[first])["Subnets"][0]["VpcId"]
    more = {"VpcId": vpc, "CidrBlock": "10.0.9.0/24", "AvailabilityZone": "us-east-1b"}
    second = aws.client("ec2").create_subnet(**more)["Subnet"]["SubnetId"]
    job = replace(good, network=Network([first, second], [group]))
    assert ["2 zones (us-east-1a, us-east-1b)" in line for line in findings(job)] == [True]
    assert not any("zones" in line for line in findings(replace(job, instance_type="ml.g5.xlarge")))
    absent = findings(replace(good, network=Network(["subnet-00000000"], [group])))
    assert len(absent) == 1 and "network.subnets" in absent[0] and "correct the ID" in absent[0]


def test_rules_that_may_let_hosts_through_are_warned_of_where_efa_does_not_rule(aws, good):
    subnet, group = network(aws)
    ports = {"IpProtocol": "tcp", "FromPort": 1024, "ToPort": 65535, "UserIdGroupPairs": [{"GroupId": group}]}
    aws.client("ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=[ports])
    job = replace(good, network=Network([subnet], [group]))
    assert findings(replace(job, instance_type="ml.g5.xlarge"))[0].startswith("warning ")
    assert [line[:8] for line in findings(job)] == ["error   "] * 2


def test_buckets_and_channels(aws, good, monkeypatch):
    s3 = aws.client("s3")
    far = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3", "eu-west-1").create_bucket(Bucket="far-away", CreateBucketConfiguration=far)
    s3.put_object(Bucket="language-id", Key="data/train.csv", Body=b"x")
    s3.put_object(Bucket="language-id", Key="marker/", Body=b"")
    channels = {
        "training": "s3://language-id/data/",
        "empty": "s3://language-id/marker/",
        "none": "s3://absent-bucket/x",
    }
    found = findings(replace(good, channels=channels, checkpoint_s3="s3://far-away/x"))
    assert len(found) == 3, found
    assert "channels.empty: there is no data at s3://language-id/marker/" in found[0]
    assert "channels.none: bucket absent-bucket does not exist" in found[1]
    assert "checkpoint_s3: bucket far-away is in eu-west-1, the job in us-east-1" in found[2]
    record(monkeypatch, HeadBucket=refusal("403", "HeadBucket"))
    assert [line[:15] for line in findings(good)] == ["warning bucket:"]  # the job's role may see it


def test_quota(aws, good):
    found = findings(replace(good, instance_count=5))
    assert len(found) == 1 and 'instance_count: 5 is above the quota "ml.p4d.24xlarge for training' in found[0]
    assert "for spot training job usage" in findings(replace(good, instance_count=5, spot=Spot(True)))[0]
    assert findings(replace(good, instance_type="ml.p5.48xlarge"))[0].startswith("skipped quota: AWS lists no")
    assert "max_run_s: 432001 is above the quota" in findings(replace(good, max_run_s=432_001))[0]


def test_the_account_is_asked_in_few_calls(aws, good, monkeypatch):
    made, calls = request.dry_run(good), list[str]()
    call = botocore.client.BaseClient._make_api_call
    counting = lambda client, name, arguments: calls.append(name) or call(client, name, arguments)  # noqa: E731
    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", counting)
    assert account.check(good, made) == [] and len(calls) <= 12, calls


def test_the_preflight_command(aws, good, monkeypatch, tmp_path, capsys):
    """Findings on the screen and as JSON, an exit status, and a rehearsal only of what is not refused."""
    played: list[list[str]] = []
    monkeypatch.setattr("launch.requirements.resolve", lambda *_: [])
    monkeypatch.setattr("subprocess.run", lambda command, **_: played.append(command) or CompletedProcess(command, 7))
    subnet, group = network(aws)
    for job, status in ((replace(good, network=Network([subnet], [group])), 1), (good, 7)):
        monkeypatch.setattr("launch.job.load", lambda _, job=job: job)
        assert main(["preflight", "--rehearse", "--json", str(tmp_path / "x.json")]) == status
        written, said = json.loads((tmp_path / "x.json").read_text(encoding="utf-8")), capsys.readouterr().out
        assert written["ok"] == (status == 7) == bool(played)
        levels = [finding["level"] for finding in written["findings"]]
        assert levels == ["error", "error", "warning"][-3 if status == 1 else -1 :]
        assert (f"error   network.security_groups: {group} has no inbound rule" in said) == (status == 1)
    assert main(["preflight", "--channel", "training=here"]) == 1 and "add --rehearse" in capsys.readouterr().err
    assert main(["preflight", "--rehearse", "--channel", "training=here"]) == 7
    assert played[1][-2:] == ["--channel", "training=here"]
    assert played[0][1:9] == ["-m", "rehearsal", "--hosts", "2", "--processes", "2", "--distribution", "smddp"]


def test_price_is_what_the_service_returns_for_training(aws, good, monkeypatch):
    def product(kind: str, dollars: str) -> str:
        terms = {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": dollars}}}}}}
        return json.dumps({"product": {"attributes": {"platoinstancetype": kind}}, "terms": terms})

    asked = record(monkeypatch, GetProducts={"PriceList": [product("Hosting", "9"), product("Training", "2.5")]})
    made_of = "2 instances × 24 h (max_run_s) × 2.5 USD"
    assert account.cost(good) == f"cost    5.00 USD an hour, at most 120.00 USD: {made_of}"
    wanted = {"productFamily": "ML Instance", "regionCode": REGION, "instanceName": "ml.p4d.24xlarge"}
    assert {f["Field"]: f["Value"] for f in asked["GetProducts"]["Filters"]} == wanted


def record(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> dict[str, Any]:
    """What is asked of AWS, by operation; the given operations are answered with these instead of moto's answers."""
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


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (refusal("ExpiredToken"), "credentials have expired"),
        (refusal("InvalidClientTokenId"), "does not know these credentials"),
        (NoCredentialsError(), "there are no AWS credentials here"),
        (ProfileNotFound(profile="x"), "config profile (x) could not be found; set AWS_PROFILE"),
    ],
)
def test_every_command_says_in_a_sentence_why_aws_does_not_answer(aws, good, monkeypatch, capsys, failure, said):
    record(monkeypatch, GetCallerIdentity=failure, DescribeTrainingJob=failure)
    monkeypatch.setattr("launch.job.load", lambda _: good)
    for command in (["submit"], *([name, "x", "--region", REGION] for name in ("attach", "stop", "fetch", "why"))):
        assert main(command) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ") and said in error and "; " in error


@pytest.mark.parametrize(
    ("config", "variables", "cure"),
    [
        ("", {}, "run aws configure"),
        ("[profile work]\nsso_session = x\n", {"AWS_PROFILE": "work"}, "run aws sso login --profile work"),
        ("", {"SAGEMAKER_APP_TYPE": "JupyterLab"}, "restart the Studio space"),
    ],
)
def test_the_way_to_credentials_is_this_users_own(tmp_path, monkeypatch, config, variables, cure):
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cure in launch_aws.explain(NoCredentialsError()) and cure in launch_aws.explain(refusal("ExpiredToken"))


def test_what_may_not_be_asked_is_skipped_and_says_what_is_missing(aws, good, monkeypatch):
    record(monkeypatch, GetRole=refusal("AccessDenied", "GetRole"))
    assert [line.split(";")[0] for line in findings(good)] == [
        "skipped permissions: these credentials may not call GetRole"
    ]
    denied = refusal("AccessDenied", "SimulatePrincipalPolicy")
    record(monkeypatch, SimulatePrincipalPolicy=denied, GetRole=[{"Role": LAMBDA}])
    assert [line.split(";")[0] for line in findings(replace(good, role="lambda"))] == [  # what was found before stays
        "error   role: lambda does not trust SageMaker",
        "skipped permissions: these credentials may not call SimulatePrincipalPolicy",
    ]


def test_without_credentials_preflight_says_what_it_did_not_check(good, monkeypatch, tmp_path):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert [line[:30] for line in findings(good)] == ["skipped AWS: no credentials he"]


def test_the_notebook_writes_out_the_same_estimator():
    """Its arguments, by name, are those that `request.estimator` passes."""
    notebook = json.loads((SRC.parent / "launch" / "launch.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    written = next(cell for cell in cells if "PyTorch(" in cell)
    own = (SRC.parent / "launch" / "request.py").read_text(encoding="utf-8")
    names = re.findall(r"^        (\w+)=", own.split("pytorch.PyTorch(")[1].split("\n    )")[0], re.M)
    assert re.findall(r"^        (\w+)=", written.split("PyTorch(")[1], re.M) == names


# ---- after a job was sent


@pytest.fixture
def sent(aws: boto3.Session, good: Job) -> Any:
    """A job in moto, which calls it completed at once, and its log group."""
    made, name = aws.client("sagemaker"), "language-id-20260101-000000"
    made.create_training_job(
        TrainingJobName=name,
        RoleArn=good.role,
        AlgorithmSpecification={"TrainingImage": "x", "TrainingInputMode": "File"},
        HyperParameters={"epochs": "6"},
        OutputDataConfig={"S3OutputPath": "s3://language-id/"},
        CheckpointConfig={"S3Uri": "s3://language-id/checkpoints"},
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
    )
    aws.client("logs").create_log_group(logGroupName=follow.LOG_GROUP)
    return sagemaker_backends[ACCOUNT][REGION].training_jobs[name]


def log(aws: boto3.Session, name: str, host: str, *lines: str, at: int = 0) -> None:
    logs, stream = aws.client("logs"), f"{name}/{host}-1700000000"
    known = logs.describe_log_streams(logGroupName=follow.LOG_GROUP, logStreamNamePrefix=stream)["logStreams"]
    if not known:
        logs.create_log_stream(logGroupName=follow.LOG_GROUP, logStreamName=stream)
    now = int(datetime.datetime.now().timestamp() * 1000) + at
    events = [{"timestamp": now + i, "message": line} for i, line in enumerate(lines)]
    logs.put_log_events(logGroupName=follow.LOG_GROUP, logStreamName=stream, logEvents=events)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def console() -> Any:
    from rich.console import Console

    return Console(file=io.StringIO(), highlight=False, markup=False, emoji=False, soft_wrap=True, width=200)


def test_following_a_job_to_its_end(aws, sent, monkeypatch):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name, screen = sent.training_job_name, console()
    log(aws, name, "algo-1", "Invoking TorchDistributed...")

    def later(seconds: float) -> None:
        monkeypatch.setattr("time.sleep", lambda _: log(aws, name, "algo-1", "the log's end comes late", at=3000))
        log(aws, name, "algo-1", "epoch 3... lr=0.1.", "step=1 epoch=1 train/loss=1.5", "test/accuracy 0.8123", at=1000)
        log(aws, name, "algo-2", "[1,mpirank:8,algo-2]<stdout>:step=2 epoch=1 val/loss=0.5 [/red]", at=2000)
        sent.training_job_status = sent.secondary_status = "Completed"
        sent.training_time_in_seconds, sent.billable_time_in_seconds = 3661, 1220
        sent.enable_managed_spot_training = True

    monkeypatch.setattr("time.sleep", later)
    outcome = follow.follow(name, REGION, console=screen)
    text = screen.file.getvalue()
    assert outcome.status == "Completed"
    assert outcome.rows == [
        {"step": 1, "epoch": 1, "train/loss": 1.5},
        {"test/accuracy": 0.8123},
        {"step": 2, "epoch": 1, "val/loss": 0.5},
    ]
    assert "0:00:00 Starting Preparing the instances for training" in text
    assert (
        text.count("algo-1 step=1 epoch=1 train/loss=1.5") == 1 and "algo-2 [1,mpirank:8" in text and "[/red]" in text
    )
    assert f"{name} completed. To fetch its model: python -m launch fetch {name}" in text
    assert "trained 1:01:01 and is billed 0:20:20 on 2 instances; spot saved 67%" in text
    assert "the log's end comes late" in text
    assert "epoch 1 of 6 · step 2 · train/loss 1.5" in follow.progress(outcome)


def test_an_empty_page_is_not_the_logs_end(aws, sent, monkeypatch):
    log(aws, sent.training_job_name, "algo-1", "one")
    event, pages = {"timestamp": 1, "message": "two"}, []
    for token, events in (("a", []), ("b", [event]), ("b", [])):
        pages.append({"events": events, "nextForwardToken": token})
    record(monkeypatch, GetLogEvents=pages)
    lines = follow.new_lines(sent.training_job_name, aws.client("logs"), {})
    assert [line.text for line in lines] == ["two"] and not pages


def test_curves_need_steps():
    outcome = follow.Outcome("x", lines=[follow.Line(0, "algo-1", "lr=0.1")])
    with pytest.raises(UserError, match="no metrics that could be drawn"):
        outcome.curves()


def test_a_failed_job_shows_why_and_the_rank_that_failed_first(aws, sent, capsys):
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: ExecuteUserScriptError: ExitCode 1"
    name = sent.training_job_name
    log(
        aws, name, "algo-1", "[rank0]: Traceback (most recent call last):", "[rank0]: connection closed by peer", at=500
    )
    log(aws, name, "algo-2", "fine", "[rank9]: Traceback (most recent call last):", "[rank9]: ValueError: nan", at=400)
    log(aws, name, "algo-2", "Root Cause (first observed failure):", "[0]:", "  rank      : 9 (local_rank: 1)", at=900)
    screen = console()
    assert follow.follow(name, REGION, console=screen).status == "Failed"
    text = screen.file.getvalue()
    assert f"{name} failed: AlgorithmError: ExecuteUserScriptError: ExitCode 1" in text
    assert text.rstrip().endswith(
        "The last lines of rank 9 on algo-2, which failed first:\n"
        "  [rank9]: Traceback (most recent call last):\n  [rank9]: ValueError: nan"
    )


@pytest.mark.parametrize(
    ("lines", "who", "last"),
    [
        ([], "", []),
        ([("algo-1", "killed")], "algo-1", ["killed"]),
        (
            [("algo-2", "error: no data"), ("algo-1", "Traceback (most recent call last):")],
            "algo-2",
            ["error: no data"],
        ),
        (
            [
                ("algo-1", "[1,mpirank:3,algo-1]<stderr>:RuntimeError: boom"),
                ("algo-1", "[1,mpirank:0,algo-1]<stderr>:RuntimeError: peer"),
            ],
            "rank 3 on algo-1",
            ["[1,mpirank:3,algo-1]<stderr>:RuntimeError: boom"],
        ),
    ],
)
def test_last_words(lines, who, last):
    assert follow.last_words([follow.Line(i, host, text) for i, (host, text) in enumerate(lines)]) == (who, last)


def test_a_stopped_job_says_by_whom_and_how_to_resume(aws, sent):
    sent.training_job_status = "Stopped"
    for secondary, told in {
        "Stopped": "someone asked for it",
        "MaxRuntimeExceeded": "max_run_s was over",
        "MaxWaitTimeExceeded": "no spot capacity in max_wait_s",
    }.items():
        sent.secondary_status, screen = secondary, console()
        assert follow.follow(sent.training_job_name, REGION, console=screen).status == "Stopped"
        assert f"was stopped: {told}. To resume from its checkpoints: checkpoint_s3 = " in screen.file.getvalue()


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(aws, sent, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    sent.training_job_status = sent.secondary_status = "InProgress"
    monkeypatch.setattr("time.sleep", interrupt)
    screen, name = console(), sent.training_job_name
    with pytest.raises(KeyboardInterrupt):
        follow.follow(name, REGION, console=screen)
    assert sent.training_job_status == "InProgress"
    for way in (
        f"launch attach {name}",
        f"launch stop {name}",
        f"us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/{name}",
    ):
        assert way in screen.file.getvalue()


def test_credentials_that_expire_meanwhile_do_not_end_the_job(aws, sent, monkeypatch, capsys):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name = sent.training_job_name
    first = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
    record(monkeypatch, DescribeTrainingJob=[first, refusal("ExpiredTokenException", "DescribeTrainingJob")])
    assert main(["attach", name, "--region", REGION]) == 1
    said = capsys.readouterr()
    assert f"The job still runs and is billed. To follow it again: python -m launch attach {name}" in said.out
    assert said.err.startswith("error: AWS credentials have expired; run aws configure")


def test_following_waits_out_a_lost_network_and_throttling_and_does_without_the_log(aws, sent, monkeypatch):
    """Down to the right verdict; each is said once."""
    name, screen, waits = sent.training_job_name, console(), list[float]()
    sent.training_job_status = sent.secondary_status = "InProgress"
    sagemaker = aws.client("sagemaker")
    running = sagemaker.describe_training_job(TrainingJobName=name)
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: out of memory"
    ended = sagemaker.describe_training_job(TrainingJobName=name)
    cut, throttled = ConnectTimeoutError(endpoint_url="x"), refusal("ThrottlingException", "DescribeTrainingJob")
    answers = [cut, cut, running, throttled, running, ended, ended]
    log(aws, name, "algo-1", "step=1 epoch=1 train/loss=1.5")
    page = {"events": [], "nextForwardToken": "t"}
    reading = [page, page, throttled, refusal("AccessDeniedException", "GetLogEvents")]
    record(monkeypatch, DescribeTrainingJob=answers + [ended] * 3, GetLogEvents=reading)
    monkeypatch.setattr("time.sleep", waits.append)
    assert follow.follow(name, REGION, console=screen).status == "Failed"
    text = screen.file.getvalue()
    assert text.count("AWS cannot be reached (ConnectTimeoutError)") == 1
    assert text.count("AWS refused DescribeTrainingJob: no; asking again") == 1
    assert text.count("these credentials may not call GetLogEvents") == 1 and "following the status alone" in text
    assert "failed: AlgorithmError: out of memory" in text
    assert waits[:2] == [5, 10] and max(waits) <= 60


def test_lines_that_were_read_before_the_log_was_throttled_are_not_lost(aws, sent, monkeypatch):
    name, tokens = sent.training_job_name, dict[str, str]()
    log(aws, name, "algo-1", "one")
    log(aws, name, "algo-2", "two")
    first = {"events": [{"timestamp": 1, "message": "one"}], "nextForwardToken": "t"}
    throttled = refusal("ThrottlingException", "GetLogEvents")
    with monkeypatch.context() as patch:
        record(patch, GetLogEvents=[first, first | {"events": []}, throttled])
        with pytest.raises(ClientError):
            follow.new_lines(name, aws.client("logs"), tokens)
    assert {line.text for line in follow.new_lines(name, aws.client("logs"), tokens)} == {"one", "two"}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments that name a job.toml which is no TOML, but whose line of the region can be read."""
    (tmp_path / "job.toml").write_text(f'name = "x\nregion = "{REGION}"\n[')
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return ["--job", str(tmp_path / "job.toml")]


def test_a_broken_job_toml_keeps_nobody_from_a_billed_job(aws, sent, broken, tmp_path, monkeypatch, capsys):
    name = sent.training_job_name
    put(aws, sent, archive(("config.json", tarfile.REGTYPE, b"{}")))
    sent.training_job_status = sent.secondary_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert main(["stop", name, *broken]) == 0
    assert asked["StopTrainingJob"] == {"TrainingJobName": name}
    sent.training_job_status, sent.secondary_status = "Failed", "Failed"
    sent.failure_reason = "AlgorithmError: exit code 1"
    log(aws, name, "algo-2", "[rank9]: Traceback (most recent call last):", "[rank9]: ValueError: nan")
    for command, said in {
        ("list",): f"{name} │ Failed",
        ("attach", name): "AlgorithmError: exit code 1",
        ("why", name): "The last lines of rank 9 on algo-2, which failed first:",
        ("fetch", name, "--to", str(tmp_path / "m")): "the model is in",
    }.items():
        assert main([*command, *broken]) == (1 if command[0] == "attach" else 0)
        assert said in capsys.readouterr().out
    assert main(["submit", *broken]) == 1  # which needs it whole
    assert "is not valid TOML" in capsys.readouterr().err


def test_a_job_that_was_launched_here_is_found_in_its_region(aws, sent, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    nowhere = tmp_path / "none.toml"
    with pytest.raises(UserError, match="name it with --region"):
        jobs.region("x", job=nowhere)
    jobs.remember("x", "eu-west-1")
    with jobs.MEMORY.open("a") as file:
        file.write("damaged\n[]\n")
    assert jobs.region("x", job=nowhere) == "eu-west-1"
    assert jobs.region("x", "us-west-2", nowhere) == "us-west-2"


def test_compare_puts_metrics_and_options_side_by_side(aws, sent, capsys):
    made = aws.client("sagemaker").describe_training_job(TrainingJobName=sent.training_job_name)
    keys = ("RoleArn", "AlgorithmSpecification", "OutputDataConfig", "ResourceConfig", "StoppingCondition")
    options = {"epochs": "9", "lr": "0.1", "sagemaker_job_name": "other"}
    again = {"TrainingJobName": "other", "HyperParameters": options, **{key: made[key] for key in keys}}
    aws.client("sagemaker").create_training_job(**again)
    backend = sagemaker_backends[ACCOUNT][REGION].training_jobs
    for name, value in ((sent.training_job_name, 0.8), ("other", 0.9123456)):
        backend[name].final_metric_data_list = [{"MetricName": "test/accuracy", "Value": value, "Timestamp": 0}]
    rows = jobs.compare([sent.training_job_name, "other"], REGION)
    assert rows == [
        {"": "test/accuracy", sent.training_job_name: "0.8", "other": "0.912346"},
        {"": "epochs", sent.training_job_name: "6", "other": "9"},
        {"": "lr", sent.training_job_name: "", "other": "0.1"},
    ]
    assert main(["compare", sent.training_job_name, "other", "--region", REGION]) == 0
    assert "0.912346" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "sends"), [("y", True), ("", False), ("no", False)])
def test_the_price_is_confirmed_on_a_terminal(aws, good, monkeypatch, capsys, answer, sends):
    asked = record(monkeypatch)
    questions: list[str] = []
    monkeypatch.setattr("launch.job.load", lambda _: replace(good, price_per_hour=2.0))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or answer)
    assert main(["submit", "--no-follow"]) == (0 if sends else 1)
    assert ("CreateTrainingJob" in asked) == sends and questions
    assert "4.00 USD an hour, at most 96.00 USD" in capsys.readouterr().out


def test_stop(aws, sent, monkeypatch):
    assert "has ended already: Completed" in jobs.stop(sent.training_job_name, REGION)
    sent.training_job_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert "is stopping" in jobs.stop(sent.training_job_name, REGION)
    assert asked["StopTrainingJob"] == {"TrainingJobName": sent.training_job_name}


def test_a_job_that_is_not_there(aws):
    for command in (jobs.stop, jobs.fetch, follow.follow, follow.why):
        with pytest.raises(UserError, match='no training job "nope" in us-east-1'):
            command("nope", REGION)


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar.gz of (name, type, content or link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            member.linkname = "" if kind == tarfile.REGTYPE else content.decode()
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def put(aws: boto3.Session, sent: Any, body: bytes, name: str = "model.tar.gz") -> None:
    aws.client("s3").put_object(Bucket="language-id", Key=f"{sent.training_job_name}/output/{name}", Body=body)


def test_fetch_brings_model_and_curves(aws, sent, tmp_path):
    put(aws, sent, archive(("./", tarfile.DIRTYPE, b""), ("./config.json", tarfile.REGTYPE, b"{}")))
    put(aws, sent, archive(("curves.csv", tarfile.REGTYPE, b"step\n")), "output.tar.gz")
    folder = jobs.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) == [
        "config.json",
        "output",
        "output/curves.csv",
    ]
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["x"]
    with pytest.raises(UserError, match="exists already"):
        jobs.fetch(sent.training_job_name, REGION, folder)


@pytest.mark.parametrize(
    "body",
    [
        archive(("../evil", tarfile.REGTYPE, b"x")),
        archive(("a/../../evil", tarfile.REGTYPE, b"x")),
        archive(("link", tarfile.SYMTYPE, b"/etc"), ("link/evil", tarfile.REGTYPE, b"x")),
        archive(("link", tarfile.LNKTYPE, b"../../evil")),
        archive(("dev", tarfile.CHRTYPE, b"")),
        archive(("fifo", tarfile.FIFOTYPE, b"")),
        archive(("config.json", tarfile.REGTYPE, b"x" * 10_000))[:60],
        b"no archive",
        b"",
    ],
    ids=["parent", "inner parent", "link", "hard link", "device", "fifo", "cut off", "text", "empty"],
)
def test_fetch_refuses_what_leads_out_or_is_damaged(aws, sent, tmp_path, body):
    put(aws, sent, body)
    with pytest.raises(UserError, match="archive"):
        jobs.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")
    assert not list((tmp_path / "models").iterdir()) and not list(tmp_path.glob("evil"))


def test_fetch_without_a_model(aws, sent, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="left no model at s3://language-id/"):
        jobs.fetch(sent.training_job_name, REGION, tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "describe", lambda *_: {"TrainingJobStatus": "Failed"})
        with pytest.raises(UserError, match="left no model; see its log"):
            jobs.fetch(sent.training_job_name, REGION, tmp_path / "x")
    sent.training_job_status = "InProgress"
    with pytest.raises(UserError, match="no model yet, it is InProgress"):
        jobs.fetch(sent.training_job_name, REGION, tmp_path / "x")


def test_an_upload_that_is_denied_is_said_in_a_sentence(aws, good, monkeypatch, capsys):
    record(monkeypatch, PutObject=[{}, refusal("AccessDenied", "PutObject")])  # the first is the dry run's
    monkeypatch.setattr("launch.job.load", lambda _: good)
    assert main(["submit", "--yes"]) == 1
    assert "AccessDenied" in capsys.readouterr().err.splitlines()[-1]


def test_tuning_is_sent_as_its_dry_run_shows(aws, good, monkeypatch, capsys):
    asked = record(monkeypatch)
    monkeypatch.setattr("sagemaker.telemetry.telemetry_logging._send_telemetry_request", lambda *_: pytest.fail("sent"))
    monkeypatch.setattr(tune, "job_name", lambda job: f"{job.name}-tune")
    job = replace(good, tune=Tune(ranges={"lr": {"min": 1e-4, "max": 1e-2}}), price_per_hour=1.0)
    monkeypatch.setattr("launch.job.load", lambda _: job)
    assert main(["tune", "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main(["tune"]) == 0
    said = capsys.readouterr().out
    assert asked["CreateHyperParameterTuningJob"] == shown and "at most 960.00 USD: 20 jobs ×" in said
    assert "its jobs: python -m launch list --region us-east-1; to stop it: aws sagemaker stop-hyper" in said


def test_the_account_is_asked_whether_it_may_tune_so_many_at_a_time(aws, good, monkeypatch):
    record(monkeypatch, SimulatePrincipalPolicy=simulated("sagemaker:CreateHyperParameterTuningJob"))
    job = replace(good, tune=Tune(parallel=3))
    found = [str(finding) for finding in account.check(job, request.dry_run(job), tuning=True)]
    assert [line.split(" is above")[0].split(" on ")[0] for line in found] == [
        "error   caller.sagemaker:CreateHyperParameterTuningJob: moto may not sagemaker:CreateHyperParameterTuningJob",
        "error   instance_count: 6",
    ]


def test_the_command_from_submit_to_fetch(aws, good, tmp_path, monkeypatch, capsys):
    """It sends exactly what the dry run shows, and `src/` as it is."""
    asked = record(monkeypatch)
    monkeypatch.setattr("sagemaker.telemetry.telemetry_logging._send_telemetry_request", lambda *_: pytest.fail("sent"))
    monkeypatch.setattr(request, "job_name", lambda job: f"{job.name}-20260101-000000")
    monkeypatch.setattr("launch.job.load", lambda _: good)
    assert main(["submit"]) == 0
    said, name = capsys.readouterr().out, "language-id-20260101-000000"
    assert asked["CreateTrainingJob"] == request.dry_run(good)
    assert "job     2 × ml.p4d.24xlarge, smddp, torch 2.5.1 on Python 3.11" in said
    assert f"sent    {name}\n" in said and f"{name} completed" in said
    assert jobs.remembered() == {name: REGION}

    s3 = aws.client("s3")
    body = s3.get_object(Bucket="language-id", Key=f"{name}/source/sourcedir.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        files = [member for member in tar if member.isfile() and "__pycache__" not in member.name]
        contents = {member.name: tar.extractfile(member).read() for member in files}  # type: ignore[union-attr]
    source = [path for path in SRC.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert contents == {path.relative_to(SRC).as_posix(): path.read_bytes() for path in source}

    model = archive(("weights", tarfile.REGTYPE, b"w"))
    s3.put_object(Bucket="language-id", Key=f"{name}/output/model.tar.gz", Body=model)
    assert main(["fetch", name, "--to", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m" / "weights").read_bytes() == b"w"
