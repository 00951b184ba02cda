"""Remember and stop jobs that were sent."""

from pathlib import Path
from typing import Any

import pytest

from moto_account import REGION, record, refusal
from smlightning.errors import UserError
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.follow import fetch, follow, jobs
from smlightning_sagemaker.job import sent_jobs

pytest_plugins = ("moto_account", "sent_job")


def test_history_knows_the_region_of_a_job(aws, sent, tmp_path):
    here = projects.Project(tmp_path)  # without a job.toml
    with pytest.raises(UserError, match="--region"):
        sent_jobs.region_of(here, "x")
    for region in ("eu-north-1", "eu-west-1"):
        sent_jobs.remember(here, "x", region)
    with Path(sent_jobs.FILE).open("a") as file:
        file.write("damaged\n[]\n")
    assert sent_jobs.region_of(here, "x") == "eu-west-1"
    assert sent_jobs.region_of(here, "x", given="us-west-2") == "us-west-2"
    assert sent_jobs.latest(here, "eu-west-1", 5) == ["x"]


def test_stop_stops_a_running_job(aws, sent, monkeypatch):
    assert "Completed" in jobs.stop(sent.training_job_name, REGION)
    sent.training_job_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert "120 s" in jobs.stop(sent.training_job_name, REGION)
    assert asked["StopTrainingJob"] == {"TrainingJobName": sent.training_job_name}
    job = described(aws, sent, "InProgress", "InUse")
    record(monkeypatch, DescribeTrainingJob=lambda _: job, StopTrainingJob={})
    assert "stop again" in jobs.stop(sent.training_job_name, REGION)


def test_stop_of_a_job_that_ends_meanwhile_says_so(aws, sent, monkeypatch, capsys):
    """AWS rejects StopTrainingJob of an ended job with a ValidationException."""
    running, stopped = (described(aws, sent, each, "") for each in ("InProgress", "Stopped"))
    answers = iter([running, stopped, running, running])
    record(
        monkeypatch,
        DescribeTrainingJob=lambda _: next(answers),
        StopTrainingJob=refusal("ValidationException", "StopTrainingJob"),
    )
    command = ["stop", sent.training_job_name, "--region", REGION]
    assert main(command) == 0 and "has ended already" in capsys.readouterr().out
    assert main(command) == 1 and "AWS rejects StopTrainingJob" in capsys.readouterr().err


def described(aws, sent, status: str, pool: str, keep_alive_s: int = 600) -> dict[str, Any]:
    """DescribeTrainingJob's answer for a job with a warm pool; empty: without."""
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=sent.training_job_name)
    job["ResourceConfig"]["KeepAlivePeriodInSeconds"] = keep_alive_s
    return (
        job | {"TrainingJobStatus": status} | ({"WarmPoolStatus": {"Status": pool}} if pool else {})
    )


@pytest.mark.parametrize(
    ("pool", "keep_alive_s", "ends"),
    [("Available", 600, True), ("Reused", 600, False), ("Terminated", 600, False), ("", 0, False)],
)
def test_stop_of_an_ended_job_ends_its_available_warm_pool(
    aws, sent, monkeypatch, capsys, pool, keep_alive_s, ends
):
    job = described(aws, sent, "Failed", pool, keep_alive_s)
    asked = record(monkeypatch, DescribeTrainingJob=lambda _: job, UpdateTrainingJob={})
    assert main(["stop", sent.training_job_name, "--region", REGION]) == 0
    assert ("UpdateTrainingJob" in asked) == ends and "StopTrainingJob" not in asked
    text = capsys.readouterr().out
    assert "has ended already: Failed" in text and ("billed no longer" in text) == ends


def test_a_denied_end_of_a_warm_pool_is_an_error(aws, sent, monkeypatch, capsys):
    job = described(aws, sent, "Completed", "Available")
    denied = refusal("AccessDeniedException", "UpdateTrainingJob")
    record(monkeypatch, DescribeTrainingJob=lambda _: job, UpdateTrainingJob=denied)
    assert main(["stop", sent.training_job_name, "--region", REGION]) == 1
    said = capsys.readouterr().err
    assert "billed: AWS rejects UpdateTrainingJob" in said


def test_an_unknown_job_is_an_error_with_its_region(aws):
    def fetched(name: str, region: str) -> Path:
        return fetch.fetch(name, region, Path("model"))

    commands = (jobs.stop, follow.follow, follow.why, fetched)
    for command in commands:
        with pytest.raises(UserError, match=f'"nope" in {REGION}'):
            command("nope", REGION)
