"""Secrets: read where they are needed, and nowhere else to be seen; CodeArtifact."""

import json
import os
import shlex
from typing import Any

import pytest
from botocore.client import BaseClient

from moto_account import ACCOUNT, REGION, record
from small_job import PROJECT
from smlightning import hub, stored_secrets
from smlightning.errors import UserError
from smlightning.stored_secrets import REFERENCE, Reference
from smlightning_sagemaker import preflight
from smlightning_sagemaker.findings import has_errors
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import Job

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
    found, body = preflight.offline_checks(with_secrets, PROJECT)
    assert body is not None and not has_errors(found)
    names = {"SECRET_FOR_WANDB_API_KEY": "team/wandb", "SECRET_FOR_DB_PASSWORD": "ssm:/team/db"}
    assert names.items() <= body["Environment"].items()
    first, other = ({**names, "AWS_REGION": REGION} for _ in range(2))
    hub.sign_in(0, first)
    hub.sign_in(1, other)
    assert first["WANDB_API_KEY"] == first["DB_PASSWORD"] == VALUE
    assert other == {**names, "AWS_REGION": REGION}  # no hub's token: nothing is made offline
    seen = [json.dumps(body), *capsys.readouterr(), *map(str, found), json.dumps(asked)]
    assert not any(VALUE in text for text in seen)


@pytest.mark.parametrize(
    "content",
    [
        f'{{"user": "me", "key": "{VALUE}"}}',
        f"correct horse {VALUE} ",
        f"$HOME `ticks` {{}} %s {VALUE}",
        f"-----BEGIN KEY-----\n{VALUE}\n-----END KEY-----",
    ],
)
def test_a_secret_arrives_as_it_is_stored(aws, content, capfd, monkeypatch, tmp_path):
    """Each variable of this secret gets the text; nothing executes or prints it."""
    monkeypatch.chdir(tmp_path)
    aws.client("secretsmanager").create_secret(Name="any", SecretString=f"{content}\n")
    env = {"SECRET_FOR_ONE": "any", "SECRET_FOR_TWO": "any", "AWS_REGION": REGION}
    hub.sign_in(0, env)
    assert env["ONE"] == env["TWO"] == content
    assert not list(tmp_path.iterdir()) and VALUE not in "".join(capfd.readouterr())


ARN = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:team/db-AbCdEf"


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("team/db:MY_SECRET_VAR", Reference("team/db", key="MY_SECRET_VAR")),
        (f"{ARN}", Reference(ARN)),
        (f"{ARN}:username1", Reference(ARN, key="username1")),
        # Keys of JSON are any text.
        ("team/db:API key (new)", Reference("team/db", key="API key (new)")),
        ("ssm:/team/db:3", Reference("/team/db:3", is_parameter=True)),  # a parameter's version
    ],
)
def test_a_reference_has_a_name_and_a_key(text, reference):
    assert REFERENCE.fullmatch(text) and stored_secrets.parse(text) == reference


NO_REFERENCES = {
    "EMPTY": "",
    "NO_PARAMETER": "ssm:",
    "NO_KEY": "team/db:",
    "BLANK": "team/db: password",
    "BLANK_IN_NAME": "team db:password",
    "VERSION": f"{ARN}:password:AWSPREVIOUS:",
    "OTHER_SERVICE": f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/team/db",
    "JSON": '{"password": "x"}',
}


def test_an_invalid_reference_is_an_error_that_does_not_print_it(good):
    results, _ = preflight.offline_checks(good.replace(secrets=NO_REFERENCES), PROJECT)
    refusals = {finding.key: finding for finding in results if finding.key.startswith("secrets.")}
    assert refusals.keys() == {f"secrets.{variable}" for variable in NO_REFERENCES}
    for variable, text in NO_REFERENCES.items():
        finding = refusals[f"secrets.{variable}"]
        assert finding.level == "error" and (not text or text not in finding.problem)


def test_keys_of_a_secret_are_read_on_the_host_from_one_answer(aws, good, capsys, monkeypatch):
    """Numbers arrive as they are written."""
    client = aws.client("secretsmanager")
    content = f'{{"user": "me", "password": "{VALUE}", "port": 5432, "share": 1.10, "tls": true}}'
    arn = client.create_secret(Name="team/db", SecretString=content)["ARN"]
    names = {
        "DB_PASSWORD": "team/db:password",
        "DB_PORT": "team/db:port",
        "DB_SHARE": "team/db:share",
        "DB_TLS": "team/db:tls",
        "DB_USER": f"{arn}:user",
        "DB": "team/db",
    }
    job = good.replace(secrets=names)
    body = request.dry_run(job, PROJECT)
    env = {**body["Environment"], "AWS_REGION": REGION}
    answer, asked = BaseClient._make_api_call, []

    def note(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        asked.append(arguments)
        return answer(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", note)
    hub.sign_in(0, env)
    assert {name: env[name] for name in names} == {
        "DB_PASSWORD": VALUE,
        "DB_PORT": "5432",
        "DB_SHARE": "1.10",
        "DB_TLS": "true",
        "DB_USER": "me",
        "DB": content,
    }
    assert asked == [
        {"SecretId": "team/db"},
        {"SecretId": arn},
    ]
    sent = {f"SECRET_FOR_{name}": text for name, text in names.items()}
    assert sent.items() <= body["Environment"].items()
    assert VALUE not in json.dumps(body) + "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("variable", "content", "key"),
    [
        ("HF_TOKEN", f'{{"key": "{VALUE}"}}', ""),
        ("HF_TOKEN", f"{VALUE} {VALUE}", ""),
        ("DB", " ", ""),
        ("DB", f"{VALUE}\0", ""),
        ("DB", f'{{"password": "{VALUE}"}}', ":passwd"),
        ("DB", f'{{"password": "{VALUE}"}}', ":Password"),
        ("DB", f'{{"password": {{"now": "{VALUE}"}}}}', ":password"),
        ("DB", f'{{"password": ["{VALUE}"]}}', ":password"),
        ("DB", f'{{"other": "{VALUE}", "password": null}}', ":password"),
        ("DB", f'{{"other": "{VALUE}", "password": ""}}', ":password"),
        ("DB", f'["{VALUE}"]', ":0"),
        ("DB", VALUE, ":password"),
        ("DB", f'{{"password": "{VALUE}', ":password"),
    ],
)
def test_an_error_about_a_secret_hides_its_value(aws, variable, content, key):
    aws.client("secretsmanager").create_secret(Name="team/db", SecretString=content)
    with pytest.raises(UserError) as raised:
        hub.sign_in(0, {f"SECRET_FOR_{variable}": f"team/db{key}", "AWS_REGION": REGION})
    problem, hint = raised.value.problem, raised.value.hint
    assert f"secrets.{variable} = team/db{key}" in problem or variable == "HF_TOKEN"
    assert hint and "\n" not in problem + hint and VALUE not in problem + hint
    assert raised.value.__cause__ is None


def test_a_variable_that_is_set_is_not_overwritten():
    env = {"SECRET_FOR_WANDB_API_KEY": "none", "WANDB_API_KEY": "mine"}
    hub.sign_in(0, env)
    assert env["WANDB_API_KEY"] == "mine"


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
