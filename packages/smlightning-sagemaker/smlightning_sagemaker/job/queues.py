"""Send a job to a queue of AWS Batch, and find the training jobs that Batch creates for it.

Such a queue holds a service job until there is room for it, and Batch calls CreateTrainingJob with
its payload then. Each attempt is a training job with a name of its own, which Batch makes
(batch/latest/userguide/service-jobs.html).
"""

import json
import time
from collections.abc import Iterator
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws, request
from smlightning_sagemaker.job.job import Create

TYPE = "SAGEMAKER_TRAINING"
ENDED = ("SUCCEEDED", "FAILED")
POLL_S = 15.0  # between two looks at a job that waits
ATTEMPT = 32  # characters of an attempt's ID, with which its training job's name ends
# Batch's own policy, AWSBatchServiceRolePolicyForSageMaker, allows it no other names.
PREFIX = "AWSBatch"
LONGEST_NAME = 63  # of a training job


def service_job(body: dict[str, Any], queue: str, create: Create) -> dict[str, Any]:
    """SubmitServiceJob with a training job as its payload, and the members of [create.ServiceJob].

    Tags become those of the service job, as the SDK sends them (sagemaker.aws_batch,
    submit_service_job). All other members of the training job stay as they are.

    Raises:
        JobError: a member of [create.ServiceJob] is wrong, or the command sets it itself.
    """
    payload = {member: value for member, value in body.items() if member != "Tags"}
    members: dict[str, Any] = {
        "jobName": body["TrainingJobName"],
        "jobQueue": queue,
        "serviceJobType": TYPE,
        "serviceRequestPayload": json.dumps(payload),
    }
    if "Tags" in body:
        members["tags"] = {tag["Key"]: tag["Value"] for tag in body["Tags"]}
    return request.with_members("ServiceJob", members, create)


def training_jobs_pattern(name: str) -> str:
    """The pattern of the names of the training jobs that Batch creates for a service job.

    The name begins with `AWSBatch` and ends with the attempt's ID. How AWS shortens a long name is
    not documented; the pattern has as much of it as surely fits.

    Args:
        name: of the training job in the payload; `*` at its end: the beginning of the name.
    """
    return f"{PREFIX}{name.removesuffix('*')[: LONGEST_NAME - len(PREFIX) - ATTEMPT]}*"


def training_jobs(name: str, service_job: str, region: str) -> Iterator[str]:
    """The name of each attempt's training job once Batch has created it, until the job ends.

    Prints the state of a job that waits.

    Args:
        name: with which the job was sent.
        service_job: its ID in Batch.
        region: of its queue.

    Raises:
        UserError: the service job ended without a training job.
    """
    latest = ""
    while True:
        job = _awaited(name, service_job, region, latest)
        created = _latest(job)
        if created == latest:
            break
        latest = created
        print(f"queue   {name} runs as {created}", flush=True)
        yield created
    if not latest:
        raise _without_training_job(name, job)


def _awaited(name: str, service_job: str, region: str, before: str) -> dict[str, Any]:
    """DescribeServiceJob's answer once there is another training job, or the service job ended.

    Args:
        before: the name of the training job that is known already.
    """
    client, shown = aws.client("batch", region), ""
    try:
        while True:
            job: dict[str, Any] = aws.answer(lambda: client.describe_service_job(jobId=service_job))
            status = job["status"]
            if _latest(job) != before or status in ENDED:
                return job
            if status != shown:
                print(f"queue   {name} is {status}", flush=True)
            shown = status
            time.sleep(POLL_S)
    except BaseException:  # Ctrl-C, or credentials that expired meanwhile
        command = "python -m smlightning_sagemaker"
        print("\nThe job stays in its queue.")
        print(f"To follow it again: {command} attach {name} --region {region}")
        print(f"To stop it: {command} stop {name} --region {region}")
        raise


def training_job(name: str, service_job: str, region: str) -> str:
    """The name of the latest attempt's training job.

    Raises:
        UserError: there is none yet.
    """
    job = aws.client("batch", region).describe_service_job(jobId=service_job)
    created = _latest(job)
    if not created:
        raise _without_training_job(name, job)
    return created


def stop(name: str, service_job: str, region: str) -> str:
    """End a service job, with its training job if there is one; a line about it.

    Empty for one that has ended already.
    """
    client = aws.client("batch", region)
    if client.describe_service_job(jobId=service_job)["status"] in ENDED:
        return ""
    client.terminate_service_job(jobId=service_job, reason="smlightning stop")
    return f"{name} is stopping: Batch removes it from its queue, and stops its training job"


def _latest(job: dict[str, Any]) -> str:
    """The name of the latest attempt's training job; empty without one."""
    arn = job.get("latestAttempt", {}).get("serviceResourceId", {}).get("value", "")
    return str(arn).rpartition("/")[2]


def _without_training_job(name: str, job: dict[str, Any]) -> UserError:
    status, reason = job["status"], job.get("statusReason", "AWS gives no reason").rstrip(".")
    problem = f"{name} is {status} in its queue, and has no training job"
    if status in ENDED:
        return UserError(f"{problem}: {reason}", "correct the cause, and send the job again")
    return UserError(problem, f"wait for it: smlightning attach {name}")
