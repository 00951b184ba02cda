"""The SageMaker SDK's configuration file: where it is looked for, and what it may hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from moto_account import REGION
from sagemaker.config import load_sagemaker_config
from small_job import GOOD, PROJECT

from smlightning.errors import UserError
from smlightning.launch import configuration, request
from smlightning.launch.configuration import OVERRIDES

pytest_plugins = "moto_account"
ROLE = "arn:aws:iam::123456789012:role/of-the-organisation"
SESSION = {"DefaultS3Bucket": "theirs", "DefaultS3ObjectKeyPrefix": "team/nlp/"}


def content(training: dict[str, Any], session: dict[str, Any] | None = None) -> str:
    sdk = {"Modules": {"Session": session or {}}}
    sagemaker = {"TrainingJob": training, "PythonSDK": sdk}
    return json.dumps({"SchemaVersion": "1.0", "SageMaker": sagemaker})


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The administrator's file and the user's, both empty."""
    paths = (tmp_path / "admin.yaml", tmp_path / "user.yaml")
    for variable, path in zip(OVERRIDES, paths, strict=True):
        path.touch()
        monkeypatch.setenv(variable, str(path))
    return paths


def test_the_users_file_lies_over_the_administrators_as_in_the_sdk(files: Any) -> None:
    admin, user = files
    network = {"Subnets": ["subnet-aaaaaaaa"], "SecurityGroupIds": ["sg-aaaaaaaa"]}
    admin.write_text(content({"RoleArn": ROLE, "VpcConfig": network}, SESSION))
    mine = {"VpcConfig": {"Subnets": ["subnet-bbbbbbbb"]}, "EnableNetworkIsolation": True}
    user.write_text(content(mine))
    merged = configuration.load(REGION)
    assert merged.members == load_sagemaker_config()["SageMaker"]["TrainingJob"]
    assert (merged.role, merged.bucket, merged.prefix) == (ROLE, "theirs", "team/nlp")


def test_a_folder_may_be_named_and_the_usual_places_may_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "site"))
    assert configuration.load(REGION).members == {}
    folder = tmp_path / "home" / "sagemaker"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(content({"RoleArn": ROLE}))
    assert configuration.load(REGION).role == ROLE
    monkeypatch.setenv(OVERRIDES[0], str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert configuration.load(REGION).role == ROLE


@pytest.mark.parametrize("address", ["s3://language-id/sdk/config.yaml", "s3://language-id/sdk"])
def test_it_may_lie_on_s3(aws: Any, files: Any, monkeypatch: Any, address: str) -> None:
    s3 = aws.client("s3")
    s3.put_object(Bucket="language-id", Key="sdk/config.yaml", Body=content({"RoleArn": ROLE}))
    s3.put_object(Bucket="language-id", Key="sdk/other.txt", Body=b"x")
    monkeypatch.setenv(OVERRIDES[0], address)
    assert configuration.load(REGION).role == ROLE
    monkeypatch.setenv(OVERRIDES[0], "s3://language-id/absent.yaml")
    with pytest.raises(UserError, match=r"absent\.yaml"):
        configuration.load(REGION)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "is not YAML"),
        ("[1, 2]", "no table"),
        ("SageMaker: 3", "SageMaker"),
        (content({"VpcConfig": 3}), "VpcConfig"),
        (content({"VpcConfigs": {}}), "VpcConfigs"),
        (content({"OutputDataConfig": {"S3OutputPath": "s3://b"}}), "S3OutputPath"),
        (content({"Tags": [{"Name": "x"}]}), "Tags"),
        (content({"Environment": []}), "Environment"),
    ],
)
def test_what_is_no_configuration_is_named(files: Any, text: str, named: str) -> None:
    files[1].write_text(text)
    with pytest.raises(UserError) as raised:
        configuration.load(REGION)
    assert named in raised.value.problem and raised.value.cure


def test_a_file_that_a_variable_names_has_to_be_there(files: Any) -> None:
    files[0].unlink()
    with pytest.raises(UserError) as raised:
        configuration.load(REGION)
    assert str(files[0]) in raised.value.problem and OVERRIDES[0] in raised.value.cure


def test_everything_of_a_job_lies_below_the_prefix(files: Any) -> None:
    files[1].write_text(content({}, SESSION))
    body = request.dry_run(GOOD, PROJECT, "name")
    assert body["OutputDataConfig"]["S3OutputPath"] == "s3://theirs/team/nlp/"
    assert body["CheckpointConfig"]["S3Uri"] == "s3://theirs/team/nlp/name/checkpoints"
    code = json.loads(body["HyperParameters"]["sagemaker_submit_directory"])
    assert code == "s3://theirs/team/nlp/name/source/sourcedir.tar.gz"
