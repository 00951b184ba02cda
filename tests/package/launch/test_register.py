"""A job's model in the registry, uncompressed models, and what deploying needs of IAM."""

import json
import re
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from moto.sagemaker.models import sagemaker_backends
from moto_account import ACCOUNT, REGION, good, record
from policies import ALLOWED, evaluate, without
from small_job import PROJECT
from test_deploy import (
    ABSENT,
    IMAGES,
    JOB,
    account,
    created,
    interrupt,
    left,
    refused,
    run,
)

from smlightning.launch import deploy_check, deploy_plan, fetch
from smlightning.launch.account import table, template
from smlightning.launch.job import Job

__all__ = ["account", "good"]  # fixtures


def trained(session):
    return sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB]


def stored(session) -> set[str]:
    answer = session.client("s3").list_objects_v2(Bucket="language-id")
    return {item["Key"].removeprefix(f"{JOB}/output/") for item in answer["Contents"]}


def test_a_version_has_image_model_and_metrics(account, capsys, monkeypatch):
    trained(account).final_metric_data_list = [
        {"MetricName": "val/acc", "Value": 0.75, "Timestamp": 0}
    ]
    asked = record(monkeypatch)
    assert run("register", "--instance", "ml.g4dn.xlarge", "--yes") == 0
    said = capsys.readouterr().out
    assert "cost    a version of language-id: its archive in S3" in said
    (package,) = account.client("sagemaker").list_model_packages(
        ModelPackageGroupName="language-id"
    )["ModelPackageSummaryList"]
    assert package["ModelPackageArn"] in said
    request = asked["CreateModelPackage"]
    (container,) = request["InferenceSpecification"]["Containers"]
    assert container["Image"] == f"{IMAGES}/ray:serve-ml-sagemaker-cuda-v1"
    address = f"s3://language-id/{JOB}/output/registered/{JOB}/model.tar.gz"
    assert container["ModelDataUrl"] == address
    told = request["CustomerMetadataProperties"]
    assert (told["job"], told["metric val/acc"]) == (JOB, "0.75")
    assert f"registered/{JOB}/model.tar.gz" in stored(account)
    assert run("register", "--yes") == 1 and "is registered already" in capsys.readouterr().err
    assert run("register", "--group", "a b", "--yes") == 1
    assert "--group" in capsys.readouterr().err


def test_a_refused_version_leaves_no_archive(account, monkeypatch):
    asked = record(monkeypatch, CreateModelPackage=refused("CreateModelPackage"))
    assert run("register", "--yes") == 1
    assert "PutObject" in asked and stored(account) == {"model.tar.gz"}


@pytest.fixture
def uncompressed(account):
    """The job's model as files: CompressionType NONE."""
    job, s3 = trained(account), account.client("s3")
    job.output_data_config["CompressionType"] = "NONE"
    job.model_artifacts = {"S3ModelArtifacts": f"s3://language-id/{JOB}/output/model"}
    for name in ("model/config.json", "model/deep/weights", "model/code/old.py", "data/curves.csv"):
        s3.put_object(Bucket="language-id", Key=f"{JOB}/output/{name}", Body=b"{}")
    return account


def test_an_uncompressed_model_is_fetched(uncompressed, tmp_path):
    folder = fetch.fetch(JOB, REGION, tmp_path / "x")
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert found == ["code/old.py", "config.json", "deep/weights", "output/curves.csv"]


def test_an_uncompressed_model_is_deployed_from_its_folder(uncompressed, monkeypatch):
    before, asked = stored(uncompressed), record(monkeypatch)
    assert run("deploy") == 0
    container = asked["CreateModel"]["PrimaryContainer"]
    place = f"deploy/{JOB}/"
    assert container["ModelDataSource"]["S3DataSource"] == {
        "S3Uri": f"s3://language-id/{JOB}/output/{place}",
        "S3DataType": "S3Prefix",
        "CompressionType": "None",
    }
    added = {key.removeprefix(place) for key in stored(uncompressed) if key.startswith(place)}
    assert {"config.yaml", "code/predict.py", "trained/config.json", "trained/deep/weights"} < added
    assert "code/old.py" not in added
    assert run("undeploy") == 0
    assert left(uncompressed) == [] and stored(uncompressed) == before


def test_an_uncompressed_model_is_packed_where_no_folder_is_taken(uncompressed, monkeypatch):
    trained(uncompressed).vpc_config = None
    asked = record(monkeypatch)
    assert run("deploy", "--serverless") == 0
    assert asked["CreateModel"]["PrimaryContainer"]["ModelDataUrl"].endswith("model.tar.gz")
    assert run("undeploy") == 0 and left(uncompressed) == []


@pytest.mark.parametrize("options", [(), ("--serverless",)], ids=["folder", "archive"])
def test_an_adapter_of_a_path_is_not_deployed(uncompressed, capsys, options):
    """A channel's path, say; a name on the hub can be loaded anywhere."""
    trained(uncompressed).vpc_config = None
    s3, before = uncompressed.client("s3"), stored(uncompressed)
    key = f"{JOB}/output/model/adapter_config.json"
    for base, status in (("/opt/ml/input/data/training", 1), ("somebody/model", 0)):
        config = json.dumps({"base_model_name_or_path": base}).encode()
        s3.put_object(Bucket="language-id", Key=key, Body=config)
        assert run("deploy", *options) == status
        assert ("--merge true" in capsys.readouterr().err) == bool(status)
        assert not status or stored(uncompressed) == {*before, "model/adapter_config.json"}
    assert run("undeploy") == 0


def test_a_key_that_leads_out_of_the_folder_is_refused(uncompressed, capsys, tmp_path, monkeypatch):
    key = f"{JOB}/output/model/../../evil"
    monkeypatch.setattr(fetch, "all_objects", lambda *_: iter([{"Key": key, "Size": 1}]))
    assert run("fetch", "--to", str(tmp_path / "x" / "y")) == 1
    assert "would be written outside" in capsys.readouterr().err
    assert not list(tmp_path.rglob("evil"))


# Kinds of SageMaker's calls: each is made on ARNs that end in the kind and a name
# (service-authorization/latest/reference/list_amazonsagemaker.html).
KINDS = ("ModelPackageGroup", "TrainingJob", "TransformJob", "EndpointConfig", "Endpoint", "Model")
READ, WRITTEN = ("GetObject", "HeadObject"), ("PutObject", "CreateMultipartUpload", "UploadPart")
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
Asked = set[tuple[str, str]]  # (action, ARN)
QUESTIONS = {
    "GetProducts": "pricing",
    "ListServiceQuotas": "servicequotas",
    "ListAWSDefaultServiceQuotas": "servicequotas",
}


def sagemaker_arn(kind: str, name: str) -> str:
    resource = re.sub(r"(?<!^)(?=[A-Z])", "-", kind).lower()
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{resource}/{name.lower()}"


def s3_arn(uri: str) -> str:
    return f"arn:aws:s3:::{uri.removeprefix('s3://')}"


def permissions_of(operation: str, given: dict[str, Any]) -> Asked:
    """What AWS's reference requires the caller of an operation to be allowed."""
    if operation in ("InvokeEndpoint", "InvokeEndpointAsync"):
        return {(f"sagemaker:{operation}", sagemaker_arn("Endpoint", given["EndpointName"]))}
    if operation == "CreateModelPackage":
        group = given["ModelPackageGroupName"]
        names = {"ModelPackageGroup": group, "ModelPackage": f"{group}/1"}
        return {(f"sagemaker:{operation}", sagemaker_arn(*each)) for each in names.items()}
    if operation == "ListTags":
        return {("sagemaker:ListTags", given["ResourceArn"])}
    if operation == "GetRole":
        return {("iam:GetRole", f"arn:aws:iam::{ACCOUNT}:role/{given['RoleName']}")}
    if operation == "SimulatePrincipalPolicy":
        return {("iam:SimulatePrincipalPolicy", given["PolicySourceArn"])}
    if operation in QUESTIONS:
        return {(f"{QUESTIONS[operation]}:{operation}", "*")}
    if operation == "GetCallerIdentity":
        return set()  # which everybody may ask (STS' API)
    kind = next((each for each in KINDS if operation.endswith(each)), "")
    if kind:
        return permissions_of_kind(operation, kind, given)
    return permissions_in_s3(operation, given)


def permissions_of_kind(operation: str, kind: str, given: dict[str, Any]) -> Asked:
    arn = sagemaker_arn(kind, given[f"{kind}Name"])
    asked = {(f"sagemaker:{operation}", arn)}
    if operation == "CreateEndpoint":
        config = sagemaker_arn("EndpointConfig", given["EndpointConfigName"])
        asked.add((f"sagemaker:{operation}", config))
    if given.get("Tags"):
        asked.add(("sagemaker:AddTags", arn))
    if "ExecutionRoleArn" in given:
        asked.add(("iam:PassRole", given["ExecutionRoleArn"]))
    return asked


def permissions_in_s3(operation: str, given: dict[str, Any]) -> Asked:
    """Objects of the job's output are encrypted with its key."""
    place = s3_arn(f"{given['Bucket']}/{given.get('Key', '')}")
    if operation in READ:
        return {("s3:GetObject", place), ("kms:Decrypt", KEY)}
    if operation in WRITTEN:
        return {("s3:PutObject", place), ("kms:GenerateDataKey", KEY)}
    if operation == "CopyObject":
        bucket, _, key = given["CopySource"].partition("/")
        origin = permissions_in_s3("GetObject", {"Bucket": bucket, "Key": key})
        return origin | permissions_in_s3("PutObject", given)
    if operation == "ListObjectsV2":
        return {("s3:ListBucket", s3_arn(given["Bucket"]))}
    assert operation == "DeleteObject", operation
    return {("s3:DeleteObject", place)}


def permissions_of_role(operation: str, given: dict[str, Any]) -> Asked:
    """What SageMaker does under the model's role for what was created."""
    if operation == "CreateModel":
        container = given["PrimaryContainer"]
        registry, _, image = container["Image"].partition("/")
        repository = f"arn:aws:ecr:{REGION}:{registry[:12]}:repository/{image.partition(':')[0]}"
        folder = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        model = container.get("ModelDataUrl") or f"{folder}weights"
        return {("ecr:BatchGetImage", repository), ("s3:GetObject", s3_arn(model))}
    if operation == "CreateEndpointConfig":
        output = given.get("AsyncInferenceConfig", {}).get("OutputConfig", {})
        folders = [output[name] for name in ("S3OutputPath", "S3FailurePath") if name in output]
        return {("s3:PutObject", s3_arn(f"{folder}an-answer.out")) for folder in folders}
    if operation == "CreateTransformJob":
        source = given["TransformInput"]["DataSource"]["S3DataSource"]["S3Uri"]
        target = given["TransformOutput"]["S3OutputPath"]
        return {
            ("s3:ListBucket", s3_arn(source.split("/")[2])),
            ("s3:GetObject", s3_arn(f"{source}a.txt")),
            ("s3:PutObject", s3_arn(f"{target}a.txt.out")),
        }
    if operation == "InvokeEndpointAsync":
        return {("s3:GetObject", s3_arn(given["InputLocation"]))}
    return set()


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, dict[str, Any]]]:
    """Every call to AWS, with its arguments."""
    answer, asked = BaseClient._make_api_call, []

    def note(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        asked.append((operation, arguments))
        return answer(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", note)
    return asked


def test_deploying_asks_what_the_policies_allow_and_no_more(
    uncompressed, good, calls, capsys, monkeypatch
):
    """By AWS's reference: endpoints, asynchronous ones, transforms, also stopped, the registry."""
    trained(uncompressed).output_data_config["KmsKeyId"] = KEY
    for bucket in ("texts", "answers"):
        uncompressed.client("s3").create_bucket(Bucket=bucket)
    uncompressed.client("s3").put_object(Bucket="texts", Key="new/part-1.txt", Body=b"x")
    transform = ("s3://texts/new/part-", "s3://answers/new/")
    calls.clear()

    assert run("deploy", "--async") == 0
    (location,) = re.findall(r"--input-location (\S+)FILE;", capsys.readouterr().out)
    runtime = uncompressed.client("sagemaker-runtime")
    runtime.invoke_endpoint(EndpointName=JOB, Body=b"x")
    runtime.invoke_endpoint_async(EndpointName=JOB, InputLocation=f"{location}a.txt")
    assert run("undeploy") == 0 and run("register", "--yes") == 0
    monkeypatch.setattr("time.sleep", interrupt)
    busy = {"TransformJobStatus": "InProgress"}
    answers = {"DescribeTransformJob": [ABSENT, busy, busy], "StopTransformJob": {}}
    transform_calls = record(monkeypatch, **answers)
    assert run("deploy", "--transform", *transform) == 130
    calls += [(operation, transform_calls[operation]) for operation in answers]

    sender = f"arn:aws:sts::{ACCOUNT}:user/moto"  # as moto answers GetCallerIdentity
    given = facts(good, transform=transform, senders=(sender,))
    policy = template.policy(given, "deployer")
    asked = set().union(*(permissions_of(*call) for call in calls))
    assert denied(policy, asked) == set()
    for action in {need.action for need in table.needs(given, "deployer")}:
        assert {one for one, _ in denied(without(policy, action), asked)} == {action}
    of_role = set().union(*(permissions_of_role(*call) for call in calls))
    assert {action.partition(":")[0] for action, _ in of_role} == {"ecr", "s3"}
    assert denied(template.policy(given, "endpoint"), of_role) == set()
    assert denied(template.policy(facts(good), "endpoint"), of_role) == {
        (action, arn) for action, arn in of_role if ":texts" in arn or ":answers" in arn
    }


@pytest.mark.parametrize(
    "options",
    [
        deploy_plan.Options(),
        deploy_plan.Options(asynchronous=True),
        deploy_plan.Options(transform=("s3://language-id/", "s3://language-id/answers/")),
        None,
    ],
    ids=["endpoint", "asynchronous", "transform", "registered"],
)
def test_a_deployment_is_asked_what_it_needs_and_no_more(account, calls, monkeypatch, options):
    """Of who deploys: each action is asked for by what is called until all is removed again."""
    group = "language-id" if options is None else ""
    planned = deploy_plan.plan(JOB, REGION, options or deploy_plan.Options())
    asking = deploy_check.context(planned)
    needed = table.needs(deploy_check.facts(planned, asking, group), table.DEPLOYER)
    calls.clear()
    if group:
        assert run("register", "--yes") == 0
    elif options.transform:
        monkeypatch.setattr("time.sleep", interrupt)
        busy = {"TransformJobStatus": "InProgress"}
        answers = {"DescribeTransformJob": [ABSENT, busy, busy], "StopTransformJob": {}}
        seen = record(monkeypatch, **answers)
        assert run("deploy", "--transform", *options.transform) == 130
        calls += [(operation, seen[operation]) for operation in answers]
    else:
        runtime = account.client("sagemaker-runtime")
        assert run("deploy", *(["--async"] if options.asynchronous else [])) == 0
        if options.asynchronous:
            runtime.invoke_endpoint_async(EndpointName=JOB, InputLocation="s3://language-id/a")
        else:
            runtime.invoke_endpoint(EndpointName=JOB, Body=b"x")
        assert run("undeploy") == 0
    called = {action for call in calls for action, _ in permissions_of(*call)}
    unencrypted = {"kms:Decrypt", "kms:GenerateDataKey"}  # the fixture's job has no key
    after_failure = {"s3:DeleteObject"} if group else set()
    required = {need.action for need in needed}
    assert required - after_failure <= called and called - unencrypted <= required


def facts(job: Job, **options: Any) -> table.Facts:
    encrypted = job.replace(request={"OutputDataConfig": {"KmsKeyId": KEY}})
    return template.facts(encrypted, PROJECT, account=ACCOUNT, partition="aws", **options)


def denied(policy: dict[str, Any], asked: Asked) -> Asked:
    context = {"iam:PassedToService": ["sagemaker.amazonaws.com"]}
    return {pair for pair in asked if evaluate([policy], *pair, context).decision != ALLOWED}


GROUPS = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:model-package-group"


def test_a_version_goes_to_the_group_of_an_arn(account, capsys, monkeypatch):
    """CreateModelPackage's ModelPackageGroupName is a name or an ARN (ArnOrName)."""
    group = f"{GROUPS}/words"
    request = {"ModelPackageGroupArn": group, "ModelPackageGroupStatus": "Completed"}
    version = {"ModelPackageArn": f"{group.replace('-group/', '/')}/1"}
    asked = record(
        monkeypatch, DescribeModelPackageGroup=lambda _: request, CreateModelPackage=version
    )
    assert run("register", "--group", group, "--yes") == 0
    assert asked["CreateModelPackage"]["ModelPackageGroupName"] == group
    assert "CreateModelPackageGroup" not in asked and version["ModelPackageArn"] in (
        capsys.readouterr().out
    )
    resources = {arn for arn in asked["SimulatePrincipalPolicy"]["ResourceArns"]}
    assert not any("model-package-group/arn:" in arn for arn in resources)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (f"{GROUPS}/none", "does not exist"),
        (f"{GROUPS.replace(REGION, 'eu-west-1')}/words", f"no model package group of {REGION}"),
        (f"{GROUPS.replace('-group', '')}/words", "no model package group"),
        ("x" * 64, "give a name of at most 63"),
        ("a b", "give a name of at most 63"),
    ],
)
def test_a_group_that_is_none_is_an_error_first(account, capsys, monkeypatch, group, said):
    absent = {
        "Code": "ValidationException",
        "Message": f"ModelPackageGroup {group} does not exist.",
    }
    refusal = ClientError({"Error": absent}, "DescribeModelPackageGroup")
    asked = record(monkeypatch, DescribeModelPackageGroup=refusal)
    assert run("register", "--group", group, "--yes") == 1
    assert said in capsys.readouterr().err and "PutObject" not in asked


def test_the_permissions_of_a_group_by_arn_are_on_that_arn(account):
    planned = deploy_plan.plan(JOB, REGION, deploy_plan.Options())
    asking = deploy_check.context(planned)
    other = f"{GROUPS.replace(ACCOUNT, '111122223333')}/words"
    for group, own in ((other, False), ("words", True)):
        given = deploy_check.facts(planned, asking, group)
        needed = {need.action: [*need.resources] for need in table.needs(given, table.DEPLOYER)}
        arn = f"{GROUPS}/words" if own else other
        version = arn.replace("model-package-group", "model-package")
        assert needed["sagemaker:DescribeModelPackageGroup"] == [arn]
        assert needed["sagemaker:CreateModelPackage"] == [arn, f"{version}/*"]
        assert ("sagemaker:CreateModelPackageGroup" in needed) == own


def test_a_version_has_the_members_of_create(account, monkeypatch, tmp_path):
    asked, file = record(monkeypatch), tmp_path / "job.toml"
    approved = '[create.ModelPackage]\nModelApprovalStatus = "Approved"\n'
    assert run("register", "--yes", *created(file, approved + 'Domain = "NATURAL"')) == 0
    request = asked["CreateModelPackage"]
    assert (request["ModelApprovalStatus"], request["Domain"]) == ("Approved", "NATURAL")


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ('ModelApprovalStatus = "Aproved"', "did you mean Approved?"),
        ('ModelPackageGroupName = "x"', "the command sets it itself"),
    ],
)
def test_a_wrong_member_of_a_version_is_an_error(account, capsys, tmp_path, member, said):
    options = created(tmp_path / "job.toml", f"[create.ModelPackage]\n{member}\n")
    assert run("register", "--yes", *options) == 1
    assert said in capsys.readouterr().err and stored(account) == {"model.tar.gz"}


def test_a_cleanup_that_fails_does_not_hide_why_a_version_was_rejected(
    account, capsys, monkeypatch
):
    record(
        monkeypatch,
        CreateModelPackage=refused("CreateModelPackage"),
        DeleteObject=refused("DeleteObject"),
    )
    assert run("register", "--yes") == 1
    left_over, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and "CreateModelPackage" in error
    assert "DeleteObject" in left_over and "aws s3 rm" in left_over
