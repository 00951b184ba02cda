"""Following a job: its log, status and metrics against moto, in process."""

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from moto_account import REGION, record, refusal
from sent_job import console, log

from options import METRICS
from smlightning.__main__ import main
from smlightning.errors import UserError
from smlightning.launch import follow, job_log

pytest_plugins = ("moto_account", "sent_job")


def test_following_a_job_to_its_end(aws, sent, monkeypatch):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name, screen = sent.training_job_name, console()
    log(aws, name, "algo-1", "Invoking TorchDistributed...")

    def later(seconds: float) -> None:
        monkeypatch.setattr(
            "time.sleep", lambda _: log(aws, name, "algo-1", "the log's end comes late", at=3000)
        )
        log(
            aws,
            name,
            "algo-1",
            "epoch 3... lr=0.1.",
            "step=1 epoch=1 train/loss=1.5",
            "test/accuracy 0.8123",
            at=1000,
        )
        log(
            aws,
            name,
            "algo-2",
            "[1,mpirank:8,algo-2]<stdout>:step=2 epoch=1 val/loss=0.5 [/red]",
            at=2000,
        )
        sent.training_job_status = sent.secondary_status = "Completed"
        sent.training_time_in_seconds, sent.billable_time_in_seconds = 3661, 1220
        sent.enable_managed_spot_training = True

    monkeypatch.setattr("time.sleep", later)
    outcome = follow.follow(name, REGION, METRICS, console=screen)
    text = screen.file.getvalue()
    assert outcome.status == "Completed"
    assert outcome.rows == [
        {"step": 1, "epoch": 1, "train/loss": 1.5},
        {"test/accuracy": 0.8123},
        {"step": 2, "epoch": 1, "val/loss": 0.5},
    ]
    assert "0:00:00 Starting Preparing the instances" in text  # moto's words
    assert (
        text.count("algo-1 step=1 epoch=1 train/loss=1.5") == 1
        and "algo-2 [1,mpirank:8" in text
        and "[/red]" in text
    )
    assert f"python -m smlightning fetch {name}" in text
    assert all(part in text for part in ("1:01:01", "0:20:20", "2 instances", "67%"))
    assert "the log's end comes late" in text
    assert "epoch 1 of 6 · step 2 · train/loss 1.5" in follow.progress(outcome)


def test_an_empty_page_is_not_the_logs_end(aws, sent, monkeypatch):
    log(aws, sent.training_job_name, "algo-1", "one")
    event, pages = {"timestamp": 1, "message": "two"}, []
    for token, events in (("a", []), ("b", [event]), ("b", [])):
        pages.append({"events": events, "nextForwardToken": token})
    record(monkeypatch, GetLogEvents=pages)
    lines = job_log.new_lines(sent.training_job_name, aws.client("logs"), {})
    assert [line.text for line in lines] == ["two"] and not pages


def test_curves_need_steps(tmp_path):
    outcome = follow.Outcome("x", METRICS, lines=[job_log.Line(0, "algo-1", "lr=0.1")])
    with pytest.raises(UserError) as raised:
        outcome.curves(tmp_path)
    assert "x " in raised.value.problem and not list(tmp_path.iterdir())


def test_a_line_of_the_log_is_searched_once(monkeypatch):
    """A job of days has a long log, of which each look brings a few lines."""
    searched = []
    metrics = job_log.metrics
    monkeypatch.setattr(
        job_log, "metrics", lambda line, of: searched.append(line) or metrics(line, of)
    )
    outcome = follow.Outcome("x", METRICS)
    lines = [job_log.Line(n, "algo-1", f"step={n} lr=0.{n}") for n in range(6)]
    for some in (lines[:2], lines[2:3], [], lines[3:]):
        outcome.add(some)
        assert outcome.latest == {} or outcome.latest["step"] == len(outcome.rows) - 1
    assert searched == outcome.lines == lines and len(outcome.rows) == 6


def test_a_failed_job_shows_why_and_the_rank_that_failed_first(aws, sent, capsys):
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: ExecuteUserScriptError: ExitCode 1"
    name = sent.training_job_name
    log(
        aws,
        name,
        "algo-1",
        "[rank0]: Traceback (most recent call last):",
        "[rank0]: connection closed by peer",
        at=500,
    )
    log(
        aws,
        name,
        "algo-2",
        "fine",
        "[rank9]: Traceback (most recent call last):",
        "[rank9]: ValueError: nan",
        at=400,
    )
    log(
        aws,
        name,
        "algo-2",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 9 (local_rank: 1)",
        at=900,
    )
    screen = console()
    assert follow.follow(name, REGION, console=screen).status == "Failed"
    text = screen.file.getvalue()
    assert sent.failure_reason in text
    assert "rank 9 on algo-2" in text
    assert text.rstrip().endswith(
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
def test_the_first_failure(lines, who, last):
    assert job_log.first_failure(
        [job_log.Line(i, host, text) for i, (host, text) in enumerate(lines)]
    ) == (who, last)


def test_a_stopped_job_says_by_whom_and_how_to_resume(aws, sent):
    sent.training_job_status = "Stopped"
    for secondary, told in {
        "Stopped": "someone",
        "MaxRuntimeExceeded": "max_run_s",
        "MaxWaitTimeExceeded": "max_wait_s",
    }.items():
        sent.secondary_status, screen = secondary, console()
        assert follow.follow(sent.training_job_name, REGION, console=screen).status == "Stopped"
        text = screen.file.getvalue()
        assert told in text and 'checkpoint_s3 = "s3://language-id/checkpoints"' in text


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
        f"smlightning attach {name}",
        f"smlightning stop {name}",
        f"us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/{name}",
    ):
        assert way in screen.file.getvalue()


def test_credentials_that_expire_meanwhile_do_not_end_the_job(aws, sent, monkeypatch, capsys):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name = sent.training_job_name
    first = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
    record(
        monkeypatch,
        DescribeTrainingJob=[first, refusal("ExpiredTokenException", "DescribeTrainingJob")],
    )
    assert main(["attach", name, "--region", REGION]) == 1
    said = capsys.readouterr()
    assert f"python -m smlightning attach {name}" in said.out
    assert said.err.startswith("error: ") and "aws configure" in said.err


def test_following_waits_out_a_lost_network_and_throttling_and_does_without_the_log(
    aws, sent, monkeypatch
):
    """Down to the right verdict; each is said once."""
    name, screen, waits = sent.training_job_name, console(), list[float]()
    sent.training_job_status = sent.secondary_status = "InProgress"
    sagemaker = aws.client("sagemaker")
    running = sagemaker.describe_training_job(TrainingJobName=name)
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: out of memory"
    ended = sagemaker.describe_training_job(TrainingJobName=name)
    cut, throttled = (
        ConnectTimeoutError(endpoint_url="x"),
        refusal("ThrottlingException", "DescribeTrainingJob"),
    )
    answers = [cut, cut, running, throttled, running, ended, ended]
    log(aws, name, "algo-1", "step=1 epoch=1 train/loss=1.5")
    page = {"events": [], "nextForwardToken": "t"}
    reading = [page, page, throttled, refusal("AccessDeniedException", "GetLogEvents")]
    record(monkeypatch, DescribeTrainingJob=answers + [ended] * 3, GetLogEvents=reading)
    monkeypatch.setattr("time.sleep", waits.append)
    assert follow.follow(name, REGION, console=screen).status == "Failed"
    text = screen.file.getvalue()
    assert text.count("ConnectTimeoutError") == 1
    assert text.count("DescribeTrainingJob") == 1
    assert text.count("GetLogEvents") == 1
    assert sent.failure_reason in text
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
            job_log.new_lines(name, aws.client("logs"), tokens)
    assert {line.text for line in job_log.new_lines(name, aws.client("logs"), tokens)} == {
        "one",
        "two",
    }


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (
            "CapacityError: Unable to provision requested ML compute capacity. Please retry using "
            "a different ML instance type or after some time.",
            "instance_type",
        ),
        ("InternalServerError: InsufficientInstanceCapacity error", "instance_type"),
        ("ResourceLimitExceeded: The account-level service limit is 0 instances", "Service Quotas"),
        ("AlgorithmError: torch.OutOfMemoryError: CUDA out of memory", "batch_size"),
        ("AlgorithmError: ExecuteUserScriptError: exit code: 137", "batch_size"),
        ("RuntimeError: DataLoader worker is killed by signal: Bus error", "num_workers"),
        ("AlgorithmError: ValueError: nan", ""),
    ],
)
def test_a_failure_of_capacity_or_memory_says_what_can_be_done(reason, word):
    advice = follow.cure_of(reason)
    assert word in advice and bool(advice) == bool(word)


def test_log_and_reason_reach_the_terminal_without_control_characters(aws, sent, capsys):
    hostile = "Error: a\x1b[2Jb\x1b]0;title\x07c\x9b31m\u202ed"
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = hostile
    name = sent.training_job_name
    log(aws, name, "algo-1", hostile, f"Traceback (most recent call last): {hostile}")
    for command in ("why", "attach", "compare", "list"):
        others = [name] if command == "compare" else []
        words = [] if command == "list" else [name, *others]
        main([command, *words, "--region", REGION])
        printed = "".join(capsys.readouterr())
        assert printed and not set(printed) & set("\x1b\x07\x9b\u202e"), command
        assert command in ("compare", "list") or r"a\x1b[2Jb" in printed
