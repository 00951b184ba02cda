"""Follow a job, its log, status and metrics, in moto."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from moto_account import REGION, record, refusal
from options import METRICS
from sent_job import console, log
from smlightning.errors import UserError
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.follow import follow, job_log
from smlightning_sagemaker.job.aws import explain, hint_of

pytest_plugins = ("moto_account", "sent_job")


def test_follow_prints_log_status_and_metrics_to_the_end(aws, sent, monkeypatch):
    sent.training_job_status = sent.secondary_status = "InProgress"
    name, screen = sent.training_job_name, console()
    log(aws, name, "algo-1", "Invoking TorchDistributed...")
    late = "Traceback (most recent call last): the log's end comes late, within a stack trace"

    def later(seconds: float) -> None:
        monkeypatch.setattr("time.sleep", lambda _: log(aws, name, "algo-1", late, at=3000))
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
    assert f"smlightning fetch {name}" in text
    assert all(part in text for part in ("1:01:01", "0:20:20", "each instance", "67%"))
    assert late in text
    assert "epoch 1 of 6 · step 2 · train/loss 1.5" in follow.progress(outcome)


def test_the_live_line_prints_markup_as_text(aws, sent):
    sent.hyper_parameters = {"epochs": "[/red]"}
    log(aws, sent.training_job_name, "algo-1", "step=1 epoch=1 train/loss=1.5")
    screen = console()
    follow.follow(sent.training_job_name, REGION, METRICS, console=screen)
    assert "completed" in screen.file.getvalue()


def test_an_empty_page_is_not_the_logs_end(aws, sent, monkeypatch):
    log(aws, sent.training_job_name, "algo-1", "one")
    event, pages = {"timestamp": 1, "message": "two"}, []
    for token, events in (("a", []), ("b", [event]), ("b", [])):
        pages.append({"events": events, "nextForwardToken": token})
    record(monkeypatch, GetLogEvents=pages)
    lines = job_log.Log(sent.training_job_name, aws.client("logs")).new_lines()
    assert [line.text for line in lines] == ["two"] and not pages


def test_curves_need_steps(tmp_path):
    outcome = follow.Outcome("x", METRICS)
    outcome.add([job_log.Line(0, "algo-1", "lr=0.1")])
    with pytest.raises(UserError) as raised:
        outcome.curves(tmp_path)
    assert "x " in raised.value.problem and not list(tmp_path.iterdir())


def test_a_failed_job_prints_its_reason_and_first_rank(aws, sent, capsys):
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
def test_first_failure_finds_rank_or_host(lines, who, last):
    assert job_log.first_failure(
        [job_log.Line(i, host, text) for i, (host, text) in enumerate(lines)]
    ) == (who, last)


def test_a_stopped_job_prints_its_reason_and_checkpoints(aws, sent):
    sent.training_job_status = "Stopped"
    waited = {"Status": "Stopped", "StatusMessage": "Training job waited too long for capacity."}
    started = {"StartTime": datetime.now(UTC), "EndTime": datetime.now(UTC)}
    sent.secondary_status_transitions = [
        {"Status": "Pending", "StatusMessage": "Preparing the instances", **started},
        {**waited, **started},
    ]
    for secondary, told in {
        "Stopped": "language-id-20260101-000000 was stopped: Training job waited too long for cap",
        "MaxRuntimeExceeded": "max_run_s",
        "MaxWaitTimeExceeded": "max_wait_s",
    }.items():
        sent.secondary_status, screen = secondary, console()
        assert follow.follow(sent.training_job_name, REGION, console=screen).status == "Stopped"
        text = screen.file.getvalue()
        assert told in text and 'checkpoint_s3 = "s3://language-id/checkpoints"' in text


@pytest.mark.parametrize(
    ("end", "status"),
    [(KeyboardInterrupt(), 130), (refusal("ExpiredTokenException", "DescribeTrainingJob"), 1)],
)
def test_an_end_of_the_following_prints_how_to_follow_and_stop(
    aws, sent, monkeypatch, capsys, end, status
):
    """Ctrl-C, or credentials that expire meanwhile; the job runs on."""

    def wait(seconds: float) -> None:
        raise end

    sent.training_job_status = sent.secondary_status = "InProgress"
    monkeypatch.setattr("time.sleep", wait)
    name = sent.training_job_name
    assert main(["follow", name, "--region", REGION]) == status
    said = capsys.readouterr()
    for way in (
        f"smlightning follow {name}",
        f"smlightning stop {name}",
        f"us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/{name}",
    ):
        assert way in said.out
    assert ("aws configure" in said.err) == (status == 1)
    assert sent.training_job_status == "InProgress"


def test_follow_waits_out_a_lost_network_and_throttling(aws, sent, monkeypatch):
    """botocore's standard retry mode repeats the calls."""
    sent.training_job_status = sent.secondary_status = "Completed"
    lost = ConnectTimeoutError(endpoint_url=f"https://api.sagemaker.{REGION}.amazonaws.com/")
    answers = [*[lost] * 5, *[throttled()] * 5]
    waits = list[float]()

    def answer(request: Any, **_: Any) -> Any:
        if not answers:
            return None  # moto answers
        problem = answers.pop()
        if isinstance(problem, Exception):
            raise problem
        return problem

    monkeypatch.setattr("time.sleep", waits.append)
    follower = follow.Follower(follow.Outcome(sent.training_job_name), REGION, console())
    follower._sagemaker.meta.events.register_first("before-send.sagemaker", answer)
    follower.look()
    assert follower.outcome.status == "Completed"
    assert not answers and len(waits) >= 10 and max(waits) <= 20


def throttled() -> AWSResponse:
    """The answer of a service that limits how often it is called."""
    body = b'{"__type": "ThrottlingException", "message": "Rate exceeded"}'
    raw = SimpleNamespace(stream=lambda **_: iter([body]))
    return AWSResponse("", 400, {"content-type": "application/x-amz-json-1.1"}, raw)


# Errors of CloudWatch Logs, and the part that is printed. Names:
# AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html and CommonErrors.html there.
UNREADABLE = {
    "throttled": ("GetLogEvents", "ThrottlingException", "in a minute"),
    "listing throttled": ("DescribeLogStreams", "ThrottlingException", "in a minute"),
    "denied": ("GetLogEvents", "AccessDeniedException", "GetLogEvents"),
    "stream deleted": ("GetLogEvents", "ResourceNotFoundException", "log stream does not exist"),
    "group deleted": ("DescribeLogStreams", "ResourceNotFoundException", "group does not exist"),
    "answer lost": ("GetLogEvents", "", f"logs.{REGION}.amazonaws.com"),
    "no way": ("DescribeLogStreams", "", f"logs.{REGION}.amazonaws.com"),
}


def unreadable(case: str) -> tuple[dict[str, Any], str]:
    """AWS's answer for a log that cannot be read, by operation, and words of its reason."""
    operation, code, words = UNREADABLE[case]
    kind = "group" if operation == "DescribeLogStreams" else "stream"
    message = f"The specified log {kind} does not exist." if "NotFound" in code else "Rate exceeded"
    answer: Exception = ClientError({"Error": {"Code": code, "Message": message}}, operation)
    if not code:
        failure = ReadTimeoutError if operation == "GetLogEvents" else ConnectTimeoutError
        answer = failure(endpoint_url=f"https://logs.{REGION}.amazonaws.com/")
    return {operation: lambda _: answer}, words


@pytest.mark.parametrize(
    ("command", "case"), [*(("why", case) for case in UNREADABLE), ("follow", "stream deleted")]
)
def test_status_and_reason_are_printed_without_the_log(
    aws, sent, monkeypatch, capsys, command, case
):
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: ValueError: nan"
    name = sent.training_job_name
    log(aws, name, "algo-1", "[rank0]: ValueError: nan")
    answer, words = unreadable(case)
    with monkeypatch.context() as patch:
        record(patch, **answer)
        assert main([command, name, "--region", REGION]) == (command == "follow")
    text = capsys.readouterr().out
    assert f"{name} failed: {sent.failure_reason}" in text
    assert text.count(words) == 1 and "[rank0]" not in text
    assert main([command, name, "--region", REGION]) == (command == "follow")
    text = capsys.readouterr().out
    assert words not in text and "[rank0]: ValueError: nan" in text


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_job_is_followed_to_its_end_without_its_log(aws, sent, monkeypatch, case):
    name, screen, looks = sent.training_job_name, console(), list[float]()
    sent.training_job_status = sent.secondary_status = "InProgress"
    log(aws, name, "algo-1", "step=1")

    def later(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            sent.training_job_status = sent.secondary_status = "Completed"

    monkeypatch.setattr("time.sleep", later)
    answer, words = unreadable(case)
    record(monkeypatch, **answer)
    assert follow.follow(name, REGION, console=screen).status == "Completed"
    assert screen.file.getvalue().count(words) == 1 and len(looks) < 8


def test_a_job_without_instances_of_its_own_is_described(aws, sent, monkeypatch, capsys):
    """As AWS's serverless jobs: ResourceConfig is not in each answer (API_DescribeTrainingJob)."""
    name = sent.training_job_name
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
    del job["ResourceConfig"]
    log(aws, name, "algo-1", "step=1")
    record(monkeypatch, DescribeTrainingJob=job)
    for command in ("why", "follow", "stop"):
        assert main([command, name, "--region", REGION]) == 0
    assert f"{name} completed" in capsys.readouterr().out


def test_a_missing_log_is_reported(aws, sent, capsys):
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "ClientError: no image"
    for command in ("why", "follow"):
        main([command, sent.training_job_name, "--region", REGION])
        text = capsys.readouterr().out
        assert sent.failure_reason in text and text.count("holds no line") == 1


@pytest.mark.parametrize("command", ["why", "follow"])
def test_the_reason_is_of_the_last_attempt(aws, sent, monkeypatch, capsys, command):
    """An error of an earlier attempt is not the reason of the failure."""
    name = sent.training_job_name
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: ValueError: nan"
    texts = {
        f"{name}/algo-1-1700000000": "[rank0]: ConnectionError: spot",
        f"{name}/algo-1-1700003600": "[rank0]: ValueError: nan",
    }
    streams = [{"logStreamName": stream} for stream in texts]

    def page(asked: dict[str, Any]) -> dict[str, Any]:
        events = [{"timestamp": 1, "message": texts[asked["logStreamName"]]}]
        return {"events": [] if "nextToken" in asked else events, "nextForwardToken": "end"}

    record(monkeypatch, DescribeLogStreams=lambda _: {"logStreams": streams}, GetLogEvents=page)
    assert main([command, name, "--region", REGION]) == int(command == "follow")
    text = capsys.readouterr().out.partition("failed: ")[2]
    assert "rank 0 on algo-1" in text and "spot" not in text


def test_the_first_failure_is_the_earliest_also_if_its_line_comes_late(aws, sent, monkeypatch):
    name, screen = sent.training_job_name, console()
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = "AlgorithmError: ExecuteUserScriptError: ExitCode 1"
    log(aws, name, "algo-1", "error: connection closed by peer", at=500)
    late = ("algo-2", "error: no data")
    monkeypatch.setattr("time.sleep", lambda _: log(aws, name, *late, at=-5000))
    follow.follow(name, REGION, console=screen)
    assert "The last lines of algo-2, which failed first" in screen.file.getvalue()


def test_a_log_that_comes_after_the_jobs_end_is_not_missed(aws, sent, monkeypatch):
    name, screen = sent.training_job_name, console()
    monkeypatch.setattr("time.sleep", lambda _: log(aws, name, "algo-1", "the only line"))
    follow.follow(name, REGION, console=screen)
    text = screen.file.getvalue()
    assert "the only line" in text and "holds no line" not in text


def test_lines_before_a_throttled_call_are_kept(aws, sent, monkeypatch):
    name = sent.training_job_name
    log(aws, name, "algo-1", "one")
    log(aws, name, "algo-2", "two")
    first = {"events": [{"timestamp": 1, "message": "one"}], "nextForwardToken": "t"}
    second = {"events": [{"timestamp": 2, "message": "two"}], "nextForwardToken": "u"}
    throttled = refusal("ThrottlingException", "GetLogEvents")
    pages = [first, first | {"events": []}, throttled]
    pages += [first | {"events": []}, second, second | {"events": []}]
    record(monkeypatch, GetLogEvents=pages)
    reading = job_log.Log(name, aws.client("logs"))
    assert [line.text for line in reading.new_lines()] == ["one"]
    assert reading.problem is throttled
    assert [line.text for line in reading.new_lines()] == ["two"]
    assert reading.problem is None and not pages


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-central-1", "eu-central-1.console.aws.amazon.com"),
        ("cn-northwest-1", "cn-northwest-1.console.amazonaws.cn"),
        ("us-gov-west-1", "us-gov-west-1.console.amazonaws-us-gov.com"),
    ],
)
def test_the_console_of_each_partition_has_its_address(region, host):
    assert follow.url(region) == f"https://{host}/sagemaker/home?region={region}#/jobs"


@pytest.mark.parametrize(
    ("pool", "printed", "absent"),
    [
        ({"Status": "Available"}, ("billed for up to 6:00:00", "stop language-id"), "ended"),
        ({"Status": "InUse"}, ("billed for up to 6:00:00", "stop language-id"), "ended"),
        ({"Status": "Reused"}, (), "warm pool"),
        ({"Status": "Terminated"}, (), "warm pool"),
        (None, (), "warm pool"),
        ({"Status": "InUse", "keep_alive_s": 0}, (), "warm pool"),
    ],
)
def test_a_warm_pool_is_reported_as_billed(aws, sent, monkeypatch, capsys, pool, printed, absent):
    """WarmPoolStatus as API_WarmPoolStatus documents it; moto has none."""
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=sent.training_job_name)
    kept = (pool or {}).get("keep_alive_s", 21600)
    job["ResourceConfig"]["KeepAlivePeriodInSeconds"] = kept
    job |= {"WarmPoolStatus": pool} if pool else {}
    record(monkeypatch, DescribeTrainingJob=lambda _: job)
    for command in ("why", "follow"):
        main([command, sent.training_job_name, "--region", REGION])
        text = capsys.readouterr().out
        assert all(words in text for words in printed) and absent not in text


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (
            "ResourceLimitExceeded",
            "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0 "
            "Instances, with current utilization of 0 Instances and a request delta of 2 "
            "Instances. Please use AWS Service Quotas to request an increase for this quota.",
            "Service Quotas",
        ),
        ("ThrottlingException", "Rate exceeded", "in a minute"),
        ("InternalFailure", "", "in a minute"),
        ("ValidationException", "Could not assume role", "correct the value in this message"),
    ],
)
def test_a_call_that_aws_rejects_has_the_hint_of_its_reason(
    code: str, message: str, hint: str
) -> None:
    """CreateTrainingJob's errors and AWS's common ones (API_CreateTrainingJob, CommonErrors)."""
    failure = ClientError({"Error": {"Code": code, "Message": message}}, "CreateTrainingJob")
    known = explain(failure)
    assert hint in known.hint and (message.rstrip(".") or code) in known.problem


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (
            "CapacityError: Unable to provision requested ML compute capacity. Please retry using "
            "a different ML instance type or after some time.",
            "InstancePreferences",
        ),
        ("InternalServerError: InsufficientInstanceCapacity error", "InstancePreferences"),
        ("ResourceLimitExceeded: The account-level service limit is 0 instances", "Service Quotas"),
        ("AlgorithmError: torch.OutOfMemoryError: CUDA out of memory", "batch_size"),
        ("AlgorithmError: ExecuteUserScriptError: exit code: 137", "batch_size"),
        ("RuntimeError: DataLoader worker is killed by signal: Bus error", "num_workers"),
        (
            "InternalServerError: We encountered an internal error. Please try again.",
            "RetryStrategy",
        ),
        ("AlgorithmError: DistBackendError: ncclInternalError: Internal check failed", ""),
        ("AlgorithmError: hub: 500 InternalServerError", ""),
        ("AlgorithmError: ValueError: nan", ""),
    ],
)
def test_a_failure_of_capacity_or_memory_has_a_hint(reason, word):
    advice = hint_of(reason)
    assert word in advice and bool(advice) == bool(word)


def test_log_and_reason_reach_the_terminal_without_control_characters(aws, sent, capsys):
    text = "Error: a\x1b[1mb\x1b]0;title\x07c\x9b31m\u202ed"
    sent.training_job_status = sent.secondary_status = "Failed"
    sent.failure_reason = text
    name = sent.training_job_name
    log(aws, name, "algo-1", text, f"Traceback (most recent call last): {text}")
    for command in ("why", "follow", "list"):
        words = [] if command == "list" else [name]
        main([command, *words, "--region", REGION])
        printed = "".join(capsys.readouterr())
        assert printed and not set(printed) & set("\x1b\x07\x9b\u202e"), command
        assert command == "list" or r"a\x1b[1mb" in printed
