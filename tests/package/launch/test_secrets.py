"""Secrets: read where they are needed, and nowhere else to be seen; CodeArtifact."""

import json
import os
import shlex

import pytest
from moto_account import ACCOUNT, REGION, record
from small_job import PROJECT

from smlightning import hub
from smlightning.errors import UserError
from smlightning.launch import preflight, request
from smlightning.launch.account import table
from smlightning.launch.findings import refused
from smlightning.launch.job import Job

pytest_plugins = "moto_account"

VALUE = "s3cr3t0123456789abcdef"
REPOSITORY = f"arn:aws:codeartifact:{REGION}:{ACCOUNT}:repository/team/python"


@pytest.fixture
def with_secrets(good: Job) -> Job:
    return good.replace(secrets={"WANDB_API_KEY": "team/wandb", "DB_PASSWORD": "ssm:/team/db"})


def test_a_hosts_first_process_has_the_values_and_nothing_else_has_them(
    aws, with_secrets, capsys, monkeypatch
):
    aws.client("secretsmanager").create_secret(Name="team/wandb", SecretString=f"{VALUE}\n")
    aws.client("ssm").put_parameter(Name="/team/db", Value=VALUE, Type="SecureString")
    asked = record(monkeypatch)
    found, built = preflight.offline_checks(with_secrets, PROJECT)
    assert built is not None and not refused(found)
    names = {"SECRET_FOR_WANDB_API_KEY": "team/wandb", "SECRET_FOR_DB_PASSWORD": "ssm:/team/db"}
    assert names.items() <= built["Environment"].items()
    first, other = ({**names, "AWS_REGION": REGION} for _ in range(2))
    hub.sign_in(0, first)
    hub.sign_in(1, other)
    assert first["WANDB_API_KEY"] == first["DB_PASSWORD"] == VALUE
    assert other == {**names, "AWS_REGION": REGION}  # no hub's token: nothing is made offline
    seen = [json.dumps(built), *capsys.readouterr(), *map(str, found), json.dumps(asked)]
    assert not any(VALUE in text for text in seen)


@pytest.mark.parametrize(
    ("variable", "content"),
    [
        ("HF_TOKEN", f'{{"key": "{VALUE}"}}'),
        ("HF_TOKEN", f"{VALUE} {VALUE}"),
        ("WANDB_API_KEY", " "),
        ("WANDB_API_KEY", f"{VALUE}\0"),
    ],
)
def test_what_no_variable_can_hold_is_a_sentence_without_the_value(aws, variable, content):
    aws.client("secretsmanager").create_secret(Name="keyed", SecretString=content)
    with pytest.raises(UserError) as raised:
        hub.sign_in(0, {f"SECRET_FOR_{variable}": "keyed", "AWS_REGION": REGION})
    assert VALUE not in str(raised.value) and raised.value.__cause__ is None


@pytest.mark.parametrize(
    "content",
    [
        f'{{"user": "me", "key": "{VALUE}"}}',
        f"correct horse {VALUE} ",
        f"$(touch made) `id` {{}} %s {VALUE}",
        f"-----BEGIN KEY-----\n{VALUE}\n-----END KEY-----",
    ],
)
def test_a_secret_arrives_as_it_is_stored(aws, content, capfd, monkeypatch, tmp_path):
    """In each variable that names it; it is neither executed nor printed."""
    monkeypatch.chdir(tmp_path)
    aws.client("secretsmanager").create_secret(Name="any", SecretString=f"{content}\n")
    env = {"SECRET_FOR_ONE": "any", "SECRET_FOR_TWO": "any", "AWS_REGION": REGION}
    hub.sign_in(0, env)
    assert env["ONE"] == env["TWO"] == content
    assert not list(tmp_path.iterdir()) and VALUE not in "".join(capfd.readouterr())


def test_a_variable_that_is_set_is_left_alone():
    env = {"SECRET_FOR_WANDB_API_KEY": "none", "WANDB_API_KEY": "mine"}
    hub.sign_in(0, env)
    assert env["WANDB_API_KEY"] == "mine"


def test_the_role_may_read_each_of_them(with_secrets):
    keys = [key for key, _ in table.secret_keys(with_secrets)]
    assert keys == ["secrets.WANDB_API_KEY", "secrets.DB_PASSWORD"]


def test_the_real_toolkit_asks_codeartifact_for_packages(aws, good, monkeypatch, tmp_path):
    """With the variable that job.toml sets, against a stub of CodeArtifact."""
    modules = pytest.importorskip("sagemaker_training.modules")
    job = good.replace(environment={"CA_REPOSITORY_ARN": REPOSITORY})
    for name, value in request.environment(job).items():
        monkeypatch.setenv(name, value)
    address = f"https://team-{ACCOUNT}.d.codeartifact.{REGION}.amazonaws.com/pypi/python/"
    asked = record(
        monkeypatch,
        GetAuthorizationToken={"authorizationToken": "t0ken"},
        GetRepositoryEndpoint={"repositoryEndpoint": address},
    )
    commands: list[list[str]] = []
    monkeypatch.setattr(
        modules.process, "check_error", lambda words, *_, **__: commands.append(words)
    )
    modules.install_requirements(str(tmp_path))
    index = address.replace("https://", "https://aws:t0ken@") + "simple/"
    assert commands[0][-2:] == shlex.split(f"-i {index}")
    assert asked["GetRepositoryEndpoint"]["repository"] == "python"
    assert "CA_REPOSITORY_ARN" in os.environ
