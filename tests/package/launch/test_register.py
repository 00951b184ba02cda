"""A job's model in the registry, uncompressed models, and what deploying needs of IAM."""

import pytest
from moto.sagemaker.models import sagemaker_backends
from moto_account import ACCOUNT, REGION, record
from test_deploy import IMAGES, JOB, account, left, refused, run

from smlightning.launch import fetch
from smlightning.launch.account import table

__all__ = ["account"]  # a fixture


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


def test_a_key_that_leads_out_of_the_folder_is_refused(uncompressed, capsys, tmp_path, monkeypatch):
    key = f"{JOB}/output/model/../../evil"
    monkeypatch.setattr(fetch, "all_objects", lambda *_: iter([{"Key": key, "Size": 1}]))
    assert run("fetch", "--to", str(tmp_path / "x" / "y")) == 1
    assert "would be written outside" in capsys.readouterr().err
    assert not list(tmp_path.rglob("evil"))


def test_every_call_of_deploying_is_in_the_table(account, monkeypatch):
    asked = record(monkeypatch)
    assert run("deploy") == 0 and run("undeploy") == 0 and run("register", "--yes") == 0
    allowed = {line.action for line in table.DEPLOYMENT if line.who == table.DEPLOYER}
    called = {name for name in asked if name not in {"GetProducts", "ListObjectsV2"}}
    named = {action.partition(":")[2] for action in allowed}
    assert called - {"HeadObject", "ListBuckets", "GetCallerIdentity"} <= named
