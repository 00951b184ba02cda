"""deploy creates an endpoint of a finished job's model, undeploy removes it: boto3 with moto."""

import contextlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from moto.sagemaker.models import sagemaker_backends

from moto_account import ACCOUNT, REGION, record, refusal
from sent_job import archive, train
from small_job import PROJECT
from smlightning.errors import UserError
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import model_archive

pytest_plugins = ("moto_account", "sent_job")

JOB = "language-id-20260101-000000"
TRAINED = f"{JOB}/output/model.tar.gz"
IMAGES = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
TAGS = [{"Key": "project", "Value": "language-id"}]


AWS_IMAGE = f"{IMAGES}/pytorch:2.13-cu133-amzn2023-sagemaker"
NETWORK = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}


@pytest.fixture
def account(aws: boto3.Session) -> boto3.Session:
    """An account with a finished job and its model."""
    files = [(name, tarfile.REGTYPE, b"") for name in ("config.json", "code/old.py")]
    aws.client("s3").put_object(Bucket="language-id", Key=TRAINED, Body=archive(*files))
    train(aws, JOB, AWS_IMAGE, VpcConfig=NETWORK, Tags=TAGS)
    return aws


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
    """The status of a command for JOB; with ``asked`` it asks whether to go on."""
    yes = ["--yes"] if words[0] == "deploy" and not asked else []
    return main([words[0], JOB, "--region", REGION, *words[1:], *yes])


@pytest.mark.parametrize(
    ("instance", "image", "ami"),
    [
        ("ml.m5.xlarge", "ray:serve-ml-sagemaker-cpu-v1", None),
        ("ml.g4dn.xlarge", "ray:serve-ml-sagemaker-cuda-v1", "al2-ami-sagemaker-inference-gpu-3-1"),
    ],
)
def test_deploy_creates_an_endpoint_and_undeploy_removes_it(
    account, capsys, monkeypatch, instance, image, ami
):
    asked = record(monkeypatch)
    assert run("deploy", "--instance", instance, "--count", "2") == 0
    (variant,) = asked["CreateEndpointConfig"]["ProductionVariants"]
    assert variant.get("InferenceAmiVersion") == ami
    said = capsys.readouterr().out
    assert f"cost    2 × {instance}" in said and f"--endpoint-name {JOB} " in said
    client = account.client("sagemaker")
    made = client.describe_model(ModelName=JOB)
    container = made["PrimaryContainer"]
    assert container["Image"] == f"{IMAGES}/{image}"
    assert made["VpcConfig"] == NETWORK
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
    assert run("deploy") == 1 and "is deployed already" in capsys.readouterr().err
    assert left(account) == before, "what answers stays"
    assert (
        run("undeploy") == 0
        and "removed Endpoint, EndpointConfig, Model" in capsys.readouterr().out
    )
    assert left(account) == []
    assert run("undeploy") == 1 and "removed nothing: " in capsys.readouterr().out


def test_an_uncompressed_model_is_deployed_as_a_folder(account, monkeypatch):
    job = sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB]
    job.output_data_config |= {"CompressionType": "NONE", "KmsKeyId": "alias/mine"}
    folder = f"{JOB}/output/model/"
    job.model_artifacts = {"S3ModelArtifacts": f"s3://language-id/{folder}"}
    s3 = account.client("s3")
    s3.put_object(Bucket="language-id", Key=f"{folder}config.json", Body=b"{}")
    asked = record(monkeypatch)
    assert run("deploy") == 0
    assert asked["PutObject"]["SSEKMSKeyId"] == "alias/mine"
    source = asked["CreateModel"]["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    place = f"{JOB}/output/deploy/{JOB}/"
    assert source["S3Uri"] == f"s3://language-id/{place}"
    listed = s3.list_objects_v2(Bucket="language-id", Prefix=place)["Contents"]
    names = {item["Key"].removeprefix(place) for item in listed}
    assert {"config.yaml", "trained/config.json", "code/predict.py"} <= names
    assert run("undeploy") == 0 and left(account) == []


@pytest.mark.parametrize(("base", "fits"), [("bert-base-uncased", True), ("/opt/ml/a", False)])
def test_an_adapter_needs_a_base_model_that_an_endpoint_can_load(tmp_path, base, fits):
    (tmp_path / "trained").mkdir()
    config = tmp_path / "trained" / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": base}), encoding="utf-8")
    with contextlib.nullcontext() if fits else pytest.raises(UserError, match=base):
        model_archive.add_code(tmp_path, PROJECT.src)


def refused(operation: str) -> ClientError:
    return ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, operation)


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


ABSENT = ClientError(
    {"Error": {"Code": "ValidationException", "Message": "Could not find it"}}, "Describe"
)
FAILED = {"EndpointStatus": "Failed", "FailureReason": "no capacity"}


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        ("CreateModel", refused("CreateModel")),
        ("CreateEndpointConfig", refused("CreateEndpointConfig")),
        ("CreateEndpoint", refused("CreateEndpoint")),
        ("CreateEndpoint", interrupt),
        ("DescribeEndpoint", [ABSENT, FAILED, FAILED]),
    ],
)
def test_a_step_that_fails_leaves_nothing(account, capsys, monkeypatch, operation, answer):
    asked = record(monkeypatch, **{operation: answer})
    assert run("deploy") != 0
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
    command = f"smlightning undeploy {JOB}"
    assert f"billed until you run {command}" in capsys.readouterr().out


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


def test_a_job_without_a_usable_model_is_an_error(account, capsys):
    train(account, "own", "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1")
    account.client("s3").put_object(Bucket="language-id", Key="own/output/model.tar.gz", Body=b"x")
    assert main(["deploy", "own", "--region", REGION]) == 1
    assert "own trained in mine:1, not in AWS's image" in capsys.readouterr().err
    # The file there is not an archive.
    assert main(["deploy", "own", "--region", REGION, "--image", "x", "--yes"]) == 1
    assert "the archive cannot be unpacked" in capsys.readouterr().err
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].enable_network_isolation = True
    assert run("deploy") == 1 and "ran with network isolation" in capsys.readouterr().err
    sagemaker_backends[ACCOUNT][REGION].training_jobs[JOB].training_job_status = "Failed"
    assert (
        run("deploy") == 1
        and f"{JOB} is Failed and has no model.tar.gz in S3" in capsys.readouterr().err
    )
    assert left(account) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--count", "0"), "InitialInstanceCount: 0, and AWS requires 1"),
        (("--instance", "ml.m5.xlagre"), "InstanceType: .*did you mean ml.m5.xlarge?"),
        (("--instance", "ml.c7g.xlarge"), "--instance ml.c7g.xlarge has a"),
    ],
)
def test_wrong_options_end_before_anything_is_created(account, capsys, monkeypatch, options, said):
    asked = record(monkeypatch)
    assert run("deploy", *options) == 1
    assert re.search(said, capsys.readouterr().err)
    assert asked.keys() <= {"DescribeTrainingJob", "ListObjectsV2", "ListTags"}


def test_deploy_asks_whether_the_price_is_right(account, capsys, monkeypatch):
    terms = {"OnDemand": {"x": {"priceDimensions": {"y": {"pricePerUnit": {"USD": "0.23"}}}}}}
    product = {"product": {"attributes": {"platoinstancetype": "Hosting"}}, "terms": terms}
    asked = record(monkeypatch, GetProducts={"PriceList": [json.dumps(product)]})
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run("deploy", "--count", "2", asked=True) == 1
    assert "2 × ml.m5.xlarge, 0.46 USD an hour, until you undeploy it" in capsys.readouterr().out
    assert "PutObject" not in asked and left(account) == []
    assert run("deploy") == 0


def test_undeploy_removes_only_what_deploy_created(account, capsys):
    client, role = account.client("sagemaker"), f"arn:aws:iam::{ACCOUNT}:role/training"
    variant = {"VariantName": "a", "ModelName": "other", "InstanceType": "ml.m5.xlarge"}
    client.create_model(ModelName="other", ExecutionRoleArn=role, PrimaryContainer={"Image": "x"})
    variant["InitialInstanceCount"] = 1
    client.create_endpoint_config(EndpointConfigName=JOB, ProductionVariants=[variant])
    before = left(account)
    assert run("undeploy") == 1 and "was not made by deploy" in capsys.readouterr().err
    assert run("deploy") == 1 and "is deployed already" in capsys.readouterr().err
    assert left(account) == before == [JOB, "other"]


def test_a_deployment_by_somebody_else_meanwhile_stays(account, capsys, monkeypatch):
    """Both found the name free; the second one's CreateModel fails."""
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
        ("EndpointConfig.EndpointConfigName = 'x'", "the command sets it itself; remove it"),
        ("EndpointConfig.ProductionVariants = []", "the command sets it itself; remove it"),
        ("Endpointconfig.KmsKeyId = 'x'", "did you mean EndpointConfig?"),
        ("= 3", "is not TOML"),
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


def test_a_secret_in_create_is_an_error_before_anything_is_created(
    account, capsys, monkeypatch, tmp_path
):
    words = ["deploy", *created(tmp_path / "job.toml", f"{OF_MODEL} = 's3cr3t-s3cr3t'\n")]
    asked = record(monkeypatch)
    assert run(*words) == 1
    assert f"error   {OF_MODEL}: " in capsys.readouterr().err
    assert not {"PutObject", "CreateModel"} & asked.keys()
    assert run(*words, "--accept", OF_MODEL) == 0


def test_a_cleanup_that_fails_does_not_hide_why_it_was_needed(account, capsys, monkeypatch):
    upload = refusal("SlowDown", "PutObject")
    record(monkeypatch, PutObject=upload, DescribeModel=[ABSENT, refused("DescribeModel")])
    assert run("deploy") == 1
    left_over, error = capsys.readouterr().err.splitlines()
    assert "PutObject" in error and error.startswith("error: ")
    assert f"undeploy {JOB} --region {REGION}" in left_over and "DescribeModel" in left_over
