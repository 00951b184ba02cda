"""launch.ipynb's estimator of the SageMaker SDK's v2 sends the one request, and the same code."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from sagemaker.config import config
from sagemaker.estimator import _TrainingJob

from small_job import GOOD, PROJECT
from smlightning.errors import UserError
from smlightning_sagemaker import notebook
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.job import aws, estimator, job, request, sending, source_archive

CASES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))["job"]
    for path in sorted((Path(__file__).parent / "requests").glob("*.json"))
}
CASES["no compression"] = {
    "name": "words",
    "region": "us-east-1",
    "instance_type": "ml.g5.12xlarge",
    "instance_count": 2,
    "request": {
        "OutputDataConfig": {"CompressionType": "NONE", "S3OutputPath": "s3://bucket/team"},
    },
}
CASES["a text that a shell would change"] = {
    **CASES["no compression"],
    "hyperparameters": {"dataset": "it's $HOME", "epochs": 2},
}
NAME = "language-id-20261123-010203"
SRC = projects.find().src
NOTEBOOK = SRC.parent / "launch.ipynb"


def launch_of(wanted: job.Job) -> notebook.Launch:
    """The notebook's object for a job, in the project's folder."""
    made = notebook.Launch()
    made.job, made.name = wanted, NAME
    return made


def run_cell(text: str, launch: notebook.Launch) -> dict[str, Any]:
    """Run the one cell of the notebook that contains a text, and return its names."""
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in content["cells"]]
    (cell,) = [cell for cell in cells if text in cell]
    names: dict[str, Any] = {"launch": launch}
    exec(cell, names)  # noqa: S102
    return names


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[job.Job], Any]:
    """Makes the estimator of the notebook's cell, with the placeholders of a dry run."""
    dry = lambda wanted, create: request.dry_destination(wanted)  # noqa: E731
    monkeypatch.setattr(sending, "account_destination", dry)
    for name in ("src", "job.toml"):
        (tmp_path / name).symlink_to(PROJECT.root / name)
    monkeypatch.chdir(tmp_path)
    return lambda wanted: run_cell("PyTorch(", launch_of(wanted))["pytorch"]


@pytest.fixture(autouse=True, scope="module")
def _schema_is_checked_once() -> Iterator[None]:
    """An estimator has its configuration validated some twenty times.

    ``jsonschema.validate`` checks the SDK's large schema itself at each of them: two seconds.
    """
    schema = config.SAGEMAKER_PYTHON_SDK_CONFIG_SCHEMA
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)

    def validate(instance: dict[str, Any], schema: dict[str, Any]) -> None:
        validator(schema).validate(instance)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "jsonschema", SimpleNamespace(validate=validate))
        yield


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records uploads to S3; none leaves this machine."""
    from boto3.s3.transfer import S3Transfer

    sent: dict[str, Any] = {}

    def hold(self: Any, filename: str, bucket: str, key: str, **given: Any) -> None:
        content = Path(filename).read_bytes()
        sent.update(uri=f"s3://{bucket}/{key}", content=content, extra=given["extra_args"])

    monkeypatch.setattr(S3Transfer, "upload_file", hold)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return sent


@pytest.mark.parametrize("case", CASES)
def test_the_estimator_sends_the_request(
    case: str, built: Callable[[job.Job], Any], uploads: dict[str, Any]
) -> None:
    wanted = job.from_table(CASES[case], PROJECT)
    sdk_estimator = built(wanted)
    sdk_estimator._prepare_for_training(NAME)
    arguments = _TrainingJob.get_train_args(sdk_estimator, estimator.inputs(wanted), None)
    sent = sdk_estimator.sagemaker_session.get_train_request(**arguments)
    assert sent == request.dry_run(wanted, PROJECT, NAME)


def test_the_estimators_archive_holds_the_same_files(
    built: Callable[[job.Job], Any], uploads: dict[str, Any]
) -> None:
    made = request.dry_run(GOOD, PROJECT, NAME)
    built(GOOD)._prepare_for_training(NAME)
    assert uploads["uri"] == json.loads(made["HyperParameters"]["sagemaker_submit_directory"])
    assert uploads["extra"] == {"ServerSideEncryption": "aws:kms"}
    with tarfile.open(fileobj=io.BytesIO(uploads["content"])) as tar:
        members = [each for each in tar if each.isfile() and "__pycache__" not in each.name]
        files = {each.name: tar.extractfile(each).read() for each in members}
    assert files == {name: path.read_bytes() for name, path in source_archive.files(SRC).items()}


def test_a_member_without_a_parameter_is_named() -> None:
    extra = {"DebugHookConfig": {"S3OutputPath": "s3://bucket/x"}}
    with pytest.raises(UserError) as raised:
        estimator.rest(request.dry_run(GOOD.replace(request=extra), PROJECT))
    assert "DebugHookConfig.S3OutputPath" in raised.value.problem


def test_a_channel_that_the_sdk_does_not_take_is_named() -> None:
    channels = {"training": {"s3_data": "s3://bucket/x", "ShuffleConfig": {"Seed": 1}}}
    with pytest.raises(UserError) as raised:
        estimator.inputs(GOOD.replace(channels=channels))
    assert "channels.training" in raised.value.problem


def test_the_session_has_the_jobs_region_and_leaves_the_shared_one(monkeypatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    aws.use_profile("")
    made = estimator.session(GOOD.replace(region="eu-west-1"))
    assert made.boto_region_name == made.sagemaker_client.meta.region_name == "eu-west-1"
    assert aws.session().region_name == "us-west-2"
    assert made.sagemaker_config["SageMaker"]["PythonSDK"]["Modules"]["TelemetryOptOut"] is True
    assert made.boto_session.get_credentials() is aws.session().get_credentials()  # one sign-in
    aws.use_profile("")
