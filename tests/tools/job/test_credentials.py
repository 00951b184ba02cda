"""Each job file has one profile, and a command fetches its credentials once."""

import json
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from typing import Any

import botocore.client
import pytest
from botocore.credentials import AssumeRoleProvider
from botocore.exceptions import ClientError

from moto_account import ACCOUNT, REGION, record
from small_job import PROJECT, edited
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import estimator, request, sent_jobs
from smlightning_sagemaker.preflight import account

pytest_plugins = "moto_account"

Configure = Callable[..., None]
SUBMIT = ["submit", "--yes", "--no-follow"]
# A credential process that notes each of its starts, and gives another key each time.
PROCESS = """
import json, pathlib, sys
starts, times = pathlib.Path(sys.argv[1]), sys.argv[2:]
count = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (count + 1))
keys = {"AccessKeyId": f"KEY{count}", "SecretAccessKey": "s", "SessionToken": "t"}
print(json.dumps({"Version": 1, **keys, "Expiration": times[min(count, len(times) - 1)]}))
"""
SOURCE = "[profile source]\naws_access_key_id = KEY\naws_secret_access_key = s\n"
WITH_CODE = (
    f"{SOURCE}[profile mfa]\nsource_profile = source\nrole_arn = arn:aws:iam::{ACCOUNT}:role/team\n"
    f"mfa_serial = arn:aws:iam::{ACCOUNT}:mfa/me\n"
)


def after(**time: float) -> str:
    return (datetime.now(UTC) + timedelta(**time)).isoformat()


@pytest.fixture
def configure(aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Write AWS's configuration file, and choose a profile of it; no keys in the environment."""
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    aws.client("iam").create_role(RoleName="team", AssumeRolePolicyDocument=trust)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    def write(text: str, profile: str = "") -> None:
        (tmp_path / "config").write_text(text, encoding="utf-8")
        if profile:
            monkeypatch.setenv("AWS_PROFILE", profile)

    return write


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., str]:
    """A profile whose credential process notes its starts in a file of the profile's name."""
    script = tmp_path / "process.py"
    script.write_text(PROCESS)

    def profile(name: str, *expires: str) -> str:
        words = [sys.executable, str(script), str(tmp_path / name), *(expires or [after(hours=8)])]
        return f"[profile {name}]\ncredential_process = {shlex.join(words)}\n"

    return profile


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts for a code of MFA, each of which is answered."""
    shown: list[str] = []
    answering_with(monkeypatch, lambda text: shown.append(text) or "123456")
    return shown


def answering_with(monkeypatch: pytest.MonkeyPatch, prompter: Callable[[str], str]) -> None:
    """Replace getpass, which botocore uses by default."""
    with_prompter = partialmethod(AssumeRoleProvider.__init__, prompter=prompter)
    monkeypatch.setattr(AssumeRoleProvider, "__init__", with_prompter)


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Access key → operations that were called with it."""
    called: dict[str, set[str]] = {}
    call = botocore.client.BaseClient._make_api_call

    def recording(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        key = client._request_signer._credentials.get_frozen_credentials().access_key
        called.setdefault(key, set()).add(operation)
        return call(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", recording)
    return called


def test_one_code_of_mfa_serves_all_clients_of_a_command(
    configure, good, prompts, monkeypatch, capsys
):
    """Checks run in threads, and each makes its own clients."""
    configure(WITH_CODE, "mfa")
    asked = record(monkeypatch)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(SUBMIT) == 0, capsys.readouterr()
    assert {"AssumeRole", "CreateTrainingJob"} <= asked.keys()
    assert len(prompts) == 1


def test_a_code_that_aws_rejects_is_one_prompt_and_one_sentence(
    configure, good, prompts, monkeypatch, capsys
):
    configure(WITH_CODE, "mfa")
    message = "MultiFactorAuthentication failed with invalid MFA one time pass code."
    wrong = ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, "AssumeRole")
    record(monkeypatch, AssumeRole=wrong)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(SUBMIT) == 1
    assert len(prompts) == 1
    said = "".join(capsys.readouterr())
    lines = [line for line in said.splitlines() if line.startswith("error")]
    assert len(lines) == 1 and "MFA" in lines[0] and "permission" not in lines[0]
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["preflight", "list"])
def test_without_a_terminal_a_code_of_mfa_is_one_sentence(
    configure, good, monkeypatch, command, capsys
):
    """getpass then reads the end of standard input."""

    def end(prompt: str) -> str:
        raise EOFError

    answering_with(monkeypatch, end)
    configure(WITH_CODE, "mfa")
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main([command]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error") and "MFA" in line


JOBS = {"region": REGION, "role": f"arn:aws:iam::{ACCOUNT}:role/training", "bucket": "language-id"}
P4D = {"instance_type": "ml.p4d.24xlarge"}


def test_each_job_file_is_sent_and_followed_with_its_own_profile(
    configure, process, callers, monkeypatch, tmp_path, capsys
):
    """Keys of the environment and AWS_PROFILE are another account's."""
    configure("".join(map(process, ("one", "two", "other"))), "other")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    for name in ("one", "two"):
        job_file = edited(tmp_path / f"{name}.toml", {**JOBS, **P4D, "profile": name})
        words = ["--job", str(job_file)]
        assert main([*SUBMIT, *words]) == 0, capsys.readouterr()
        assert main(["list", *words]) == 0
        assert (tmp_path / name).read_text() == "xx"
        (job,) = [each for each in sent_jobs.entries(PROJECT) if each["profile"] == name]
        assert main(["stop", job["name"]]) == 0  # without its file
        assert (tmp_path / name).read_text() == "xxx"
    assert not (tmp_path / "other").exists()
    assert "ENVIRONMENT" not in callers
    assert {"CreateTrainingJob", "SimulatePrincipalPolicy"} <= set.union(*callers.values())


def test_a_profile_on_the_command_line_counts_and_empty_means_the_environment(
    configure, process, callers, monkeypatch, tmp_path, capsys
):
    """A workflow has its own credentials and no profile with the name in the job file."""
    configure("".join(map(process, ("one", "two"))))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    job_file = edited(tmp_path / "job.toml", {**JOBS, **P4D, "profile": "one"})
    for given, key in (("two", "KEY0"), ("", "ENVIRONMENT")):
        words = ["--job", str(job_file), f"--profile={given}"]
        callers.clear()
        assert main([*SUBMIT, *words]) == 0, capsys.readouterr()
        assert callers.keys() == {key}
        sent = sent_jobs.entries(PROJECT)[-1]
        assert sent["profile"] == given
        callers.clear()
        assert main(["stop", sent["name"], "--job", str(job_file)]) == 0  # as it was sent
        assert ("ENVIRONMENT" in callers) == (key == "ENVIRONMENT")
    assert (tmp_path / "two").exists() and not (tmp_path / "one").exists()


def test_a_profile_that_does_not_exist_is_named_with_its_key(configure, tmp_path, capsys):
    configure("")
    job_file = edited(tmp_path / "job.toml", {**JOBS, **P4D, "profile": "absent"})
    assert main(["preflight", "--job", str(job_file)]) == 1
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("error")]
    assert "absent" in line and "profile in job.toml" in line
    sent_jobs.remember(PROJECT, "a-job", REGION, profile="absent")
    for words in (["list", "--profile", "absent", "--region", REGION], ["stop", "a-job"]):
        assert main([*words, "--job", str(job_file)]) == 1
        said = capsys.readouterr().err
        assert "absent" in said and "set --profile" in said


@pytest.mark.parametrize("setting", ["credential_process = echo Enter your code:", "no scheme"])
def test_a_wrong_setting_of_aws_is_a_sentence(
    configure, tmp_path, monkeypatch, capfd, good, setting
):
    if setting == "no scheme":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:4566")
        setting = "aws_access_key_id = KEY\naws_secret_access_key = s"
    configure(f"[default]\n{setting}\n")
    job_file = edited(tmp_path / "job.toml", {**JOBS, **P4D})
    for words in (["preflight"], SUBMIT, ["why", "a-job", "--region", REGION]):
        assert main([*words, "--job", str(job_file)]) == 1
        assert "error: AWS's settings cannot be used" in capfd.readouterr().err


def test_the_profile_of_a_damaged_job_file_is_still_read(tmp_path):
    text = 'profile = "one" # comment\nname = = \n[hyperparameters]\nprofile = "of-training"\n'
    for head, profile in (("", "one"), ("region = 'eu-west-1'\n", "one")):
        (tmp_path / "job.toml").write_text(head + text)
        assert sent_jobs.profile_of(PROJECT, job_file=tmp_path / "job.toml") == profile
    (tmp_path / "job.toml").write_text("[hyperparameters]\nprofile = 'of-training'\n")
    assert sent_jobs.profile_of(PROJECT, job_file=tmp_path / "job.toml") == ""


def test_the_sdks_estimator_needs_no_second_code_of_mfa(configure, good, prompts):
    configure(WITH_CODE, "mfa")
    assert account.check(good, request.dry_run(good, PROJECT), PROJECT) == []
    session = estimator.session(good)
    assert session.boto_region_name == REGION and session.account_id() == ACCOUNT
    assert len(prompts) == 1
