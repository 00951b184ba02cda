"""The command line: what needs no package, what is sent, and what a mistake ends with."""

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    ProfileNotFound,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from moto_account import REGION, record, refusal
from sent_job import archive, log, put
from small_job import PROJECT
from smlightning import __version__
from smlightning_sagemaker import commands, project
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.commands import COMMANDS
from smlightning_sagemaker.job import request, sending, sent_jobs
from smlightning_sagemaker.job import source_archive as code
from smlightning_sagemaker.notebook import Launch

pytest_plugins = ("moto_account", "sent_job")

HEAVY = {"boto3", "botocore", "torch", "pydantic", "rich", "jsonargparse", "yaml"}


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["--version"], ["sbmit"]])
def test_help_imports_nothing_heavy(words):
    script = (
        "import sys\n"
        "from smlightning_sagemaker.__main__ import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        f"print(*({HEAVY!r} & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stderr.split())
    if words == ["--help"]:
        assert all(f"\n    {name}" in done.stdout for name in COMMANDS)
    if words == ["--version"]:
        assert done.stdout.split() == ["smlightning", __version__]


@pytest.mark.parametrize(
    ("word", "names"),
    [("sbmit", ["submit?"]), ("launch", ["submit?"]), ("lunch", ["known are", "preflight"])],
)
def test_an_unknown_command_gets_the_nearest_name(capsys, word, names):
    assert main([word]) == 2
    printed = capsys.readouterr().err
    assert f'"{word}"' in printed and all(name in printed for name in names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "--dryrun"], "did you mean --dry-run?"),
        (["stop", "a", "b"], '"b"; remove it'),
        (["list", "a", "--regoin", "x"], '"a"; remove it'),
        (["--region=x", "list"], '"--region=x"; write it after list'),
    ],
)
def test_an_unexpected_word_is_reported(capsys, words, said):
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["rehearse", "--hosts", "two"], "--hosts"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("error: ") and said in line and line.endswith(" --help")


def test_a_missing_package_is_one_sentence(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "boto3", None)
        assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert "boto3" in said and "make setup" in said


@pytest.mark.parametrize(
    ("command", "failure", "said"),
    [
        ("submit", refusal("ExpiredToken"), "aws configure"),
        ("follow", refusal("InvalidClientTokenId"), "InvalidClientTokenId"),
        ("stop", NoCredentialsError(), "aws configure"),
        ("fetch", ProfileNotFound(profile="x"), "AWS_PROFILE"),
        ("why", refusal("ExpiredToken"), "aws configure"),
    ],
)
def test_an_error_of_aws_is_one_sentence_in_every_command(
    aws, good, monkeypatch, capsys, command, failure, said
):
    record(monkeypatch, GetCallerIdentity=failure, DescribeTrainingJob=failure)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main([command] if command == "submit" else [command, "x", "--region", REGION]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and said in error and "; " in error


QUOTA = "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0 Instances"


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            ClientError(
                {"Error": {"Code": "ResourceLimitExceeded", "Message": f"{QUOTA}."}},
                "CreateTrainingJob",
            ),
            QUOTA,
        ),
        (
            ClientError(
                {"Error": {"Code": "ValidationException", "Message": "1 validation error: tags"}},
                "CreateTrainingJob",
            ),
            "1 validation error: tags",
        ),
        (
            ParamValidationError(report="Invalid type for parameter Tags\nMissing required"),
            "Invalid type for parameter Tags Missing required",
        ),
        (ResponseParserError("not XML: <html>"), "a proxy may have answered"),
    ],
)
def test_submit_passes_on_why_aws_rejects_a_job(aws, good, monkeypatch, capsys, failure, sentence):
    """Preflight leaves to AWS what AWS says at once and for free."""
    record(monkeypatch, CreateTrainingJob=failure)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(["submit", "--yes", "--no-follow"]) == 1
    printed = capsys.readouterr().err
    (line,) = [line for line in printed.splitlines() if line.startswith("error")]
    assert line.startswith("error: ") and sentence in line and "; " in line
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ReadTimeoutError(endpoint_url="https://api.sagemaker.us-east-1.amazonaws.com/"), 1),
        (refusal("ResourceInUse", "CreateTrainingJob"), 1),  # the answer to botocore's next attempt
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_job_whose_answer_was_lost_is_named(aws, good, monkeypatch, capsys, failure, status):
    """AWS may have it, and bill it."""

    def lost(_: Any) -> None:
        raise failure

    asked = record(monkeypatch, CreateTrainingJob=lost)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(["submit", "--yes", "--no-follow"]) == status
    name = asked["CreateTrainingJob"]["TrainingJobName"]
    assert f"smlightning follow {name} --region {REGION}" in capsys.readouterr().out
    record(monkeypatch, CreateTrainingJob=refusal("ValidationException", "CreateTrainingJob"))
    assert main(["submit", "--yes", "--no-follow"]) == 1  # AWS has rejected it
    assert "smlightning follow" not in capsys.readouterr().out


def test_a_job_that_cannot_be_noted_is_sent_all_the_same(aws, good, monkeypatch, tmp_path, capsys):
    """In a folder that is read only, or with a damaged file of the jobs that were sent."""
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    monkeypatch.setattr(sent_jobs, "FILE", str(tmp_path / "absent" / "jobs.jsonl"))
    assert main(["submit", "--yes"]) == 0
    printed = capsys.readouterr()
    assert "completed" in printed.out and "was not noted here" in printed.err
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "jobs.jsonl").write_bytes(b"\xff\xfe\n")
    assert main(["submit", "--yes", "--no-follow"]) == 0
    assert len(sent_jobs.remembered(PROJECT)) == 1


@pytest.fixture
def broken(tmp_path: Path) -> list[str]:
    """Arguments that name a job.toml which is no TOML, but whose line of the region can be read."""
    (tmp_path / "job.toml").write_text(f'name = "x\nregion = "{REGION}"\n[')
    return ["--job", str(tmp_path / "job.toml")]


def test_commands_for_sent_jobs_work_with_a_broken_job_toml(
    aws, sent, broken, tmp_path, monkeypatch, capsys
):
    name = sent.training_job_name
    put(aws, sent, archive(("config.json", tarfile.REGTYPE, b"{}")))
    sent.training_job_status = sent.secondary_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert main(["stop", name, *broken]) == 0
    assert asked["StopTrainingJob"] == {"TrainingJobName": name}
    sent.training_job_status, sent.secondary_status = "Failed", "Failed"
    sent.failure_reason = "AlgorithmError: exit code 1"
    log(
        aws,
        name,
        "algo-2",
        "[rank9]: Traceback (most recent call last):",
        "[rank9]: ValueError: nan",
    )
    for command, said in {
        ("list",): f"{name} │ Failed",
        ("follow", name): "AlgorithmError: exit code 1",
        ("why", name): "rank 9 on algo-2",
        ("fetch", name, "--to", str(tmp_path / "m")): str(tmp_path / "m"),
    }.items():
        assert main([*command, *broken]) == (1 if command[0] == "follow" else 0)
        assert said in capsys.readouterr().out
    assert main(["submit", *broken]) == 1  # which needs it whole
    assert str(tmp_path / "job.toml") in capsys.readouterr().err


def test_a_sent_job_is_followed_without_a_project(aws, sent, monkeypatch, capsys):
    monkeypatch.delenv("SMLIGHTNING_PROJECT")
    assert main(["follow", sent.training_job_name, "--region", REGION]) == 0
    assert "completed" in capsys.readouterr().out


@pytest.mark.parametrize("step", ["job.price.cost", "follow.follow.follow"])
def test_ctrl_c_ends_submit_with_status_130(aws, good, monkeypatch, capsys, step):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    asked = record(monkeypatch)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    monkeypatch.setattr(f"smlightning_sagemaker.{step}", interrupt)
    assert main(["submit", "--yes"]) == 130
    assert ("CreateTrainingJob" in asked) == ("sent " in capsys.readouterr().out)


@pytest.mark.parametrize(("answer", "sends"), [("y", True), ("", False)])
def test_submit_asks_before_it_sends(aws, good, monkeypatch, capsys, answer, sends):
    asked = record(monkeypatch)
    questions: list[str] = []
    monkeypatch.setattr(
        "smlightning_sagemaker.job.job.load", lambda *_: good.replace(price_per_hour=2.0)
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or answer)
    assert main(["submit", "--no-follow"]) == (0 if sends else 1)
    assert ("CreateTrainingJob" in asked) == sends and questions
    said = capsys.readouterr().out
    assert "4.00 USD an hour, at most 4.00 USD" in said


def test_without_a_terminal_submit_needs_yes(aws, good, monkeypatch, capsys):
    asked = record(monkeypatch)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(["submit", "--no-follow"]) == 1
    assert "--yes" in capsys.readouterr().err.splitlines()[-1]
    assert "CreateTrainingJob" not in asked and "PutObject" not in asked
    assert main(["submit", "--no-follow", "--yes"]) == 0
    assert main(["submit", "--no-follow"]) == 1
    (first,) = sent_jobs.remembered(PROJECT)
    assert f"the same job was sent as {first}" in capsys.readouterr().out


def test_the_notebook_asks_before_it_sends_a_job_again(aws, good, monkeypatch, capsys):
    """By its content: after a restart of the kernel its name is another one."""
    questions: list[str] = []
    answers = iter(["", "y"])
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or next(answers))
    monkeypatch.chdir(PROJECT.root)

    def may_send(name: str, **changes: Any) -> bool:
        launch = Launch(accept=["preflight", "rehearsal"])
        launch.job, launch.name = good.replace(price_per_hour=2.0, **changes), name
        return launch.may_send()

    assert may_send("first") and not questions
    digest = sending.fingerprint(good.replace(price_per_hour=2.0), PROJECT)
    sent_jobs.remember(PROJECT, "first", REGION, digest)
    assert not may_send("first") and not questions  # the cell again
    assert not may_send("second")  # after a restart
    assert may_send("second") and len(questions) == 2
    assert may_send("third", spot={"enabled": True}) and len(questions) == 2
    said = capsys.readouterr().out
    assert "4.00 USD an hour" in said and "spot costs less" in said

    def nobody(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody)
    assert not may_send("fourth")


def test_without_a_role_nothing_is_sent(aws, good, monkeypatch, capsys):
    asked = record(monkeypatch)
    wrong = good.replace(role="", bucket="")
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: wrong)
    assert main(["submit", "--yes", "--accept", "role"]) == 1
    assert "role" in capsys.readouterr().err.splitlines()[-1]
    assert not {"CreateTrainingJob", "CreateBucket", "PutObject"} & asked.keys()


def test_code_that_changes_while_it_is_checked_is_not_sent(
    aws, good, tmp_path, monkeypatch, capsys
):
    """For example, a file is saved while the question waits for its answer."""
    shutil.copytree(PROJECT.root, tmp_path / "project", ignore=shutil.ignore_patterns("build"))
    monkeypatch.setenv("SMLIGHTNING_PROJECT", str(tmp_path / "project"))
    asked = record(monkeypatch)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)

    def confirmed(yes: bool) -> bool:
        (tmp_path / "project/src/model.py").write_text("# changed")
        return True

    monkeypatch.setattr(commands, "confirmed", confirmed)
    assert main(["submit"]) == 1
    assert "has changed since it was checked" in capsys.readouterr().err
    assert not {"CreateTrainingJob", "PutObject"} & asked.keys()


def test_submit_sends_its_dry_run_and_fetch_works(aws, good, tmp_path, monkeypatch, capsys):
    """It sends exactly what the dry run shows, and `src/` as it is."""
    asked = record(monkeypatch)
    monkeypatch.setattr(request, "job_name", lambda job: f"{job.name}-20260101-000000")
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(["submit", "--yes"]) == 0
    said, name = capsys.readouterr().out, "language-id-20260101-000000"
    assert asked["CreateTrainingJob"] == request.dry_run(good, PROJECT)
    # `aws:kms` would choose AWS's own key in place of the bucket's (API_PutObject).
    assert not {"ServerSideEncryption", "SSEKMSKeyId"} & asked["PutObject"].keys()
    assert "job     2 × ml.p4d.24xlarge, torch_distributed, torch 2.13.0 on Python 3.12" in said
    assert f"sent    {name}\n" in said and f"fetch {name}" in said
    assert sent_jobs.remembered(project.find()) == {name: REGION}

    s3 = aws.client("s3")
    body = s3.get_object(Bucket="language-id", Key=f"{name}/source/sourcedir.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        files = [member for member in tar if member.isfile() and "__pycache__" not in member.name]
        contents = {member.name: tar.extractfile(member).read() for member in files}
    assert contents == {name: path.read_bytes() for name, path in code.files(PROJECT.src).items()}

    model = archive(("weights", tarfile.REGTYPE, b"w"))
    s3.put_object(Bucket="language-id", Key=f"{name}/output/model.tar.gz", Body=model)
    assert main(["fetch", name, "--to", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m" / "weights").read_bytes() == b"w"
