"""Each recipe of docs/recipes.md, run: against moto, botocore's models, and files of trackers."""

import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import boto3
import pytest
from test_estimator import launch_of, run_cell

from checkout import PROJECT as TEMPLATE
from moto_account import REGION, record
from sent_job import train
from small_job import PROJECT
from smlightning_sagemaker.job import request, sending
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.notebook import Launch

pytest_plugins = ("moto_account", "sent_job")

PAGE = (TEMPLATE / "docs/recipes.md").read_text(encoding="utf-8")
NAME = "language-id-20260101-000000"
ROLE = "arn:aws:iam::123456789012:role/training"
LABELS = ["greek", "latin", "cyrillic"]


def recipes(heading: str) -> list[str]:
    """The blocks of Python in a section of the page, with a job's name and values filled in."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.S)
    filled = {"JOB": NAME, "QUEUE": "team", "BUCKET": "language-id", "REGION": REGION, "ROLE": ROLE}
    for word, value in filled.items():
        blocks = [re.sub(rf"\b{word}\b", value, block) for block in blocks]
    return blocks


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run a recipe, and return its names."""
    exec(code, names)  # noqa: S102
    return names


def test_a_recipe_has_at_most_15_lines() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 6
    assert max(len([line for line in block.splitlines() if line]) for block in blocks) <= 15


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the project's src/."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("SAGEMAKER_SUPPRESS_V2_WARNING", "1")
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT.src, tmp_path / "src", ignore=left_out)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(folder: Path) -> bytes:
    """The archive of a model of the example, saved as training saves it."""
    import model

    made = model.Model()
    made.labels = LABELS
    made.net = model.build("bytecnn", LABELS)
    made.save(folder)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, ".")
    return out.getvalue()


@pytest.fixture
def archive(aws: boto3.Session, project: Path) -> Path:
    """The archive that the recipe uploads for an endpoint, unpacked."""
    train(aws, NAME)
    s3 = aws.client("s3")
    body = trained(project / "trained")
    s3.put_object(Bucket="language-id", Key=f"{NAME}/output/model.tar.gz", Body=body)
    (code,) = recipes("Deploy a model")
    run(code)
    client = aws.client("sagemaker")
    config = client.describe_endpoint(EndpointName=NAME)["EndpointConfigName"]
    (variant,) = client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
    container = client.describe_model(ModelName=variant["ModelName"])["PrimaryContainer"]
    assert variant["InstanceType"] == "ml.m5.xlarge"
    assert "/pytorch-inference:2.6.0-cpu-py312" in container["Image"]
    assert container["Environment"]["SAGEMAKER_PROGRAM"] == "predict.py"
    bucket, _, key = container["ModelDataUrl"].removeprefix("s3://").partition("/")
    uploaded = io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    with tarfile.open(fileobj=uploaded) as tar:
        tar.extractall(project / "endpoint", filter="data")
    return project / "endpoint"


class Context:
    """A request's context, as the model server makes it."""

    def __init__(self, folder: Path, accept: str = "application/json") -> None:
        properties = {"Content-Type": "application/json", "Accept": accept}
        self.system_properties = {"model_dir": str(folder)}
        self.request_processor = [SimpleNamespace(get_request_properties=lambda: properties)]
        self.status = 200

    def set_response_status(self, code: int, phrase: str) -> None:
        self.status = code

    def set_response_content_type(self, number: int, kind: str) -> None:
        self.kind = kind


def test_awss_inference_toolkit_answers_with_the_deployed_model(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the image does: with its packages, and predict.py of the archive."""
    code = archive / "code"
    (line,) = [line for line in (code / "requirements.txt").open() if "smlightning-" in line]
    wheel = Path(re.split(r"[\s;]", line)[0])
    assert wheel.parent == Path("/opt/ml/model/code") and (code / wheel.name).is_file()
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "predict.py")
    from sagemaker_pytorch_serving_container import handler_service

    import predict

    service = handler_service.HandlerService()
    context = Context(archive)
    service.initialize(context)
    texts = ["αβγδ", "abcd", ""]

    def ask(body: str) -> str:
        (answer,) = service.handle([{"body": body.encode()}], context)
        return str(answer)

    answers = json.loads(ask(json.dumps(texts)))
    expected = predict.predict(texts, predict.model_fn(archive))
    for answer, (_, likeliest) in zip(answers, expected, strict=True):
        scores = [(each["label"], pytest.approx(each["score"], abs=1e-5)) for each in answer]
        assert likeliest == scores
    (alone,) = json.loads(ask('"abcd"'))
    assert [each["label"] for each in alone] == [each["label"] for each in answers[1]]
    assert json.loads(ask('"\\ud800"'))  # half of a surrogate pair
    assert context.status == 200 and context.kind == "application/json"
    assert "expected a text or a list of texts" in ask("[1]") and context.status == 500


@pytest.fixture
def launch(aws: boto3.Session, good: Job, project: Path) -> Launch:
    """The notebook's object."""
    (project / "job.toml").write_bytes(PROJECT.job_file.read_bytes())
    return launch_of(good)


@pytest.fixture
def pytorch(launch: Launch) -> Any:
    """The estimator of the notebook's cell."""
    return run_cell("PyTorch(", launch)["pytorch"]


def test_the_tuner_searches_with_the_notebooks_estimator(
    aws: boto3.Session, pytorch: Any, launch: Launch
) -> None:
    (code,) = recipes("Search for good options")
    names = run(code, pytorch=pytorch, launch=launch)
    name = names["tuner"].latest_tuning_job.name
    sent = aws.client("sagemaker").describe_hyper_parameter_tuning_job(
        HyperParameterTuningJobName=name
    )
    config, definition = sent["HyperParameterTuningJobConfig"], sent["TrainingJobDefinition"]
    (searched,) = config["ParameterRanges"]["ContinuousParameterRanges"]
    options = PROJECT.options()
    assert searched["Name"] == "lr" and "lr" not in definition["StaticHyperParameters"]
    assert config["HyperParameterTuningJobObjective"]["MetricName"] == options.monitor
    assert "CheckpointConfig" not in definition
    assert definition["AlgorithmSpecification"]["MetricDefinitions"] == (
        request.metric_definitions(PROJECT)
    )


def test_a_queue_of_batch_gets_the_request_of_submit(
    pytorch: Any, launch: Launch, good: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch's part is botocore's model of it, which validates the call."""
    # The SDK imports it to wait for a job in a notebook.
    monkeypatch.setitem(sys.modules, "nest_asyncio", ModuleType("nest_asyncio"))
    answer = {"jobArn": "arn:aws:batch:us-east-1:123456789012:service-job/1", "jobName": NAME}
    asked = record(monkeypatch, SubmitServiceJob=answer | {"jobId": "1"})
    (code,) = recipes("Send the job to a queue of AWS Batch")
    run(code, pytorch=pytorch, launch=launch)
    call = asked["SubmitServiceJob"]
    assert (call["jobQueue"], call["serviceJobType"]) == ("team", "SAGEMAKER_TRAINING")
    payload = json.loads(call["serviceRequestPayload"])
    destination = sending.account_destination(good)
    expected = request.training_request(good, PROJECT, destination, launch.name)
    members = ("TrainingJobName", "RoleArn", "ResourceConfig", "StoppingCondition")
    assert {name: payload[name] for name in members} == {name: expected[name] for name in members}


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The second start of a job is in the same process here, and has the job's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINING_JOB_NAME", NAME)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    yield tmp_path


@pytest.mark.newest
def test_a_restarted_job_continues_its_run_of_mlflow(restarts: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    _, code = recipes("Track runs with MLflow or Weights and Biases")
    ids = []
    for step in (1, 2):
        logger = run(code)["mlflow_logger"]("words")
        logger.log_metrics({"loss": 1.0 / step}, step)
        ids.append(logger.run_id)
        logger.finalize("success")
    assert ids[0] == ids[1]
    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    assert client.get_run(ids[0]).info.run_name == NAME
    assert [each.step for each in client.get_metric_history(ids[0], "loss")] == [1, 2]


@pytest.mark.newest
def test_each_run_outside_a_job_is_a_new_run_of_mlflow(
    restarts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("TRAINING_JOB_NAME")
    _, code = recipes("Track runs with MLflow or Weights and Biases")
    loggers = [run(code)["mlflow_logger"]("words") for _ in range(2)]
    assert len({logger.run_id for logger in loggers}) == 2


@pytest.mark.newest
def test_a_restarted_job_continues_its_run_of_wandb(restarts: Path) -> None:
    pytest.importorskip("wandb")
    code, _ = recipes("Track runs with MLflow or Weights and Biases")
    for step in (1, 2):
        logger = run(code)["wandb_logger"](str(restarts))
        logger.log_metrics({"loss": 1.0 / step}, step)
        assert logger.experiment.id == NAME
        logger.experiment.finish()
    assert len(list(restarts.glob("wandb/offline-run-*"))) == 2  # `wandb sync` joins them by id


@pytest.mark.newest
def test_each_run_outside_a_job_is_a_new_run_of_wandb(
    restarts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("TRAINING_JOB_NAME")
    code, _ = recipes("Track runs with MLflow or Weights and Biases")
    ids = set()
    for _ in range(2):
        logger = run(code)["wandb_logger"](str(restarts))
        ids.add(logger.experiment.id)
        logger.experiment.finish()
    assert len(ids) == 2
