"""The files in infra/: the stack deploys, and its policies allow what a job needs and no more."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.client
import jinja2
import pytest
import yaml
from moto.cloudformation.utils import yaml_tag_constructor
from policies import allows, listed, simulation

import checkout
from moto_account import ACCOUNT, REGION, TRUST, Vpc, record
from sent_job import archive
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import Job

pytest_plugins = ("moto_account", "sent_job")

NAME = "words-20260101-000000"
BUCKET, DATA = f"sagemaker-{REGION}-{ACCOUNT}", "words-data"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/words-training"
LOGS = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/TrainingJobs"
Need = tuple[str, str, tuple[tuple[str, str], ...]]  # action, ARN, context
Call = tuple[str, str, dict[str, Any]]  # service, operation, parameters


def infra(name: str) -> str:
    """A file of infra/ in a project whose name is `words`."""
    text = (checkout.PROJECT / "infra" / name).read_text(encoding="utf-8")
    answers = {"project_slug": "words", "instance_type": "ml.p4d.24xlarge"}
    return jinja2.Template(text).render(cookiecutter=answers)


def policy(name: str) -> dict[str, Any]:
    text = infra(name).replace("DATA_BUCKET", DATA).replace("BUCKET", BUCKET)
    return dict(json.loads(text.replace("ACCOUNT", ACCOUNT)))


def lacking(document: dict[str, Any], needs: set[Need]) -> set[Need]:
    """The needs that the policy does not allow."""
    return {need for need in needs if not allows(document, need[0], need[1], dict(need[2]))}


def reduced(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The policy without one of its actions, resources or values of conditions, for each one."""
    for number, statement in enumerate(document["Statement"]):
        conditions = statement.get("Condition", {}).items()
        paths = [("Action",), ("Resource",)]
        paths += [("Condition", operator, key) for operator, keys in conditions for key in keys]
        for *tables, last in paths:
            values = at(statement, tables)[last]
            for value in listed(values):
                changed = json.loads(json.dumps(document))
                rest = [each for each in listed(values) if each != value]
                at(changed["Statement"][number], tables)[last] = rest
                yield f"{statement['Sid']}: {value}", changed


def at(table: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path:
        table = table[name]
    return table


# Names of permissions that differ from those of the calls.
PERMISSIONS = {
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "HeadObject": "GetObject",
    "GetBucketEncryption": "GetEncryptionConfiguration",
}
WITHOUT_RESOURCES = ("ListTrainingJobs", "DescribeParameters", "GetProducts", "DescribeRouteTables")


def needs_of(call: Call, key: str) -> Iterator[Need]:
    """The permissions that AWS demands for a call; ``key`` encrypts objects in S3."""
    service, operation, given = call
    action = f"{service}:{PERMISSIONS.get(operation, operation)}"
    objects = f"/{given['Key']}" if "Key" in given else ""
    job = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{given.get('TrainingJobName')}"
    stream = f":log-stream:{given['logStreamName']}" if "logStreamName" in given else ""
    arns = {
        "s3": f"arn:aws:s3:::{given.get('Bucket')}{objects}",
        "sagemaker": job,
        "iam": ROLE,
        "logs": f"{LOGS}{stream}",
        "kms": key,
        "secretsmanager": f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:words/db-AbCdEf",
    }
    resource = "*" if operation in WITHOUT_RESOURCES else arns.get(service, "*")
    if operation == "CreateTrainingJob":
        kind = given["ResourceConfig"]["InstanceType"]
        seconds = str(given["StoppingCondition"]["MaxRuntimeInSeconds"])
        limits = (("sagemaker:InstanceTypes", kind), ("sagemaker:MaxRuntimeInSeconds", seconds))
        yield action, resource, limits
        yield "sagemaker:AddTags", resource, ()
        passed = (("iam:PassedToService", "sagemaker.amazonaws.com"),)
        yield "iam:PassRole", given["RoleArn"], passed
    elif service != "sts":  # GetCallerIdentity needs no permission
        yield action, resource, ()
    if action in ("s3:PutObject", "s3:GetObject"):
        using = "kms:GenerateDataKey" if action == "s3:PutObject" else "kms:Decrypt"
        yield using, key, (("kms:ViaService", f"s3.{REGION}.amazonaws.com"),)


def question(arguments: dict[str, Any]) -> Iterator[Need]:
    """The actions that preflight asks IAM's simulation about."""
    context = {
        entry["ContextKeyName"]: entry["ContextKeyValues"][0]
        for entry in arguments["ContextEntries"]
    }
    (action,) = arguments["ActionNames"]
    for resource in arguments["ResourceArns"]:
        yield action, resource, tuple(context.items())


def by_sagemaker(key: str) -> Iterator[Need]:
    """The actions of SageMaker with the job's role beyond what preflight asks about.

    See sagemaker/latest/dg/sagemaker-roles.html, and for a secret's own key
    secretsmanager/latest/userguide/security-encryption.html.
    """
    stream = f"{LOGS}:log-stream:{NAME}/algo-1"
    for action in ("CreateLogGroup", "DescribeLogStreams"):
        yield f"logs:{action}", LOGS, ()
    for action in ("CreateLogStream", "PutLogEvents"):
        yield f"logs:{action}", stream, ()
    for action in ("cloudwatch:PutMetricData", "ecr:GetAuthorizationToken"):
        yield action, "*", ()
    for repository in ("763104351884:repository/pytorch", f"{ACCOUNT}:repository/mine"):
        for action in ("BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer"):
            yield f"ecr:{action}", f"arn:aws:ecr:{REGION}:{repository}", ()
    for kind in ("network-interface", "security-group", "subnet"):
        for action in ("Create", "Delete"):
            for permission in ("", "Permission"):
                resource = f"arn:aws:ec2:{REGION}:{ACCOUNT}:{kind}/x"
                yield f"ec2:{action}NetworkInterface{permission}", resource, ()
    for kind in ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs"):
        yield f"ec2:Describe{kind}", "*", ()
    for service in ("secretsmanager", "ssm"):
        yield "kms:Decrypt", key, (("kms:ViaService", f"{service}.{REGION}.amazonaws.com"),)


@pytest.fixture
def key(aws: boto3.Session) -> str:
    return str(aws.client("kms").create_key()["KeyMetadata"]["Arn"])


@pytest.fixture
def words(aws: boto3.Session, vpc: Vpc, key: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that uses whatever needs a permission; the default bucket is missing."""
    aws.client("s3").create_bucket(Bucket=DATA)
    aws.client("s3").put_object(Bucket=DATA, Key="train/x.csv", Body=b"x")
    aws.client("secretsmanager").create_secret(Name="words/db", SecretString="x")
    aws.client("ssm").put_parameter(Name="/words/hub", Value="x", Type="SecureString")
    trust = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
    aws.client("iam").create_role(RoleName="words-training", AssumeRolePolicyDocument=trust)
    vpc.gateway("s3")
    vpc.endpoints("secretsmanager", "ssm")
    job = Job(
        name="words",
        region=REGION,
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        role="words-training",
        channels={"training": f"s3://{DATA}/train/"},
        hyperparameters={"dataset": "training"},
        secrets={"DB": "words/db", "HF_TOKEN": "ssm:/words/hub"},
        environment={"PIP_INDEX_URL": "https://pip.example.internal/simple"},
        tags={"project": "words"},
        network=vpc.network,
        request={"OutputDataConfig": {"KmsKeyId": key}},
    )
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: job)
    monkeypatch.setattr(request, "job_name", lambda _: NAME)
    return job


@pytest.fixture
def calls(words: Job, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every call of AWS in a test; moto does not know all of them."""
    record(
        monkeypatch,
        SimulatePrincipalPolicy=simulation(policy("role-policy.json")),
        GetProducts={"PriceList": []},
        StopTrainingJob={},
        UpdateTrainingJob={},
    )
    seen: list[Call] = []
    answer = botocore.client.BaseClient._make_api_call

    def noting(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        seen.append((client.meta.service_model.service_name, operation, arguments))
        return answer(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", noting)
    return seen


def test_the_policies_allow_a_jobs_whole_life_and_no_line_is_idle(
    aws, calls, key, monkeypatch, tmp_path, capsys
):
    """From preflight to fetch: each call of AWS, and each question about the role."""
    assert main(["preflight"]) == 0
    printed = capsys.readouterr().out
    assert not [line for line in printed.splitlines() if line.startswith(("warning", "skipped"))]
    assert main(["submit", "--yes", "--no-follow"]) == 0
    model = archive(("weights", b"0", b"w"))
    sent_by_now = list(calls)
    aws.client("s3").put_object(Bucket=BUCKET, Key=f"{NAME}/output/model.tar.gz", Body=model)
    logs, stream = aws.client("logs"), f"{NAME}/algo-1-1"
    logs.create_log_group(logGroupName="/aws/sagemaker/TrainingJobs")
    logs.create_log_stream(logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=stream)
    calls[:] = sent_by_now
    for command in (["list"], ["follow", NAME], ["why", NAME], ["stop", NAME]):
        assert main([*command, "--region", REGION]) == 0
    assert main(["fetch", NAME, "--region", REGION, "--to", str(tmp_path / "model")]) == 0
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=NAME)
    for changes in (
        {"TrainingJobStatus": "InProgress"},
        {"WarmPoolStatus": {"Status": "Available"}},
    ):
        record(monkeypatch, DescribeTrainingJob={**job, **changes})
        assert main(["stop", NAME, "--region", REGION]) == 0

    asked = [given for _, operation, given in calls if operation == "SimulatePrincipalPolicy"]
    everything = {
        "sender-policy.json": {need for call in calls for need in needs_of(call, key)},
        "role-policy.json": {need for given in asked for need in question(given)}
        | set(by_sagemaker(key)),
    }
    for name, needs in everything.items():
        assert lacking(policy(name), needs) == set(), name
        idle = [line for line, less in reduced(policy(name)) if not lacking(less, needs)]
        assert idle == [], name


OPTIONS = {
    "Bucket": "words-models",
    "DataBucket": DATA,
    "BucketKey": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/x",
    "ExpireDays": "30",
    "GitHubRepository": "me@12/words@3456",
    "Email": "me@example.com",
    "EmailKey": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/mail",
}


def deployed(aws: boto3.Session, **parameters: str) -> dict[str, str]:
    """The outputs of the stack; moto creates it."""
    pytest.importorskip("openapi_spec_validator")  # of moto[cloudformation]
    stacks = aws.client("cloudformation")
    stacks.create_stack(
        StackName="words",
        TemplateBody=infra("cloudformation.yaml"),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    )
    (stack,) = stacks.describe_stacks(StackName="words")["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def statements(aws: boto3.Session, *names: str) -> list[dict[str, Any]]:
    """The statements of the stack's policies; each resource and value of a condition in a list."""
    found = []
    for name in names:
        arn = f"arn:aws:iam::{ACCOUNT}:policy/{name}"
        version = aws.client("iam").get_policy_version(PolicyArn=arn, VersionId="v1")
        found += version["PolicyVersion"]["Document"]["Statement"]
    return found


def test_the_stacks_policies_are_those_of_the_other_files(aws):
    deployed(aws, DataBucket=DATA)
    files = {
        "role-policy.json": ["words-training"],
        "sender-policy.json": ["words-preflight", "words-sender"],
    }
    for file, names in files.items():
        found = statements(aws, *names)
        for statement in found:  # moto keeps a list of one value as the value
            types = statement.get("Condition", {}).get("ForAllValues:StringLike", {})
            types.update({key: listed(value) for key, value in types.items()})
        assert found == policy(file)["Statement"]


@pytest.mark.parametrize(
    ("kind", "seconds", "allowed"),
    [
        ("ml.p4d.24xlarge", "86400", True),
        ("ml.p5.48xlarge", "60", False),
        ("ml.p4d.24xlarge", "86401", False),
    ],
)
def test_who_sends_is_limited_to_types_and_seconds(kind: str, seconds: str, allowed: bool):
    limits = {"sagemaker:InstanceTypes": kind, "sagemaker:MaxRuntimeInSeconds": seconds}
    job = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{NAME}"
    action = "sagemaker:CreateTrainingJob"
    assert allows(policy("sender-policy.json"), action, job, limits) == allowed


def test_nobodys_keys_in_the_shared_bucket_are_listed():
    assert not allows(policy("sender-policy.json"), "s3:ListBucket", f"arn:aws:s3:::{BUCKET}", {})


def test_the_stack_creates_a_bucket_only_if_one_is_named(aws):
    before = [each["Name"] for each in aws.client("s3").list_buckets()["Buckets"]]
    outputs = deployed(aws)
    assert outputs["Bucket"] == BUCKET and outputs["Role"] == ROLE
    assert [each["Name"] for each in aws.client("s3").list_buckets()["Buckets"]] == before


class Loader(yaml.SafeLoader):
    """Reads CloudFormation's tags as moto does."""


Loader.add_multi_constructor("!", yaml_tag_constructor)


def test_the_bucket_is_encrypted_private_for_tls_only_and_outlives_its_stack(aws):
    assert deployed(aws, **OPTIONS)["Bucket"] == OPTIONS["Bucket"]
    answer = aws.client("s3").get_bucket_encryption(Bucket=OPTIONS["Bucket"])
    (rule,) = answer["ServerSideEncryptionConfiguration"]["Rules"]
    default = rule["ApplyServerSideEncryptionByDefault"]
    assert default["KMSMasterKeyID"] == OPTIONS["BucketKey"]
    resources = yaml.load(infra("cloudformation.yaml"), Loader)["Resources"]  # noqa: S506
    private = resources["NewBucket"]["Properties"]["PublicAccessBlockConfiguration"]
    assert len(private) == 4 and set(private.values()) == {True}
    (deny,) = resources["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    insecure = {"Bool": {"aws:SecureTransport": "false"}}
    assert (deny["Effect"], deny["Principal"], deny["Condition"]) == ("Deny", "*", insecure)
    kept = {name for name, one in resources.items() if "DeletionPolicy" in one}
    assert kept == {"NewBucket", "BucketPolicy", "NewProvider"}


def test_pull_requests_only_read_and_one_environment_of_one_branch_sends(aws):
    deployed(aws, **OPTIONS)
    claims = {}
    for name in ("words-github-preflight", "words-github"):
        role = aws.client("iam").get_role(RoleName=name)["Role"]
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Condition"].keys() == {"StringEquals"}  # no pattern
        claims[name] = {
            key.partition(":")[2]: value
            for key, value in statement["Condition"]["StringEquals"].items()
        }
    aud = "sts.amazonaws.com"
    assert claims == {
        "words-github-preflight": {"aud": aud, "sub": "repo:me@12/words@3456:pull_request"},
        "words-github": {
            "aud": aud,
            "sub": "repo:me@12/words@3456:environment:sagemaker",
            "ref": "refs/heads/main",
        },
    }
    looking = [action for each in statements(aws, "words-preflight") for action in each["Action"]]
    verbs = ("Describe", "List", "Get", "Simulate")
    assert [one for one in looking if not one.partition(":")[2].startswith(verbs)] == []
    assert "s3:GetObject" not in looking


def test_only_sagemaker_for_this_account_assumes_the_jobs_role(aws):
    deployed(aws)
    role = aws.client("iam").get_role(RoleName="words-training")["Role"]
    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_the_end_of_each_job_of_the_project_is_mailed(aws):
    deployed(aws, **OPTIONS)
    events = aws.client("events")
    (rule,) = events.list_rules()["Rules"]
    detail = json.loads(rule["EventPattern"])["detail"]
    assert detail["TrainingJobName"] == [{"prefix": "words-"}]
    (target,) = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
    (topic,) = aws.client("sns").list_topics()["Topics"]
    assert target["Arn"] == topic["TopicArn"]
    facts = aws.client("sns").get_topic_attributes(TopicArn=topic["TopicArn"])["Attributes"]
    assert facts["KmsMasterKeyId"] == OPTIONS["EmailKey"]


@pytest.mark.long
def test_cfn_lint_has_no_finding():
    """Its rules also check the names of actions; informational ones are left out, as usual."""
    api = pytest.importorskip("cfnlint.api")
    matches = api.lint_all(infra("cloudformation.yaml"))
    assert [str(match) for match in matches if match.rule.id[0] != "I"] == []
