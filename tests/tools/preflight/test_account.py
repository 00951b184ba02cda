"""Preflight's questions to an account: the real boto3 and SDK against moto, in process."""

import json
import socket
import time
from typing import Any

import boto3
import pytest

from moto_account import ACCOUNT, LAMBDA, REGION, TRUST, Vpc, record, refusal, simulated
from small_job import PROJECT
from smlightning_sagemaker import preflight
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import price, request
from smlightning_sagemaker.job.job import Job, Network, Spot
from smlightning_sagemaker.preflight import account

pytest_plugins = "moto_account"


def findings(job: Job) -> list[str]:
    return [str(finding) for finding in account.check(job, request.dry_run(job, PROJECT))]


def test_a_good_job_passes(aws, good):
    assert findings(good) == []
    assert findings(good.replace(role="training")) == []
    assert (
        findings(good.replace(request={"EnableNetworkIsolation": True})) == []
    )  # its code is uploaded later


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("", "role: empty means Studio's execution role, but these credentials are a user's"),
        ("nobody", "role: nobody does not exist in account 123456789012"),
        ("arn:aws:iam::999999999999:role/training", "role: the role is in account 999999999999"),
        (
            f"arn:aws:iam::{ACCOUNT}:role/service-role/training",
            f"write arn:aws:iam::{ACCOUNT}:role/training",
        ),
        ("lambda", "role: lambda does not trust SageMaker"),
        (
            "sso",
            "role: empty means Studio's execution role, but these credentials are single sign-on's",
        ),
    ],
)
def test_a_wrong_role_is_one_error(aws, good, role, said, monkeypatch):
    policy = {
        "Version": "2012-10-17",
        "Statement": TRUST | {"Principal": {"Service": "lambda.amazonaws.com"}},
    }
    aws.client("iam").create_role(RoleName="lambda", AssumeRolePolicyDocument=json.dumps(policy))
    caller = "assumed-role/AWSReservedSSO_Admin_0123/me" if role == "sso" else "user/me"
    record(monkeypatch, GetCallerIdentity=identity(caller))
    found = findings(good.replace(role=role.removeprefix("sso")))
    assert len(found) == 1 and said in found[0], found


def identity(caller: str) -> dict[str, str]:
    return {"UserId": "x", "Account": ACCOUNT, "Arn": f"arn:aws:sts::{ACCOUNT}:{caller}"}


def test_in_studio_an_empty_role_is_the_callers_own(aws, good, monkeypatch):
    asked = set()

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.update((arguments["PolicySourceArn"], name) for name in arguments["ActionNames"])
        return simulated()(arguments)

    caller = identity("assumed-role/training/SageMaker")
    record(monkeypatch, GetCallerIdentity=caller, SimulatePrincipalPolicy=answer)
    assert findings(good.replace(role="")) == []
    assert {(good.role, "sagemaker:CreateTrainingJob"), (good.role, "s3:PutObject")} <= asked


def test_the_caller_may_send_the_job_and_the_role_may_read_and_write(aws, good, monkeypatch):
    """By IAM's simulation of this job's name; a bucket's policy may allow what IAM lacks."""
    asked: list[dict[str, Any]] = []
    answer = simulated("iam:PassRole", "s3:GetObject", "s3:PutObject")
    record(
        monkeypatch,
        SimulatePrincipalPolicy=lambda arguments: asked.append(arguments) or answer(arguments),
    )
    aws.client("s3").put_object(Bucket="language-id", Key="data/x", Body=b"x")
    found = findings(good.replace(channels={"training": "s3://language-id/data"}, tags={"a": "b"}))
    role = f"arn:aws:iam::{ACCOUNT}:role/training"
    assert [line.split(" on ")[0] for line in found] == [
        "error   caller.iam:PassRole: moto may not iam:PassRole",
        "warning caller.s3:PutObject: moto may not s3:PutObject",
        "warning role.s3:GetObject: training may not s3:GetObject",
        "warning role.s3:PutObject: training may not s3:PutObject",
    ]
    assert role in found[0] and "arn:aws:s3:::language-id/data*" in found[2]
    by = {(a["PolicySourceArn"].split(":")[5], name) for a in asked for name in a["ActionNames"]}
    assert by >= {("user/moto", "sagemaker:CreateTrainingJob"), ("user/moto", "sagemaker:AddTags")}
    assert by >= {("role/training", "s3:PutObject"), ("role/training", "logs:PutLogEvents")}
    (creating,) = (a for a in asked if "sagemaker:CreateTrainingJob" in a["ActionNames"])
    assert f":training-job/{good.name}-" in creating["ResourceArns"][0]
    (passing,) = (a for a in asked if a["ActionNames"] == ["iam:PassRole"])
    context = {e["ContextKeyName"]: e["ContextKeyValues"] for e in passing["ContextEntries"]}
    assert context["iam:PassedToService"] == ["sagemaker.amazonaws.com"]


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
    ("lead", "levels"),
    [
        (lambda vpc: None, ["error"]),
        (to_the_internet, ["error"]),  # SageMaker's hosts have no public address
        (to_another_network, ["warning"]),  # it may have an endpoint
        (to_nat, []),
        (lambda vpc: vpc.endpoints("s3"), []),
        (lambda vpc: vpc.gateway("s3"), []),
    ],
)
def test_subnets_need_a_nat_gateway_or_an_endpoint_for_s3(good, vpc, lead, levels):
    lead(vpc)
    found = account.check(
        good.replace(network=vpc.network),
        request.dry_run(good.replace(network=vpc.network), PROJECT),
    )
    assert [(each.level, each.key) for each in found] == [
        (level, "network.subnets") for level in levels
    ]


def of_groups(job: Job, vpc: Vpc, *groups: str) -> list[str]:
    """Directions in which hosts do not reach each other with these security groups."""
    network = Network(subnets=[vpc.subnet], security_groups=list(groups))
    found = findings(job.replace(network=network))
    return [way for line in found for way in ("inbound", "outbound") if f"no {way} rule" in line]


def test_hosts_reach_each_other_through_their_security_groups(good, vpc):
    group = vpc.ec2.create_security_group(GroupName="h", Description="h", VpcId=vpc.id)["GroupId"]
    without_efa = good.replace(instance_type="ml.g5.xlarge")
    assert of_groups(good, vpc, group) == ["inbound", "outbound"]
    assert of_groups(good.replace(instance_count=1), vpc, group) == []
    assert of_groups(without_efa, vpc, group) == ["inbound"]
    assert of_groups(good, vpc, vpc.group) == of_groups(good, vpc, group, vpc.group) == []
    for block, ways in (("10.9.0.0/16", ["inbound"]), ("10.0.0.0/8", [])):
        rule = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": block}]}]
        vpc.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rule)
        assert of_groups(without_efa, vpc, group) == ways
    assert of_groups(good, vpc, group) == ["inbound", "outbound"]  # EFA needs the group itself


def test_subnets_exist_in_one_vpc_and_with_efa_in_one_zone(good, vpc):
    vpc.gateway("s3")
    other = vpc.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    elsewhere, second = (
        vpc.ec2.create_subnet(VpcId=name, CidrBlock=block, AvailabilityZone="us-east-1b")["Subnet"]
        for name, block in ((other, "10.1.0.0/24"), (vpc.id, "10.0.9.0/24"))
    )
    for subnet, kind, words in (
        (elsewhere["SubnetId"], "ml.p4d.24xlarge", "2 VPCs"),
        ("subnet-00000000", "ml.p4d.24xlarge", "does not exist"),
        (second["SubnetId"], "ml.p4d.24xlarge", "2 zones"),
        (second["SubnetId"], "ml.g5.xlarge", ""),
    ):
        network = Network(subnets=[vpc.subnet, subnet], security_groups=[vpc.group])
        found = [
            line
            for line in findings(good.replace(network=network, instance_type=kind))
            if not line.startswith("skipped")
        ]
        assert [words in line for line in found[:1]] == [True] * bool(words)


def test_buckets_are_in_the_jobs_region_and_channels_have_data(aws, good, monkeypatch):
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
    found = findings(good.replace(channels=channels, checkpoint_s3="s3://far-away/x"))
    assert len(found) == 3, found
    assert "channels.empty: there is no data at s3://language-id/marker/" in found[0]
    assert "channels.none: bucket absent-bucket does not exist" in found[1]
    assert "checkpoint_s3: bucket far-away is in eu-west-1, the job in us-east-1" in found[2]
    elsewhere = {"OutputDataConfig": {"S3OutputPath": "s3://absent-bucket/x"}}
    wanted = good.replace(
        bucket="", request=elsewhere, channels={"training": "s3://a b/x"}, checkpoint_s3=""
    )
    assert [
        line.split(",")[0] for line in findings(wanted)
    ] == [  # nothing of "a b", which is no bucket's name
        "error   request.OutputDataConfig.S3OutputPath: bucket absent-bucket does not exist; "
        "create it in the job's region",
    ]
    record(monkeypatch, HeadBucket=refusal("403", "HeadBucket"))
    assert [line[:15] for line in findings(good)] == [
        "warning bucket:"
    ]  # the job's role may see it


def test_a_job_above_a_quota_is_an_error(aws, good):
    found = findings(good.replace(instance_count=5))
    assert (
        len(found) == 1
        and 'instance_count: 5 is above the quota "ml.p4d.24xlarge for training' in found[0]
    )
    assert (
        "for spot training job usage"
        in findings(good.replace(instance_count=5, spot=Spot(enabled=True)))[0]
    )
    assert "max_run_s: 432001 is above the quota" in findings(good.replace(max_run_s=432_001))[0]


def quotas(monkeypatch: pytest.MonkeyPatch, granted: dict[str, float], usual: dict[str, float]):
    """Let AWS answer with these granted quotas and these defaults."""
    record(
        monkeypatch,
        ListServiceQuotas={"Quotas": listed(granted)},
        ListAWSDefaultServiceQuotas={"Quotas": listed(usual)},
    )


def listed(values: dict[str, float]) -> list[dict[str, Any]]:
    return [{"QuotaName": name, "Value": value} for name, value in values.items()]


USE = "for training job usage"


def test_a_type_without_a_listed_quota_is_skipped(aws, good, monkeypatch):
    quotas(monkeypatch, {}, {})
    (found,) = findings(good)
    assert found.startswith(f'skipped quota: AWS lists no "ml.p4d.24xlarge {USE}"')


def test_preflight_prints_findings_and_writes_them_as_json(
    vpc, good, monkeypatch, tmp_path, capsys
):
    group = vpc.ec2.create_security_group(GroupName="h", Description="h", VpcId=vpc.id)["GroupId"]
    vpc.gateway("s3")
    good = good.replace(distribution="smddp", environment={"PIP_NO_INDEX": "1"})
    inside = good.replace(network=Network(subnets=[vpc.subnet], security_groups=[group]))
    file = tmp_path / "new" / "x.json"
    for job, expected in ((inside, ["error", "error", "warning"]), (good, ["warning"])):
        monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_, job=job: job)
        assert main(["preflight", "--json", str(file)]) == int("error" in expected)
        written, said = json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().out
        assert written["ok"] == ("error" not in expected)
        assert [finding["level"] for finding in written["findings"]] == expected
        shown = f"error   network.security_groups: {group} has no inbound rule"
        assert (shown in said) == ("error" in expected)


def test_price_is_what_the_service_returns_for_training(aws, good, monkeypatch):
    def product(kind: str, dollars: str) -> str:
        terms = {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": dollars}}}}}}
        return json.dumps({"product": {"attributes": {"platoinstancetype": kind}}, "terms": terms})

    asked = record(
        monkeypatch,
        GetProducts={"PriceList": [product("Hosting", "9"), product("Training", "2.5")]},
    )
    made_of = "2 instances × 4 h (max_run_s) × 2.5 USD"
    assert price.cost(good) == f"cost    5.00 USD an hour, at most 20.00 USD: {made_of}"
    wanted = {
        "productFamily": "ML Instance",
        "regionCode": REGION,
        "instanceName": "ml.p4d.24xlarge",
    }
    assert {f["Field"]: f["Value"] for f in asked["GetProducts"]["Filters"]} == wanted


def test_a_price_list_that_does_not_answer_costs_seconds(good, monkeypatch):
    """As in a network that has no way to AWS's price list: the server accepts and never answers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setattr(price, "PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", address)
        began = time.monotonic()
        said = price.cost(good)
        assert time.monotonic() - began < 15  # boto3 waits 20 s for an answer
    assert "not known" in said


def test_a_denied_call_is_skipped_and_earlier_findings_stay(aws, good, monkeypatch):
    record(monkeypatch, GetRole=refusal("AccessDenied", "GetRole"))
    assert [line.split(";")[0] for line in findings(good)] == [
        "skipped permissions: these credentials may not call GetRole"
    ]
    denied = refusal("AccessDenied", "SimulatePrincipalPolicy")
    record(monkeypatch, SimulatePrincipalPolicy=denied, GetRole=[{"Role": LAMBDA}])
    assert [
        line.split(";")[0] for line in findings(good.replace(role="lambda"))
    ] == [  # what was found before stays
        "error   role: lambda does not trust SageMaker",
        "skipped permissions: these credentials may not call SimulatePrincipalPolicy",
    ]


def test_without_credentials_preflight_says_that_the_account_was_not_checked(good):
    (finding,) = account.check(good, request.dry_run(good, PROJECT))
    assert (finding.level, finding.key) == ("skipped", "AWS")
    assert "without the account" in preflight.passed([finding])
    assert preflight.passed([]) == "preflight passed"
    assert "permissions, quotas and S3 were not checked" in preflight.passed([], offline=True)
