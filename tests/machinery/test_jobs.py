"""Sending, following, stopping, comparing and fetching jobs: the real boto3 and SDK against moto, in process."""

import datetime
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError, ProfileNotFound
from moto.sagemaker.models import sagemaker_backends

from launch import SRC, follow, jobs, request, tune
from launch.__main__ import main
from launch.job import Job, Tune
from moto_account import ACCOUNT, REGION, record, refusal
from runtime.report import UserError

pytest_plugins = "moto_account"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (refusal("ExpiredToken"), "credentials have expired"),
        (refusal("InvalidClientTokenId"), "does not know these credentials"),
        (NoCredentialsError(), "there are no AWS credentials here"),
        (ProfileNotFound(profile="x"), "config profile (x) could not be found; set AWS_PROFILE"),
    ],
)
def test_every_command_says_in_a_sentence_why_aws_does_not_answer(aws, good, monkeypatch, capsys, failure, said):
    record(monkeypatch, GetCallerIdentity=failure, DescribeTrainingJob=failure)
    monkeypatch.setattr("launch.job.load", lambda _: good)
    for command in (["submit"], *([name, "x", "--region", REGION] for name in ("attach", "stop", "fetch", "why"))):
        assert main(command) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ") and said in error and "; " in error


@pytest.fixture
def sent(aws: boto3.Session, good: Job) -> Any:
    """A job in moto, which calls it completed at once, and its log group."""
    made, name = aws.client("sagemaker"), "language-id-20260101-000000"
    made.create_training_job(
        TrainingJobName=name,
        RoleArn=good.role,
        AlgorithmSpecification={"TrainingImage": "x", "TrainingInputMode": "File"},
        HyperParameters={"epochs": "6"},
        OutputDataConfig={"S3OutputPath": "s3://language-id/"},
        CheckpointConfig={"S3Uri": "s3://language-id/checkpoints"},
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
    )
    aws.client("logs").create_log_group(logGroupName=follow.LOG_GROUP)
    return sagemaker_backends[ACCOUNT][REGION].training_jobs[name]


def log(aws: boto3.Session, name: str, host: str, *lines: str, at: int = 0) -> None:
    logs, stream = aws.client("logs"), f"{name}/{host}-1700000000"
    known = logs.describe_log_streams(logGroupName=follow.LOG_GROUP, logStreamNamePrefix=stream)["logStreams"]
    if not known:
        logs.create_log_stream(logGroupName=follow.LOG_GROUP, logStreamName=stream)
    now = int(datetime.datetime.now().timestamp() * 1000) + at
    events = [{"timestamp": now + i, "message": line} for i, line in enumerate(lines)]
    logs.put_log_events(logGroupName=follow.LOG_GROUP, logStreamName=stream, logEvents=events)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def console() -> Any:
    from rich.console import Console

    return Console(file=io.StringIO(), highlight=False, markup=False, emoji=False, soft_wrap=True, width=200)


def test_following_a_job_to_its_end(aws, sent, monkeypatch):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name, screen = sent.training_job_name, console()
    log(aws, name, "algo-1", "Invoking TorchDistributed...")

    def later(seconds: float) -> None:
        monkeypatch.setattr("time.sleep", lambda _: log(aws, name, "algo-1", "the log's end comes late", at=3000))
        log(aws, name, "algo-1", "epoch 3... lr=0.1.", "step=1 epoch=1 train/loss=1.5", "test/accuracy 0.8123", at=1000)
        log(aws, name, "algo-2", "[1,mpirank:8,algo-2]<stdout>:step=2 epoch=1 val/loss=0.5 [/red]", at=2000)
        sent.training_job_status = sent.secondary_status = "Completed"
        sent.training_time_in_seconds, sent.billable_time_in_seconds = 3661, 1220
        sent.enable_managed_spot_training = True

    monkeypatch.setattr("time.sleep", later)
    outcome = follow.follow(name, REGION, console=screen)
    text = screen.file.getvalue()
    assert outcome.status == "Completed"
    assert outcome.rows == [
        {"step": 1, "epoch": 1, "train/loss": 1.5},
        {"test/accuracy": 0.8123},
        {"step": 2, "epoch": 1, "val/loss": 0.5},
    ]
    assert "0:00:00 Starting Preparing the instances for training" in text
    assert (
        text.count("algo-1 step=1 epoch=1 train/loss=1.5") == 1 and "algo-2 [1,mpirank:8" in text and "[/red]" in text
    )
    assert f"{name} completed. To fetch its model: python -m launch fetch {name}" in text
    assert "trained 1:01:01 and is billed 0:20:20 on 2 instances; spot saved 67%" in text
    assert "the log's end comes late" in text
    assert "epoch 1 of 6 · step 2 · train/loss 1.5" in follow.progress(outcome)


def test_an_empty_page_is_not_the_logs_end(aws, sent, monkeypatch):
    log(aws, sent.training_job_name, "algo-1", "one")
    event, pages = {"timestamp": 1, "message": "two"}, []
    for token, events in (("a", []), ("b", [event]), ("b", [])):
        pages.append({"events": events, "nextForwardToken": token})
    record(monkeypatch, GetLogEvents=pages)
    lines = follow.new_lines(sent.training_job_name, aws.client("logs"), {})
    assert [line.text for line in lines] == ["two"] and not pages


def test_curves_need_steps():
    outcome = follow.Outcome("x", lines=[follow.Line(0, "algo-1", "lr=0.1")])
    with pytest.raises(UserError, match="no metrics that could be drawn"):
        outcome.curves()


def test_a_failed_job_shows_why_and_the_rank_that_failed_first(aws, sent, capsys):
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: ExecuteUserScriptError: ExitCode 1"
    name = sent.training_job_name
    log(
        aws, name, "algo-1", "[rank0]: Traceback (most recent call last):", "[rank0]: connection closed by peer", at=500
    )
    log(aws, name, "algo-2", "fine", "[rank9]: Traceback (most recent call last):", "[rank9]: ValueError: nan", at=400)
    log(aws, name, "algo-2", "Root Cause (first observed failure):", "[0]:", "  rank      : 9 (local_rank: 1)", at=900)
    screen = console()
    assert follow.follow(name, REGION, console=screen).status == "Failed"
    text = screen.file.getvalue()
    assert f"{name} failed: AlgorithmError: ExecuteUserScriptError: ExitCode 1" in text
    assert text.rstrip().endswith(
        "The last lines of rank 9 on algo-2, which failed first:\n"
        "  [rank9]: Traceback (most recent call last):\n  [rank9]: ValueError: nan"
    )


@pytest.mark.parametrize(
    ("lines", "who", "last"),
    [
        ([], "", []),
        ([("algo-1", "killed")], "algo-1", ["killed"]),
        (
            [("algo-2", "error: no data"), ("algo-1", "Traceback (most recent call last):")],
            "algo-2",
            ["error: no data"],
        ),
        (
            [
                ("algo-1", "[1,mpirank:3,algo-1]<stderr>:RuntimeError: boom"),
                ("algo-1", "[1,mpirank:0,algo-1]<stderr>:RuntimeError: peer"),
            ],
            "rank 3 on algo-1",
            ["[1,mpirank:3,algo-1]<stderr>:RuntimeError: boom"],
        ),
    ],
)
def test_last_words(lines, who, last):
    assert follow.last_words([follow.Line(i, host, text) for i, (host, text) in enumerate(lines)]) == (who, last)


def test_a_stopped_job_says_by_whom_and_how_to_resume(aws, sent):
    sent.training_job_status = "Stopped"
    for secondary, told in {
        "Stopped": "someone asked for it",
        "MaxRuntimeExceeded": "max_run_s was over",
        "MaxWaitTimeExceeded": "no spot capacity in max_wait_s",
    }.items():
        sent.secondary_status, screen = secondary, console()
        assert follow.follow(sent.training_job_name, REGION, console=screen).status == "Stopped"
        assert f"was stopped: {told}. To resume from its checkpoints: checkpoint_s3 = " in screen.file.getvalue()


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(aws, sent, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    sent.training_job_status = sent.secondary_status = "InProgress"
    monkeypatch.setattr("time.sleep", interrupt)
    screen, name = console(), sent.training_job_name
    with pytest.raises(KeyboardInterrupt):
        follow.follow(name, REGION, console=screen)
    assert sent.training_job_status == "InProgress"
    for way in (
        f"launch attach {name}",
        f"launch stop {name}",
        f"us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/{name}",
    ):
        assert way in screen.file.getvalue()


def test_credentials_that_expire_meanwhile_do_not_end_the_job(aws, sent, monkeypatch, capsys):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name = sent.training_job_name
    first = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
    record(monkeypatch, DescribeTrainingJob=[first, refusal("ExpiredTokenException", "DescribeTrainingJob")])
    assert main(["attach", name, "--region", REGION]) == 1
    said = capsys.readouterr()
    assert f"The job still runs and is billed. To follow it again: python -m launch attach {name}" in said.out
    assert said.err.startswith("error: AWS credentials have expired; run aws configure")


def test_following_waits_out_a_lost_network_and_throttling_and_does_without_the_log(aws, sent, monkeypatch):
    """Down to the right verdict; each is said once."""
    name, screen, waits = sent.training_job_name, console(), list[float]()
    sent.training_job_status = sent.secondary_status = "InProgress"
    sagemaker = aws.client("sagemaker")
    running = sagemaker.describe_training_job(TrainingJobName=name)
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: out of memory"
    ended = sagemaker.describe_training_job(TrainingJobName=name)
    cut, throttled = ConnectTimeoutError(endpoint_url="x"), refusal("ThrottlingException", "DescribeTrainingJob")
    answers = [cut, cut, running, throttled, running, ended, ended]
    log(aws, name, "algo-1", "step=1 epoch=1 train/loss=1.5")
    page = {"events": [], "nextForwardToken": "t"}
    reading = [page, page, throttled, refusal("AccessDeniedException", "GetLogEvents")]
    record(monkeypatch, DescribeTrainingJob=answers + [ended] * 3, GetLogEvents=reading)
    monkeypatch.setattr("time.sleep", waits.append)
    assert follow.follow(name, REGION, console=screen).status == "Failed"
    text = screen.file.getvalue()
    assert text.count("AWS cannot be reached (ConnectTimeoutError)") == 1
    assert text.count("AWS refused DescribeTrainingJob: no; asking again") == 1
    assert text.count("these credentials may not call GetLogEvents") == 1 and "following the status alone" in text
    assert "failed: AlgorithmError: out of memory" in text
    assert waits[:2] == [5, 10] and max(waits) <= 60


def test_lines_that_were_read_before_the_log_was_throttled_are_not_lost(aws, sent, monkeypatch):
    name, tokens = sent.training_job_name, dict[str, str]()
    log(aws, name, "algo-1", "one")
    log(aws, name, "algo-2", "two")
    first = {"events": [{"timestamp": 1, "message": "one"}], "nextForwardToken": "t"}
    throttled = refusal("ThrottlingException", "GetLogEvents")
    with monkeypatch.context() as patch:
        record(patch, GetLogEvents=[first, first | {"events": []}, throttled])
        with pytest.raises(ClientError):
            follow.new_lines(name, aws.client("logs"), tokens)
    assert {line.text for line in follow.new_lines(name, aws.client("logs"), tokens)} == {"one", "two"}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments that name a job.toml which is no TOML, but whose line of the region can be read."""
    (tmp_path / "job.toml").write_text(f'name = "x\nregion = "{REGION}"\n[')
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return ["--job", str(tmp_path / "job.toml")]


def test_a_broken_job_toml_keeps_nobody_from_a_billed_job(aws, sent, broken, tmp_path, monkeypatch, capsys):
    name = sent.training_job_name
    put(aws, sent, archive(("config.json", tarfile.REGTYPE, b"{}")))
    sent.training_job_status = sent.secondary_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert main(["stop", name, *broken]) == 0
    assert asked["StopTrainingJob"] == {"TrainingJobName": name}
    sent.training_job_status, sent.secondary_status = "Failed", "Failed"
    sent.failure_reason = "AlgorithmError: exit code 1"
    log(aws, name, "algo-2", "[rank9]: Traceback (most recent call last):", "[rank9]: ValueError: nan")
    for command, said in {
        ("list",): f"{name} │ Failed",
        ("attach", name): "AlgorithmError: exit code 1",
        ("why", name): "The last lines of rank 9 on algo-2, which failed first:",
        ("fetch", name, "--to", str(tmp_path / "m")): "the model is in",
    }.items():
        assert main([*command, *broken]) == (1 if command[0] == "attach" else 0)
        assert said in capsys.readouterr().out
    assert main(["submit", *broken]) == 1  # which needs it whole
    assert "is not valid TOML" in capsys.readouterr().err


def test_a_job_that_was_launched_here_is_found_in_its_region(aws, sent, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    nowhere = tmp_path / "none.toml"
    with pytest.raises(UserError, match="name it with --region"):
        jobs.region("x", job=nowhere)
    jobs.remember("x", "eu-west-1")
    with jobs.MEMORY.open("a") as file:
        file.write("damaged\n[]\n")
    assert jobs.region("x", job=nowhere) == "eu-west-1"
    assert jobs.region("x", "us-west-2", nowhere) == "us-west-2"


def test_compare_puts_metrics_and_options_side_by_side(aws, sent, capsys):
    made = aws.client("sagemaker").describe_training_job(TrainingJobName=sent.training_job_name)
    keys = ("RoleArn", "AlgorithmSpecification", "OutputDataConfig", "ResourceConfig", "StoppingCondition")
    options = {"epochs": "9", "lr": "0.1", "sagemaker_job_name": "other"}
    again = {"TrainingJobName": "other", "HyperParameters": options, **{key: made[key] for key in keys}}
    aws.client("sagemaker").create_training_job(**again)
    backend = sagemaker_backends[ACCOUNT][REGION].training_jobs
    for name, value in ((sent.training_job_name, 0.8), ("other", 0.9123456)):
        backend[name].final_metric_data_list = [{"MetricName": "test/accuracy", "Value": value, "Timestamp": 0}]
    rows = jobs.compare([sent.training_job_name, "other"], REGION)
    assert rows == [
        {"": "test/accuracy", sent.training_job_name: "0.8", "other": "0.912346"},
        {"": "epochs", sent.training_job_name: "6", "other": "9"},
        {"": "lr", sent.training_job_name: "", "other": "0.1"},
    ]
    assert main(["compare", sent.training_job_name, "other", "--region", REGION]) == 0
    assert "0.912346" in capsys.readouterr().out


def test_jobs_that_do_not_differ_and_what_is_not_deployed(aws, sent, capsys):
    assert main(["compare", *[sent.training_job_name] * 2, "--region", REGION]) == 0
    assert "they do not differ" in capsys.readouterr().out
    assert main(["undeploy", "nope", "--region", REGION]) == 1
    assert "removed nothing: nope is not deployed in us-east-1" in capsys.readouterr().out


def test_ctrl_c_says_whether_something_was_sent(aws, good, monkeypatch, capsys):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.job.load", lambda _: good)
    for step, said in {"account.cost": "interrupted; nothing was sent\n", "follow.follow": "interrupted\n"}.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"launch.{step}", interrupt)
            assert main(["submit"]) == 130
        assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize(("answer", "sends"), [("y", True), ("", False), ("no", False)])
def test_the_price_is_confirmed_on_a_terminal(aws, good, monkeypatch, capsys, answer, sends):
    asked = record(monkeypatch)
    questions: list[str] = []
    monkeypatch.setattr("launch.job.load", lambda _: replace(good, price_per_hour=2.0))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or answer)
    assert main(["submit", "--no-follow"]) == (0 if sends else 1)
    assert ("CreateTrainingJob" in asked) == sends and questions
    assert "4.00 USD an hour, at most 96.00 USD" in capsys.readouterr().out


def test_stop(aws, sent, monkeypatch):
    assert "has ended already: Completed" in jobs.stop(sent.training_job_name, REGION)
    sent.training_job_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert "is stopping" in jobs.stop(sent.training_job_name, REGION)
    assert asked["StopTrainingJob"] == {"TrainingJobName": sent.training_job_name}


def test_a_job_that_is_not_there(aws):
    for command in (jobs.stop, jobs.fetch, follow.follow, follow.why):
        with pytest.raises(UserError, match='no training job "nope" in us-east-1'):
            command("nope", REGION)


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar.gz of (name, type, content or link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            member.linkname = "" if kind == tarfile.REGTYPE else content.decode()
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def put(aws: boto3.Session, sent: Any, body: bytes, name: str = "model.tar.gz") -> None:
    aws.client("s3").put_object(Bucket="language-id", Key=f"{sent.training_job_name}/output/{name}", Body=body)


def test_fetch_brings_model_and_curves(aws, sent, tmp_path):
    put(aws, sent, archive(("./", tarfile.DIRTYPE, b""), ("./config.json", tarfile.REGTYPE, b"{}")))
    put(aws, sent, archive(("curves.csv", tarfile.REGTYPE, b"step\n")), "output.tar.gz")
    folder = jobs.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) == [
        "config.json",
        "output",
        "output/curves.csv",
    ]
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["x"]
    with pytest.raises(UserError, match="exists already"):
        jobs.fetch(sent.training_job_name, REGION, folder)


@pytest.mark.parametrize(
    "body",
    [
        archive(("../evil", tarfile.REGTYPE, b"x")),
        archive(("a/../../evil", tarfile.REGTYPE, b"x")),
        archive(("link", tarfile.SYMTYPE, b"/etc"), ("link/evil", tarfile.REGTYPE, b"x")),
        archive(("link", tarfile.LNKTYPE, b"../../evil")),
        archive(("dev", tarfile.CHRTYPE, b"")),
        archive(("fifo", tarfile.FIFOTYPE, b"")),
        archive(("config.json", tarfile.REGTYPE, b"x" * 10_000))[:60],
        b"no archive",
        b"",
    ],
    ids=["parent", "inner parent", "link", "hard link", "device", "fifo", "cut off", "text", "empty"],
)
def test_fetch_refuses_what_leads_out_or_is_damaged(aws, sent, tmp_path, body):
    put(aws, sent, body)
    with pytest.raises(UserError, match="archive"):
        jobs.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")
    assert not list((tmp_path / "models").iterdir()) and not list(tmp_path.glob("evil"))


def test_fetch_without_a_model(aws, sent, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="left no model at s3://language-id/"):
        jobs.fetch(sent.training_job_name, REGION, tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "describe", lambda *_: {"TrainingJobStatus": "Failed"})
        with pytest.raises(UserError, match="left no model; see its log"):
            jobs.fetch(sent.training_job_name, REGION, tmp_path / "x")
    sent.training_job_status = "InProgress"
    with pytest.raises(UserError, match="no model yet, it is InProgress"):
        jobs.fetch(sent.training_job_name, REGION, tmp_path / "x")


def test_an_upload_that_is_denied_is_said_in_a_sentence(aws, good, monkeypatch, capsys):
    record(monkeypatch, PutObject=[{}, refusal("AccessDenied", "PutObject")])  # the first is the dry run's
    monkeypatch.setattr("launch.job.load", lambda _: good)
    assert main(["submit", "--yes"]) == 1
    assert "AccessDenied" in capsys.readouterr().err.splitlines()[-1]


def test_tuning_is_sent_as_its_dry_run_shows(aws, good, monkeypatch, capsys):
    asked = record(monkeypatch)
    monkeypatch.setattr("sagemaker.telemetry.telemetry_logging._send_telemetry_request", lambda *_: pytest.fail("sent"))
    monkeypatch.setattr(tune, "job_name", lambda job: f"{job.name}-tune")
    job = replace(good, tune=Tune(ranges={"lr": {"min": 1e-4, "max": 1e-2}}), price_per_hour=1.0, keep_alive_s=600)
    monkeypatch.setattr("launch.job.load", lambda _: job)
    assert main(["tune", "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main(["tune"]) == 0
    said, warned = capsys.readouterr()
    assert asked["CreateHyperParameterTuningJob"] == shown and "at most 960.00 USD: 20 jobs ×" in said
    assert "keep_alive_s: a tuning job cannot carry it" in warned and "keep_alive_s" not in said
    assert "its jobs: python -m launch list --region us-east-1; to stop it: aws sagemaker stop-hyper" in said


def test_the_command_from_submit_to_fetch(aws, good, tmp_path, monkeypatch, capsys):
    """It sends exactly what the dry run shows, and `src/` as it is."""
    asked = record(monkeypatch)
    monkeypatch.setattr("sagemaker.telemetry.telemetry_logging._send_telemetry_request", lambda *_: pytest.fail("sent"))
    monkeypatch.setattr(request, "job_name", lambda job: f"{job.name}-20260101-000000")
    monkeypatch.setattr("launch.job.load", lambda _: good)
    assert main(["submit"]) == 0
    said, name = capsys.readouterr().out, "language-id-20260101-000000"
    assert asked["CreateTrainingJob"] == request.dry_run(good)
    assert "job     2 × ml.p4d.24xlarge, smddp, torch 2.5.1 on Python 3.11" in said
    assert f"sent    {name}\n" in said and f"{name} completed" in said
    assert jobs.remembered() == {name: REGION}

    s3 = aws.client("s3")
    body = s3.get_object(Bucket="language-id", Key=f"{name}/source/sourcedir.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        files = [member for member in tar if member.isfile() and "__pycache__" not in member.name]
        contents = {member.name: tar.extractfile(member).read() for member in files}  # type: ignore[union-attr]
    source = [path for path in SRC.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert contents == {path.relative_to(SRC).as_posix(): path.read_bytes() for path in source}

    model = archive(("weights", tarfile.REGTYPE, b"w"))
    s3.put_object(Bucket="language-id", Key=f"{name}/output/model.tar.gz", Body=model)
    assert main(["fetch", name, "--to", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m" / "weights").read_bytes() == b"w"
