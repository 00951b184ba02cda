"""Jobs that were sent: remembered, compared and stopped."""

from pathlib import Path
from typing import Any

import pytest
from moto.sagemaker.models import sagemaker_backends
from moto_account import ACCOUNT, REGION, record, refusal

from smlightning import project as projects
from smlightning.__main__ import main
from smlightning.errors import UserError
from smlightning.launch import fetch, follow, history, jobs

pytest_plugins = ("moto_account", "sent_job")


def test_a_job_that_was_launched_here_is_found_in_its_region(aws, sent, tmp_path):
    here = projects.Project(tmp_path)  # without a job.toml
    with pytest.raises(UserError, match="--region"):
        history.region_of(here, "x")
    history.remember(here, "x", "eu-west-1")
    with Path(history.FILE).open("a") as file:
        file.write("damaged\n[]\n")
    assert history.region_of(here, "x") == "eu-west-1"
    assert history.region_of(here, "x", given="us-west-2") == "us-west-2"
    assert history.latest(here, "eu-west-1", 5) == ["x"]


def test_compare_puts_metrics_and_options_side_by_side(aws, sent, capsys):
    made = aws.client("sagemaker").describe_training_job(TrainingJobName=sent.training_job_name)
    keys = (
        "RoleArn",
        "AlgorithmSpecification",
        "OutputDataConfig",
        "ResourceConfig",
        "StoppingCondition",
    )
    options = {"epochs": "9", "lr": "0.1", "sagemaker_job_name": "other"}
    again = {
        "TrainingJobName": "other",
        "HyperParameters": options,
        **{key: made[key] for key in keys},
    }
    aws.client("sagemaker").create_training_job(**again)
    backend = sagemaker_backends[ACCOUNT][REGION].training_jobs
    for name, value in ((sent.training_job_name, 0.8), ("other", 0.9123456)):
        backend[name].final_metric_data_list = [
            {"MetricName": name_of, "Value": each, "Timestamp": 0}
            for name_of, each in (("test/accuracy", value), ("data_wait", 0.5), ("gpu_gib", 31.25))
        ]
    rows = jobs.compare([sent.training_job_name, "other"], REGION)
    assert rows == [  # metrics, memory and waiting too, though the jobs agree in them
        {"": "data_wait", sent.training_job_name: "0.5", "other": "0.5"},
        {"": "gpu_gib", sent.training_job_name: "31.25", "other": "31.25"},
        {"": "test/accuracy", sent.training_job_name: "0.8", "other": "0.912346"},
        {"": "epochs", sent.training_job_name: "6", "other": "9"},
        {"": "lr", sent.training_job_name: "", "other": "0.1"},
    ]
    assert main(["compare", sent.training_job_name, "other", "--region", REGION]) == 0
    assert "0.912346" in capsys.readouterr().out


def test_jobs_that_do_not_differ_and_what_is_not_deployed(aws, sent, capsys):
    sent.final_metric_data_list = []
    assert main(["compare", *[sent.training_job_name] * 2, "--region", REGION]) == 0
    assert sent.training_job_name not in capsys.readouterr().out
    assert main(["undeploy", "nope", "--region", REGION]) == 1
    said = capsys.readouterr().out
    assert "nope" in said and REGION in said


def test_stop(aws, sent, monkeypatch):
    assert "Completed" in jobs.stop(sent.training_job_name, REGION)
    sent.training_job_status = "InProgress"
    asked = record(monkeypatch, StopTrainingJob={})  # which moto does not know
    assert "120 s" in jobs.stop(sent.training_job_name, REGION)
    assert asked["StopTrainingJob"] == {"TrainingJobName": sent.training_job_name}


def described(aws, sent, status: str, pool: str, keep_alive_s: int = 600) -> dict[str, Any]:
    """DescribeTrainingJob's answer for a job with a warm pool; empty: without."""
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=sent.training_job_name)
    job["ResourceConfig"]["KeepAlivePeriodInSeconds"] = keep_alive_s
    return (
        job | {"TrainingJobStatus": status} | ({"WarmPoolStatus": {"Status": pool}} if pool else {})
    )


def test_stopping_a_job_ends_its_warm_pool(aws, sent, monkeypatch, capsys):
    """AWS updates a pool that is Available, of a job that has ended: train-warm-pools."""
    states = [("InProgress", "InUse")] * 2 + [("Stopping", "InUse"), ("Stopped", "InUse")]
    answers = [described(aws, sent, *state) for state in [*states, ("Stopped", "Available")]]
    answers.insert(3, refusal("ThrottlingException", "DescribeTrainingJob"))
    calls: list[str] = []
    asked = record(
        monkeypatch,
        DescribeTrainingJob=answers,
        StopTrainingJob=lambda _: calls.append("stop") or {},
        UpdateTrainingJob=lambda _: calls.append(f"update, {len(answers)} looks left") or {},
    )
    assert main(["stop", sent.training_job_name, "--region", REGION]) == 0
    assert calls == ["stop", "update, 0 looks left"]
    assert asked["UpdateTrainingJob"]["ResourceConfig"] == {"KeepAlivePeriodInSeconds": 0}
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "120 s" in first and "billed no longer" in last


@pytest.mark.parametrize(
    ("pool", "keep_alive_s", "ends"),
    [("Available", 600, True), ("Reused", 600, False), ("Terminated", 600, False), ("", 0, False)],
)
def test_stopping_an_ended_job_ends_a_pool_that_is_left(
    aws, sent, monkeypatch, capsys, pool, keep_alive_s, ends
):
    job = described(aws, sent, "Failed", pool, keep_alive_s)
    asked = record(monkeypatch, DescribeTrainingJob=lambda _: job, UpdateTrainingJob={})
    assert main(["stop", sent.training_job_name, "--region", REGION]) == 0
    assert ("UpdateTrainingJob" in asked) == ends and "StopTrainingJob" not in asked
    text = capsys.readouterr().out
    assert "has ended already: Failed" in text and ("billed no longer" in text) == ends


def test_a_pool_that_may_not_be_ended_is_said_to_be_billed(aws, sent, monkeypatch, capsys):
    job = described(aws, sent, "Completed", "Available")
    denied = refusal("AccessDeniedException", "UpdateTrainingJob")
    record(monkeypatch, DescribeTrainingJob=lambda _: job, UpdateTrainingJob=denied)
    assert main(["stop", sent.training_job_name, "--region", REGION]) == 1
    said = capsys.readouterr().err
    assert "billed: these credentials may not call UpdateTrainingJob" in said


def test_a_job_that_is_not_there(aws):
    commands = (jobs.stop, follow.follow, follow.why, fetch.model_address)
    for command in commands:
        with pytest.raises(UserError, match=f'"nope" in {REGION}'):
            command("nope", REGION)
