"""Preflight finds hosts that reach neither each other, nor S3, nor the index of packages."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import botocore.client
import pytest

from moto_account import ACCOUNT, REGION, Vpc, levels, record
from smlightning_sagemaker.job.job import Job, Network

pytest_plugins = "moto_account"
INDEX = {"PIP_INDEX_URL": "https://pip.example.internal/simple"}
REPOSITORY = f"arn:aws:codeartifact:{REGION}:{ACCOUNT}:repository/team/python"
CODEARTIFACT = ("codeartifact.api", "codeartifact.repositories")
GROUPS, SUBNETS = "network.security_groups", "network.subnets"


def to_the_internet(vpc: Vpc) -> None:
    gateway = vpc.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    vpc.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc.id)
    vpc.route("0.0.0.0/0", GatewayId=gateway)


def to_another_network(vpc: Vpc) -> None:
    transit = vpc.ec2.create_transit_gateway()["TransitGateway"]["TransitGatewayId"]
    vpc.route("10.9.0.0/16", TransitGatewayId=transit)


def to_nat(vpc: Vpc) -> None:
    address = vpc.ec2.allocate_address(Domain="vpc")["AllocationId"]
    made = vpc.ec2.create_nat_gateway(SubnetId=vpc.subnet, AllocationId=address)["NatGateway"]
    vpc.route("0.0.0.0/0", NatGatewayId=made["NatGatewayId"])


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        (lambda vpc: None, ["error"]),
        (to_the_internet, ["error"]),  # SageMaker's hosts have no public address
        (to_another_network, ["warning"]),  # it may have an endpoint
        (to_nat, []),
        (lambda vpc: vpc.endpoints("s3"), []),
        (lambda vpc: vpc.gateway("s3"), []),
    ],
)
def test_subnets_need_a_nat_gateway_or_an_endpoint_for_s3(good, vpc, lead, expected):
    lead(vpc)
    job = good.replace(network=vpc.network, environment=INDEX)
    assert levels(job) == [(level, SUBNETS) for level in expected]


def test_a_route_to_a_deleted_gateway_and_a_rejected_endpoint_lead_nowhere(good, vpc, monkeypatch):
    job = good.replace(network=vpc.network, environment=INDEX)
    to_nat(vpc)
    (table,) = vpc.ec2.describe_route_tables(RouteTableIds=[vpc.table])["RouteTables"]
    for route in table["Routes"]:
        if "NatGatewayId" in route:
            route["State"] = "blackhole"
    record(monkeypatch, DescribeRouteTables={"RouteTables": [table]})
    assert levels(job) == [("error", SUBNETS)]
    vpc.endpoints("s3")
    assert levels(job) == []
    endpoints = vpc.ec2.describe_vpc_endpoints()["VpcEndpoints"]
    record(
        monkeypatch, DescribeVpcEndpoints={"VpcEndpoints": [{**endpoints[0], "State": "rejected"}]}
    )
    assert levels(job) == [("error", SUBNETS)]


@pytest.mark.parametrize(
    ("text", "service"), [("words/db", "secretsmanager"), ("ssm:/words/db", "ssm")]
)
def test_a_closed_subnet_reaches_the_store_of_secrets(aws, good, vpc, text, service):
    aws.client("secretsmanager").create_secret(Name="words/db", SecretString="x")
    aws.client("ssm").put_parameter(Name="/words/db", Value="x", Type="String")
    vpc.gateway("s3")
    job = good.replace(network=vpc.network, environment=INDEX, secrets={"DB": text})
    assert levels(job) == [("error", SUBNETS)]
    vpc.endpoints(service)
    assert levels(job) == []


def environment(**variables: str) -> Callable[[Job], Job]:
    return lambda job: job.replace(environment=variables)


@pytest.mark.parametrize(
    ("change", "level", "services"),
    [
        # a job; the level of its finding, if it has one; the endpoints with which it has none
        (environment(), "error", ()),
        (environment(PIP_INDEX_URL="https://pypi.org/simple"), "error", ()),
        (environment(PIP_EXTRA_INDEX_URL=INDEX["PIP_INDEX_URL"]), "", ()),
        (environment(HTTPS_PROXY="http://proxy.example.internal:3128"), "", ()),
        (environment(PIP_NO_INDEX="1"), "", ()),
        (environment(CA_REPOSITORY_ARN=REPOSITORY), "error", CODEARTIFACT),
    ],
)
def test_a_closed_subnet_reaches_the_index_of_packages(good, vpc, change, level, services):
    vpc.gateway("s3")
    job = change(good.replace(network=vpc.network))
    assert levels(job) == [(level, SUBNETS)] * bool(level)
    if services:
        vpc.endpoints(*services)
        assert levels(job) == []


def test_a_closed_subnet_with_another_route_may_reach_the_index(good, vpc):
    vpc.gateway("s3")
    to_another_network(vpc)
    assert levels(good.replace(network=vpc.network)) == [("warning", SUBNETS)]


def of_groups(job: Job, vpc: Vpc, *groups: str) -> list[tuple[str, str]]:
    """Findings with these security groups, in a subnet that leads everywhere else."""
    network = Network(subnets=[vpc.subnet], security_groups=list(groups))
    return levels(job.replace(network=network, environment=INDEX))


def test_hosts_reach_each_other_through_their_security_groups(good, vpc):
    vpc.gateway("s3")
    group = vpc.ec2.create_security_group(GroupName="h", Description="h", VpcId=vpc.id)["GroupId"]
    without_efa = good.replace(instance_type="ml.g5.xlarge")
    assert of_groups(good, vpc, group) == [("error", GROUPS)] * 2  # inbound and outbound
    assert of_groups(good.replace(instance_count=1), vpc, group) == []
    assert of_groups(without_efa, vpc, group) == [("error", GROUPS)]  # a new group lets all out
    assert of_groups(good, vpc, vpc.group) == of_groups(good, vpc, group, vpc.group) == []
    for block, found in (("10.9.0.0/16", [("warning", GROUPS)]), ("10.0.0.0/8", [])):
        rule = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": block}]}]
        vpc.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rule)
        assert of_groups(without_efa, vpc, group) == found
    assert of_groups(good, vpc, group) == [("error", GROUPS)] * 2  # EFA needs the group itself


def test_efa_needs_subnets_of_one_zone(good, vpc):
    vpc.gateway("s3")
    zone = {"AvailabilityZone": f"{REGION}b"}
    made = vpc.ec2.create_subnet(VpcId=vpc.id, CidrBlock="10.0.9.0/24", **zone)["Subnet"]
    network = Network(subnets=[vpc.subnet, made["SubnetId"]], security_groups=[vpc.group])
    job = good.replace(network=network, environment=INDEX)
    assert levels(job) == [("warning", SUBNETS)]
    assert levels(job.replace(instance_type="ml.g5.xlarge")) == []


def test_a_subnet_that_does_not_exist_is_awss_to_report(good, vpc):
    """CreateTrainingJob rejects it at once."""
    network = Network(subnets=["subnet-00000000"], security_groups=[vpc.group])
    found = levels(good.replace(network=network))
    assert found and {level for level, _ in found} == {"skipped"}


def test_a_group_that_lets_out_to_itself_alone_reaches_no_s3(good, vpc):
    vpc.gateway("s3")
    job = good.replace(network=vpc.network, environment=INDEX)
    assert levels(job) == []
    everywhere = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    vpc.ec2.revoke_security_group_egress(GroupId=vpc.group, IpPermissions=everywhere)
    assert levels(job) == [("error", GROUPS)]
    vpc.endpoints("s3")  # with the group itself
    assert levels(job) == []


def replaced(answer: str, **changes: Any) -> Any:
    """moto's answer, with other facts of each endpoint or ACL."""
    call = botocore.client.BaseClient._make_api_call

    def answered(arguments: dict[str, Any]) -> dict[str, Any]:
        ec2 = boto3.client("ec2", REGION)
        found = call(ec2, answer, arguments)
        (entries,) = [value for value in found.values() if isinstance(value, list)]
        for entry in entries:
            entry.update(changes)
        return found

    return answered


ONE_BUCKET = json.dumps(
    {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "*",
                "Resource": "arn:aws:s3:::other/*",
            }
        ]
    }
)
EVERYTHING = ONE_BUCKET.replace("arn:aws:s3:::other/*", "*")
DENY_FIRST = [
    {"RuleNumber": number, "Egress": way, "RuleAction": action, "Protocol": "-1"}
    for way in (False, True)
    for number, action in ((90, "deny"), (100, "allow"))
]


@pytest.mark.parametrize(
    ("answer", "changes", "expected"),
    [
        ("DescribeVpcEndpoints", {"PolicyDocument": EVERYTHING}, []),
        ("DescribeVpcEndpoints", {"PolicyDocument": ONE_BUCKET}, ["network.endpoints"]),
        ("DescribeVpcEndpoints", {"PrivateDnsEnabled": False}, ["network.endpoints"]),
        ("DescribeNetworkAcls", {"Entries": DENY_FIRST}, ["network.subnets"]),
    ],
)
def test_what_may_keep_traffic_back_is_a_warning(good, vpc, monkeypatch, answer, changes, expected):
    vpc.endpoints("s3")
    job = good.replace(network=vpc.network, environment={"PIP_INDEX_URL": "https://a.internal/s"})
    assert levels(job) == []
    record(monkeypatch, **{answer: replaced(answer, **changes)})
    assert levels(job) == [("warning", key) for key in expected]


def test_an_endpoints_group_lets_the_hosts_in(good, vpc):
    closed = vpc.ec2.create_security_group(GroupName="closed", Description="x", VpcId=vpc.id)
    vpc.ec2.create_vpc_endpoint(
        VpcId=vpc.id,
        ServiceName=f"com.amazonaws.{REGION}.s3",
        VpcEndpointType="Interface",
        SubnetIds=[vpc.subnet],
        SecurityGroupIds=[closed["GroupId"]],
    )
    job = good.replace(network=vpc.network, environment={"PIP_INDEX_URL": "https://a.internal/s"})
    assert levels(job) == [("warning", "network.endpoints")]
