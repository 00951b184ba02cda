"""`submit --queue`: what AWS Batch gets, and how its training jobs are found and stopped.

Batch is a stand-in (batch_queues.py): nobody has seen this at AWS.
"""

import json
import tarfile

import pytest
from batch_queues import Queues
from botocore.exceptions import ClientError, ConnectTimeoutError, ParamValidationError

from moto_account import REGION, record, refusal, simulated
from sent_job import archive
from small_job import PROJECT
from smlightning_sagemaker import project
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import aws, queues, request, sent_jobs
from smlightning_sagemaker.job.job import Create
from smlightning_sagemaker.preflight.account import named as named_checks

pytest_plugins = ("moto_account", "batch_queues")

NAME = "language-id-20260101-000000"
SUBMIT = ["submit", "--yes", "--queue", "training"]


@pytest.fixture(autouse=True)
def named(good, monkeypatch):
    monkeypatch.setattr(request, "job_name", lambda job: NAME)
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)


def test_a_queue_gets_the_request_that_submit_sends(batch: Queues, good, monkeypatch, capsys):
    """Member by member, except for tags, which become the service job's."""
    tagged = good.replace(tags={"project": "words"})
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: tagged)
    assert main([*SUBMIT, "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main([*SUBMIT, "--no-follow"]) == 0
    (sent,) = batch.requests.values()
    payload = json.loads(sent["serviceRequestPayload"])
    direct = request.dry_run(tagged, PROJECT)
    assert direct.pop("Tags") == [{"Key": "project", "Value": "words"}]
    assert payload == direct
    assert sent == shown and sent["tags"] == {"project": "words"}
    assert sent["jobName"] == NAME and sent["jobQueue"] == "training"
    assert sent.keys() == {
        *("jobName", "jobQueue", "serviceJobType", "serviceRequestPayload", "tags")
    }
    code = batch.aws.client("s3").list_objects_v2(Bucket="language-id")["Contents"]
    assert [item["Key"] for item in code] == [f"{NAME}/source/sourcedir.tar.gz"]


def test_submit_follows_each_attempt_and_the_name_finds_the_last(batch, capsys, tmp_path):
    """Batch runs the job twice, as after a lack of capacity; looks that fail are made again."""
    batch.steps = [
        "SUBMITTED",
        "RUNNABLE",
        refusal("ThrottlingException", "DescribeServiceJob"),
        ConnectTimeoutError(endpoint_url=f"https://batch.{REGION}.amazonaws.com/"),
        "RUNNABLE",
        "attempt",
        "RUNNABLE",
        "attempt",
        "SUCCEEDED",
    ]
    assert main(SUBMIT) == 0
    said = capsys.readouterr().out
    assert said.count("is RUNNABLE") == 2  # each wait once
    assert said.count("retrying until AWS answers") == 1
    first, second = batch.attempts
    assert f"runs as {first}" in said and f"{first} completed" in said
    assert f"runs as {second}" in said and f"{second} completed" in said
    assert sent_jobs.remembered(project.find()) == {NAME: REGION}

    model = archive(("weights", tarfile.REGTYPE, b"w"))
    place = {"Bucket": "language-id", "Key": f"{second}/output/model.tar.gz"}
    batch.aws.client("s3").put_object(**place, Body=model)
    assert main(["fetch", NAME, "--to", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m" / "weights").read_bytes() == b"w"
    assert main(["attach", NAME]) == 0
    said = capsys.readouterr().out
    assert f"{second} completed" in said and f"{first} completed" not in said


def test_a_job_that_waits_has_no_training_job_yet(batch, capsys):
    batch.steps = ["RUNNABLE"]
    assert main([*SUBMIT, "--no-follow"]) == 0
    capsys.readouterr()
    for command in (["why", NAME], ["compare", "x", NAME]):
        assert main(command) == 1
        said = capsys.readouterr().err
        assert f"{NAME} is RUNNABLE in its queue" in said and f"attach {NAME}" in said


def test_ctrl_c_leaves_the_job_in_its_queue_and_stop_ends_it(batch, capsys):
    batch.steps = ["RUNNABLE", KeyboardInterrupt()]
    assert main(SUBMIT) == 130
    said = capsys.readouterr().out
    assert f"smlightning attach {NAME} --region {REGION}" in said and f"stop {NAME}" in said
    assert main(["stop", NAME]) == 0
    assert "Batch removes it from its queue" in capsys.readouterr().out
    (job,) = batch.jobs.values()
    assert job["status"] == "FAILED"
    assert main(["attach", NAME]) == 1
    said = capsys.readouterr().err
    assert "is FAILED in its queue" in said and "smlightning stop; " in said


def test_stop_of_an_ended_job_looks_at_its_training_job(batch, capsys):
    """Which may have a warm pool."""
    assert main(SUBMIT) == 0
    assert main(["stop", NAME]) == 0
    assert f"{batch.attempts[0]} has ended already: Completed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("none", "queue none is missing"),
        ("containers", "queue containers is not for training jobs"),
        ("closed", "queue closed is DISABLED"),
    ],
)
def test_a_queue_that_takes_no_training_jobs_is_rejected(batch, capsys, queue, said):
    assert main(["submit", "--yes", "--queue", queue]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and said in errors[0]
    assert not batch.requests


def test_the_facts_about_a_queue_are_those_of_awss_model():
    model = aws.model("batch")
    known = {
        *model.shape_for("JQStatus").enum,
        *model.shape_for("JQState").enum,
        *("missing", "not for training jobs"),
    }
    assert {*named_checks.QUEUE.unusable} < known
    assert queues.TYPE in model.shape_for("ServiceJobType").enum
    assert queues.TYPE in model.shape_for("JobQueueType").enum
    assert {*queues.ENDED} < {*model.shape_for("ServiceJobStatus").enum}


def test_a_queue_that_may_not_be_described_is_skipped(batch, monkeypatch, capsys):
    record(monkeypatch, DescribeJobQueues=refusal("AccessDenied", "DescribeJobQueues"))
    assert main([*SUBMIT, "--no-follow"]) == 0
    assert (
        "skipped --queue: these credentials may not look up queue training"
        in capsys.readouterr().err
    )


def test_permissions_are_those_for_a_queue(batch, monkeypatch, capsys):
    """The caller needs no CreateTrainingJob, which Batch calls, but SubmitServiceJob."""
    asked = simulated("sagemaker:CreateTrainingJob", "batch:SubmitServiceJob")
    record(monkeypatch, SimulatePrincipalPolicy=asked)
    assert main([*SUBMIT, "--no-follow"]) == 1
    said = capsys.readouterr().err
    assert "error   caller.batch:SubmitServiceJob" in said and "CreateTrainingJob" not in said


def test_the_members_of_create_are_sent(batch, good, monkeypatch):
    given = {
        "retryStrategy": {"attempts": 3},
        "schedulingPriority": 5,
        "shareIdentifier": "team",
        "timeoutConfig": {"attemptDurationSeconds": 3600},
    }
    wanted = good.replace(create={"ServiceJob": given})
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: wanted)
    assert main(["submit", "--yes", "--no-follow", "--queue", "shared"]) == 0
    (sent,) = batch.requests.values()
    assert given.items() <= sent.items()


WRONG = [
    {"jobQueue": "none"},
    {"jobQueue": "closed"},
    {"jobQueue": "containers"},
    {"jobQueue": "shared"},  # without a share
    {"shareIdentifier": "team"},  # without a policy of shares
    {"jobName": "a name"},
    {"retryStrategy": {"attempts": 11}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_the_stand_in_rejects_what_batch_rejects(batch, good, wrong):
    right = queues.service_job(request.dry_run(good, PROJECT), "training", Create())
    client = batch.aws.client("batch")
    with pytest.raises(ClientError, match="ClientException"):
        client.submit_service_job(**{**right, **wrong})
    assert client.submit_service_job(**right)["jobName"] == NAME


def test_the_stand_in_validates_as_botocore_does(batch, good):
    right = queues.service_job(request.dry_run(good, PROJECT), "training", Create())
    client = batch.aws.client("batch")
    payload = json.loads(right["serviceRequestPayload"])
    with pytest.raises(AssertionError):
        client.submit_service_job(**{**right, "serviceRequestPayload": payload})
    # Batch passes the payload on without a check; SageMaker rejects it.
    del payload["RoleArn"]
    wrong = client.submit_service_job(**{**right, "serviceRequestPayload": json.dumps(payload)})
    batch.steps = ["attempt"]
    with pytest.raises(ParamValidationError):
        client.describe_service_job(jobId=wrong["jobId"])
    with pytest.raises(ClientError, match="does not exist"):
        client.describe_service_job(jobId="another")
