"""A finished job's model is deployed, and what was made is removed: boto3 against moto."""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from moto import mock_aws
from moto.sagemaker.models import sagemaker_backends
from moto_account import ACCOUNT, REGION, TRUST, record, refusal, simulated
from sagemaker import image_uris

from smlightning.__main__ import main

JOB = "language-id-20260101-000000"
TRAINED = f"{JOB}/output/model.tar.gz"
IMAGES = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
LINES, PLAIN = "application/jsonlines", "text/plain"
TAGS = [{"Key": "project", "Value": "language-id"}]


QUOTAS = [
    {"QuotaName": f"{instance} for {use} usage", "Value": 4.0}
    for instance in ("ml.m5.xlarge", "ml.g4dn.xlarge", "ml.g5.xlarge")
    for use in ("endpoint", "transform job")
]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[boto3.Session]:
    """An account with a finished job, its model and its role."""
    record(
        monkeypatch,
        SimulatePrincipalPolicy=simulated(),
        ListServiceQuotas={"Quotas": []},  # of an account that has asked for no more
        ListAWSDefaultServiceQuotas={"Quotas": QUOTAS},
    )
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    monkeypatch.setattr("time.sleep", lambda _: None)
    with mock_aws():
        session = boto3.Session(region_name=REGION)
        session.client("s3").create_bucket(Bucket="language-id")
        policy = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
        session.client("iam").create_role(RoleName="training", AssumeRolePolicyDocument=policy)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name in ("config.json", "code/old.py"):
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        session.client("s3").put_object(Bucket="language-id", Key=TRAINED, Body=packed.getvalue())
        train(session, JOB)
        yield session


def train(
    session: boto3.Session,
    name: str,
    image: str = f"{IMAGES}/pytorch:2.13-cu133-amzn2023-sagemaker",
) -> None:
    session.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/training",
        AlgorithmSpecification={"TrainingImage": image, "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://language-id/"},
        ResourceConfig={
            "InstanceType": "ml.p4d.24xlarge",
            "InstanceCount": 2,
            "VolumeSizeInGB": 100,
        },
        VpcConfig={"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
        Tags=TAGS,
    )


def left(session: boto3.Session) -> list[str]:
    """Everything in the account that a deployment may have made."""
    made = session.client("sagemaker")
    found = [item["EndpointName"] for item in made.list_endpoints()["Endpoints"]]
    found += [
        item["EndpointConfigName"] for item in made.list_endpoint_configs()["EndpointConfigs"]
    ]
    found += [item["ModelName"] for item in made.list_models()["Models"]]
    keys = [
        item["Key"]
        for item in session.client("s3").list_objects_v2(Bucket="language-id")["Contents"]
    ]
    return found + [key for key in keys if "deploy" in key]


def run(*words: str, asked: bool = False) -> int:
    """The command of a job; what it asks for is agreed to, unless it is to be asked."""
    yes = ["--yes"] if words[0] == "deploy" and not asked else []
    return main([words[0], JOB, "--region", REGION, *words[1:], *yes])


def sdk_image(instance: str) -> str:
    """The newest image for inference that the SDK knows."""
    choice = {"version": "2.6.0", "py_version": "py312", "instance_type": instance}
    return str(image_uris.retrieve("pytorch", REGION, image_scope="inference", **choice))


@pytest.mark.parametrize(
    ("instance", "image", "ami"),
    [
        ("ml.m5.xlarge", "ray:serve-ml-sagemaker-cpu-v1", None),
        ("ml.g4dn.xlarge", "ray:serve-ml-sagemaker-cuda-v1", "al2-ami-sagemaker-inference-gpu-3-1"),
    ],
)
def test_an_endpoint_is_made_and_removed(account, capsys, monkeypatch, instance, image, ami):
    asked = record(monkeypatch)
    assert run("deploy", "--instance", instance, "--count", "2") == 0
    (variant,) = asked["CreateEndpointConfig"]["ProductionVariants"]
    assert variant.get("InferenceAmiVersion") == ami
    said = capsys.readouterr().out
    assert "warning" not in said
    assert f"cost    2 × {instance}" in said and f"--endpoint-name {JOB} " in said
    client = account.client("sagemaker")
    made = client.describe_model(ModelName=JOB)
    container = made["PrimaryContainer"]
    assert (
        container["Image"] == f"{IMAGES}/{image}"
        and container["Environment"]["SAGEMAKER_PROGRAM"] == "predict.py"
    )
    assert made["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert client.list_tags(ResourceArn=made["ModelArn"])["Tags"] == TAGS
    (variant,) = client.describe_endpoint_config(EndpointConfigName=JOB)["ProductionVariants"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"], variant["ModelName"]) == (
        instance,
        2,
        JOB,
    )
    assert client.describe_endpoint(EndpointName=JOB)["EndpointStatus"] == "InService"
    body = account.client("s3").get_object(
        Bucket="language-id", Key=container["ModelDataUrl"].split("/", 3)[3]
    )["Body"]
    with tarfile.open(fileobj=io.BytesIO(body.read())) as tar:
        names = {name.removeprefix("./") for name in tar.getnames()}
    assert {
        "config.yaml",
        "trained/config.json",
        "code/predict.py",
        "code/requirements.txt",
        "code/smlightning/serving.py",
    } <= names
    assert not {
        name for name in names if name in ("code/train.py", "code/old.py") or "__pycache__" in name
    }

    before = left(account)
    assert run("deploy") == 1 and "is deployed already; remove it first" in capsys.readouterr().err
    assert left(account) == before, "what answers stays"
    assert (
        run("undeploy") == 0
        and "removed Endpoint, EndpointConfig, Model" in capsys.readouterr().out
    )
    assert left(account) == []
    assert run("undeploy") == 1 and "removed nothing: " in capsys.readouterr().out


def test_a_serverless_endpoint_gets_the_memory_that_the_model_needs(account, capsys, monkeypatch):
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].vpc_config = None
    assert run("deploy", "--serverless") == 0
    said = capsys.readouterr().out
    assert "nothing while nobody asks, 3 GB by the second" in said
    assert "AWS patches pytorch-inference:2.6.0-cpu-py312 no more since 2026-06-30" in said
    (variant,) = account.client("sagemaker").describe_endpoint_config(EndpointConfigName=JOB)[
        "ProductionVariants"
    ]
    assert variant["ServerlessConfig"] == {"MemorySizeInMB": 3072, "MaxConcurrency": 5}
    container = account.client("sagemaker").describe_model(ModelName=JOB)["PrimaryContainer"]
    assert container["Image"] == sdk_image("ml.m5.xlarge")
    assert container["Environment"]["SAGEMAKER_MODEL_SERVER_WORKERS"] == "1"
    record(monkeypatch, ListObjectsV2={"Contents": [{"Key": TRAINED, "Size": 2 * 2**30 + 1}]})
    assert run("deploy", "--serverless") == 1
    assert (
        "needs some 7 GB, and a serverless endpoint has 6; use an instance"
        in capsys.readouterr().err
    )


def test_an_asynchronous_endpoint_writes_beside_the_model(account, capsys, monkeypatch):
    asked = record(monkeypatch)
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].output_data_config["KmsKeyId"] = (
        "alias/mine"
    )
    assert run("deploy", "--async") == 0
    said = capsys.readouterr().out
    assert "invoke-endpoint-async" in said and "until you undeploy it" in said
    output = asked["CreateEndpointConfig"]["AsyncInferenceConfig"]["OutputConfig"]
    beside = f"s3://language-id/{JOB}/output"
    assert output == {
        "S3OutputPath": f"{beside}/answers/",
        "S3FailurePath": f"{beside}/failures/",
        "KmsKeyId": "alias/mine",
    }
    environment = asked["CreateModel"]["PrimaryContainer"]["Environment"]
    assert environment["RAYSERVE_BACKEND_TIMEOUT"] == "3600"
    assert run("undeploy") == 0 and left(account) == []


@pytest.mark.parametrize(("file", "kind"), [("in/a.jsonl", LINES), ("in/a.txt", PLAIN)])
def test_a_batch_transform_leaves_its_answers_alone(account, capsys, monkeypatch, file, kind):
    account.client("s3").put_object(Bucket="language-id", Key=file, Body=b"x")
    asked = record(monkeypatch)
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].output_data_config["KmsKeyId"] = (
        "alias/mine"
    )
    assert run("deploy", "--transform", "s3://language-id/in/", "s3://language-id/out/") == 0
    encrypted = asked["PutObject"]["ServerSideEncryption"], asked["PutObject"]["SSEKMSKeyId"]
    assert encrypted == ("aws:kms", "alias/mine")
    assert asked["CreateTransformJob"]["TransformOutput"]["KmsKeyId"] == "alias/mine"
    assert "answers s3://language-id/out/" in capsys.readouterr().out
    made = asked["CreateTransformJob"]
    assert (
        made["TransformInput"]["ContentType"] == kind and made["TransformOutput"]["Accept"] == LINES
    )
    assert (
        made["ModelName"] == asked["CreateModel"]["ModelName"] != JOB
        and len(made["TransformJobName"]) <= 63
    )
    assert left(account) == [], "model and archive serve the transform alone"
    assert run("deploy", "--transform", "s3://language-id/nothing/", "s3://language-id/out/") == 1
    assert "there is no data at s3://language-id/nothing/" in capsys.readouterr().err


def refused(operation: str) -> ClientError:
    return ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, operation)


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


ABSENT = ClientError(
    {"Error": {"Code": "ValidationException", "Message": "Could not find it"}}, "Describe"
)
FAILED = {
    "EndpointStatus": "Failed",
    "TransformJobStatus": "Failed",
    "FailureReason": "no capacity",
}
TRANSFORM = ("--transform", "s3://language-id/language-id", "s3://language-id/out/")


@pytest.mark.parametrize(
    ("operation", "answer", "options"),
    [
        ("CreateModel", refused("CreateModel"), ()),
        ("CreateEndpointConfig", refused("CreateEndpointConfig"), ()),
        ("CreateEndpoint", refused("CreateEndpoint"), ()),
        ("CreateEndpoint", interrupt, ()),
        ("DescribeEndpoint", [ABSENT, FAILED, FAILED], ()),
        ("CreateTransformJob", refused("CreateTransformJob"), TRANSFORM),
        ("DescribeTransformJob", [ABSENT, FAILED, FAILED], TRANSFORM),
    ],
)
def test_a_step_that_fails_leaves_nothing(account, capsys, monkeypatch, operation, answer, options):
    asked = record(monkeypatch, **{operation: answer})
    assert run("deploy", *options) != 0
    assert "PutObject" in asked and left(account) == []
    said = capsys.readouterr().err
    assert f"may not call {operation}" in said or "no capacity" in said or callable(answer)


def test_waiting_outlasts_the_network_and_removing_waits_for_a_start(account, monkeypatch):
    starting, ready = {"EndpointStatus": "Creating"}, {"EndpointStatus": "InService"}
    lost = ConnectTimeoutError(endpoint_url="x")
    answers = [ABSENT, starting, lost, starting, ready]
    record(monkeypatch, DescribeEndpoint=answers)
    assert run("deploy") == 0 and answers == []
    answers += [starting, starting, ready]
    assert run("undeploy") == 0 and answers == []
    assert left(account) == []


def test_ctrl_c_removes_what_was_made_as_soon_as_aws_lets_it(account, capsys, monkeypatch):
    starting, ready, stopped = {"EndpointStatus": "Creating"}, {"EndpointStatus": "InService"}, []
    monkeypatch.setattr(
        "time.sleep", lambda _: stopped.append(1) or (interrupt() if len(stopped) == 1 else None)
    )
    record(monkeypatch, DescribeEndpoint=[ABSENT, starting, starting, starting, ready])
    assert run("deploy") == 130 and left(account) == []
    assert f"billed until: python -m smlightning undeploy {JOB}" in capsys.readouterr().out


def test_ctrl_c_stops_a_transform(account, monkeypatch):
    monkeypatch.setattr("time.sleep", interrupt)
    busy = {"TransformJobStatus": "InProgress"}
    asked = record(monkeypatch, DescribeTransformJob=[ABSENT, busy, busy], StopTransformJob={})
    assert run("deploy", *TRANSFORM) == 130
    assert asked["StopTransformJob"]["TransformJobName"].startswith(JOB) and left(account) == []


@pytest.mark.parametrize(
    ("trained", "registry"),
    [
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror", None),
        ("public.ecr.aws/deep-learning-containers", IMAGES),
    ],
)
def test_a_job_of_a_mirror_is_deployed_from_there(account, monkeypatch, trained, registry):
    """SageMaker hosts no image of the public registry: AWS's own in the region takes its place."""
    train(account, "mirrored", f"{trained}/pytorch:2.13-cu133-amzn2023-sagemaker")
    key = "mirrored/output/model.tar.gz"
    kept = account.client("s3").get_object(Bucket="language-id", Key=TRAINED)["Body"].read()
    account.client("s3").put_object(Bucket="language-id", Key=key, Body=kept)
    asked = record(monkeypatch)
    assert main(["deploy", "mirrored", "--region", REGION, "--yes"]) == 0
    image = asked["CreateModel"]["PrimaryContainer"]["Image"]
    assert image.startswith(f"{registry or trained}/ray:")


def test_a_job_that_cannot_be_deployed_is_refused_in_a_sentence(account, capsys):
    train(account, "own", "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1")
    account.client("s3").put_object(Bucket="language-id", Key="own/output/model.tar.gz", Body=b"x")
    assert main(["deploy", "own", "--region", REGION]) == 1
    assert (
        "own trained in mine:1, not in AWS's image; name one for inference"
        in capsys.readouterr().err
    )
    # What is there is no archive.
    assert main(["deploy", "own", "--region", REGION, "--image", "x", "--yes"]) == 1
    assert "the archive cannot be unpacked" in capsys.readouterr().err
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].enable_network_isolation = True
    assert run("deploy") == 1 and "ran isolated" in capsys.readouterr().err
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].training_job_status = "Failed"
    assert (
        run("deploy") == 1
        and f"{JOB} is Failed and has no model.tar.gz in S3" in capsys.readouterr().err
    )
    assert left(account) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--count", "0"), "--count 0 is not a number of instances"),
        (
            ("--instance", "ml.m5.xlagre"),
            "--instance ml.m5.xlagre is not known .*; did you mean ml.m5.xlarge?",
        ),
        (("--transform", "s3://language-id/in", "out"), "--transform out is not an S3 address"),
        (("--serverless", "--count", "3"), "--serverless takes no --instance and no --count"),
        (("--instance", "ml.c7g.xlarge"), "--instance ml.c7g.xlarge is Graviton"),
        (("--serverless",), "ran in a VPC or isolated, and serverless endpoints cannot"),
    ],
)
def test_what_no_deployment_takes_is_refused_first(account, capsys, monkeypatch, options, said):
    asked = record(monkeypatch)
    assert run("deploy", *options) == 1
    assert re.search(said, capsys.readouterr().err) and asked.keys() <= {"DescribeTrainingJob"}


def test_the_price_is_said_and_confirmed_first(account, capsys, monkeypatch):
    terms = {"OnDemand": {"x": {"priceDimensions": {"y": {"pricePerUnit": {"USD": "0.23"}}}}}}
    product = {"product": {"attributes": {"platoinstancetype": "Hosting"}}, "terms": terms}
    asked = record(monkeypatch, GetProducts={"PriceList": [json.dumps(product)]})
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run("deploy", "--count", "2", asked=True) == 1
    assert "2 × ml.m5.xlarge, 0.46 USD an hour, until you undeploy it" in capsys.readouterr().out
    assert "PutObject" not in asked and left(account) == []
    assert run("deploy") == 0


def test_what_somebody_else_made_under_the_name_stays(account, capsys):
    client, role = account.client("sagemaker"), f"arn:aws:iam::{ACCOUNT}:role/training"
    client.create_model(ModelName="other", ExecutionRoleArn=role, PrimaryContainer={"Image": "x"})
    variant = {
        "VariantName": "a",
        "ModelName": "other",
        "InstanceType": "ml.m5.xlarge",
        "InitialInstanceCount": 1,
    }
    client.create_endpoint_config(EndpointConfigName=JOB, ProductionVariants=[variant])
    before = left(account)
    assert run("deploy") == 1 and "is deployed already" in capsys.readouterr().err
    assert left(account) == before == [JOB, "other"]


def test_nothing_is_removed_that_deploy_did_not_create(account, capsys, monkeypatch):
    """What has the name, and no model of deploy's, is somebody else's."""
    client, role = account.client("sagemaker"), f"arn:aws:iam::{ACCOUNT}:role/training"
    variant = {"VariantName": "a", "ModelName": "other", "InstanceType": "ml.m5.xlarge"}
    client.create_model(ModelName="other", ExecutionRoleArn=role, PrimaryContainer={"Image": "x"})
    variant["InitialInstanceCount"] = 1
    client.create_endpoint_config(EndpointConfigName=JOB, ProductionVariants=[variant])
    before = left(account)
    assert run("undeploy") == 1 and "was not made by deploy" in capsys.readouterr().err
    assert left(account) == before
    client.delete_endpoint_config(EndpointConfigName=JOB)
    busy = {"TransformJobStatus": "InProgress"}
    asked = record(monkeypatch, DescribeTransformJob=lambda _: busy, StopTransformJob={})
    assert run("undeploy") == 1 and "StopTransformJob" not in asked


def test_what_somebody_else_deploys_meanwhile_stays(account, capsys, monkeypatch):
    """Both have asked whether the name is free; the second one's CreateModel is refused."""
    assert run("deploy") == 0
    theirs = left(account)
    taken = {"Code": "ValidationException", "Message": 'Cannot create already existing model "x".'}
    asked = dict.fromkeys(("DescribeModel", "DescribeEndpointConfig", "DescribeEndpoint"), ABSENT)
    record(monkeypatch, CreateModel=ClientError({"Error": taken}, "CreateModel"), **asked)
    capsys.readouterr()
    assert run("deploy") == 1 and "already existing" in capsys.readouterr().err
    assert left(account) == theirs and len(theirs) > 3


def test_an_archive_that_could_not_be_deleted_goes_with_the_next_undeploy(account, monkeypatch):
    assert run("deploy") == 0
    with monkeypatch.context() as denied:
        record(denied, DeleteObject=refusal("AccessDenied", "DeleteObject"))
        assert run("undeploy") == 1
    assert JOB in left(account), "the model, which names the archive"
    assert run("undeploy") == 0 and left(account) == []


def test_what_the_account_does_not_allow_is_said_before_anything_is_made(
    account, capsys, monkeypatch
):
    """Who deploys is refused; of the model's role a resource's own policy may allow it."""
    denied = simulated("sagemaker:CreateEndpoint", "ecr:BatchGetImage")
    asked = record(monkeypatch, SimulatePrincipalPolicy=denied)
    assert run("deploy", "--instance", "ml.m5.xlarge") == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error   deployer.sagemaker:CreateEndpoint: ")
    assert second.startswith("warning endpoint.ecr:BatchGetImage: training may not ecr:Batch")
    assert left(account) == [] and not {"PutObject", "CreateModel"} & asked.keys()
    accepted = ("--accept", "deployer.sagemaker:CreateEndpoint")
    assert run("deploy", *accepted) == 0 and run("undeploy") == 0
    assert "warning deployer.sagemaker:CreateEndpoint" in capsys.readouterr().err

    refused_version = simulated("sagemaker:CreateModelPackage", "sagemaker:CreateEndpoint")
    record(monkeypatch, SimulatePrincipalPolicy=refused_version)
    assert run("register", "--yes") == 1
    (only,) = capsys.readouterr().err.splitlines()
    assert only.startswith("error   deployer.sagemaker:CreateModelPackage: ")


@pytest.mark.parametrize("options", [[], ["--transform", "s3://language-id/", "s3://language-id/"]])
def test_more_hosts_than_the_quota_are_refused(account, capsys, options):
    assert run("deploy", "--instance", "ml.g5.xlarge", "--count", "5", *options) == 1
    use = "transform job" if options else "endpoint"
    said = capsys.readouterr().err
    assert f'error   --count: 5 is above the quota "ml.g5.xlarge for {use} usage", 4' in said
    assert left(account) == []


def test_a_role_that_is_gone_is_named(account, capsys):
    account.client("iam").delete_role(RoleName="training")
    assert run("deploy") == 1
    assert f"error   role: training, under which {JOB} ran, is gone" in capsys.readouterr().err


def test_what_may_not_be_asked_is_skipped(account, capsys, monkeypatch):
    names = ("GetRole", "ListServiceQuotas")
    record(monkeypatch, **{name: refusal("AccessDenied", name) for name in names})
    assert run("deploy") == 0 and run("undeploy") == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["skipped permissions", "skipped quota"]


CAPTURE = """
DataCaptureConfig = {
    EnableCapture = true, InitialSamplingPercentage = 100, DestinationS3Uri = "s3://captured/x",
    CaptureOptions = [{ CaptureMode = "Input" }],
}
"""


def created(path: Path, content: str) -> tuple[str, str]:
    """The option that names a job.toml with [create], whose other keys are missing."""
    path.write_text(content, encoding="utf-8")
    return "--job", str(path)


def test_an_endpoint_has_the_members_of_create(account, monkeypatch, tmp_path):
    key = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    capture = " ".join(CAPTURE.split()).replace(", }", " }")
    members = f'[create.EndpointConfig]\nKmsKeyId = "{key}"\n{capture}\n'
    asked = record(monkeypatch)
    assert run("deploy", *created(tmp_path / "job.toml", members)) == 0
    config = asked["CreateEndpointConfig"]
    assert config["KmsKeyId"] == key
    assert config["DataCaptureConfig"]["DestinationS3Uri"] == "s3://captured/x"
    assert config["ProductionVariants"][0]["ModelName"] == JOB and config["Tags"] == TAGS
    assert run("undeploy") == 0
    assert run("deploy", *created(tmp_path / "job.toml", "")) == 0
    assert not {"KmsKeyId", "DataCaptureConfig"} & asked["CreateEndpointConfig"].keys()
    assert run("undeploy") == 0 and left(account) == []


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ("EndpointConfig.KmsKey = 'x'", "create.EndpointConfig.KmsKey: .*did you mean KmsKeyId"),
        ("EndpointConfig.KmsKeyId = 3", "create.EndpointConfig.KmsKeyId: '3' is not a string"),
        ("EndpointConfig.EndpointConfigName = 'x'", "the command sets it itself; remove it"),
        ("EndpointConfig.ProductionVariants = []", "the command sets it itself; remove it"),
        ("EndpointConfig.DataCaptureConfig.EnableCapture = true", "DestinationS3Uri: is missing"),
        ("Model.PrimaryContainer.Image = 'x'", "create.Model.PrimaryContainer.Image: the command"),
        ("Endpointconfig.KmsKeyId = 'x'", "did you mean EndpointConfig?"),
        ("= 3", "is not valid TOML"),
    ],
)
def test_a_wrong_member_of_create_is_an_error_before_anything_is_made(
    account, capsys, monkeypatch, tmp_path, members, said
):
    asked = record(monkeypatch)
    assert run("deploy", *created(tmp_path / "job.toml", f"[create]\n{members}\n")) == 1
    assert re.search(said, capsys.readouterr().err)
    assert not {"PutObject", "CreateModel"} & asked.keys()


OF_MODEL = "create.Model.PrimaryContainer.Environment.DB_PASSWORD"


@pytest.mark.parametrize(
    ("command", "member", "is_created"),
    [
        ("deploy", OF_MODEL, True),
        ("register", OF_MODEL, True),
        ("register", "create.ModelPackage.CustomerMetadataProperties.token", True),
        ("deploy", "create.ModelPackage.CustomerMetadataProperties.token", False),
    ],
)
def test_a_secret_in_create_is_an_error_before_anything_is_made(
    account, capsys, monkeypatch, tmp_path, command, member, is_created
):
    words = [command, *created(tmp_path / "job.toml", f"{member} = 's3cr3t-s3cr3t'\n")]
    if command == "register":
        words.append("--yes")
    asked = record(monkeypatch)
    assert run(*words) == int(is_created)
    assert (f"error   {member}: " in capsys.readouterr().err) == is_created
    if is_created:
        assert not {"PutObject", "CreateModel", "CreateModelPackageGroup"} & asked.keys()
        assert run(*words, "--accept", member) == 0


def test_a_cleanup_that_fails_does_not_hide_why_it_was_needed(account, capsys, monkeypatch):
    upload = refusal("SlowDown", "PutObject")
    record(monkeypatch, PutObject=upload, DescribeModel=[ABSENT, refused("DescribeModel")])
    assert run("deploy") == 1
    left_over, error = capsys.readouterr().err.splitlines()
    assert "PutObject" in error and error.startswith("error: ")
    assert f"undeploy {JOB} --region {REGION}" in left_over and "DescribeModel" in left_over


def test_a_transform_that_ended_well_is_a_success_though_its_model_stays(
    account, capsys, monkeypatch
):
    record(
        monkeypatch,
        DescribeTransformJob=[ABSENT, {"TransformJobStatus": "Completed"}, ABSENT],
        DeleteModel=refused("DeleteModel"),
    )
    assert run("deploy", *TRANSFORM) == 0
    said = capsys.readouterr()
    assert "answers s3://language-id/out/" in said.out and "undeploy" in said.err
