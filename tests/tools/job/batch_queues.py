"""A stand-in for AWS Batch's queues of training jobs, which moto does not know.

botocore validates the parameters of each call; the stand-in rejects what AWS's contract rejects
(API_SubmitServiceJob, API_TerminateServiceJob, service-job-payload.html), and creates the training
jobs in moto, as Batch does once there is room. Each look at a job is one step of its life.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from moto_account import ACCOUNT, REGION, record

ARN = f"arn:aws:batch:{REGION}:{ACCOUNT}"
QUEUES: dict[str, dict[str, Any]] = {
    "training": {"state": "ENABLED", "jobQueueType": "SAGEMAKER_TRAINING"},
    "shared": {
        "state": "ENABLED",
        "jobQueueType": "SAGEMAKER_TRAINING",
        "schedulingPolicyArn": f"{ARN}:scheduling-policy/fair",
    },
    "closed": {"state": "DISABLED", "jobQueueType": "SAGEMAKER_TRAINING"},
    "containers": {"state": "ENABLED", "jobQueueType": "ECS"},
}


def rejected(operation: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": "ClientException", "Message": message}}, operation)


@dataclass
class Queues:
    """The account's queues and the service jobs in them.

    Attributes:
        steps: what the next looks at a job find; "attempt": a new training job, in moto.
        requests: SubmitServiceJob, by the job's ID.
    """

    aws: boto3.Session
    steps: list[str] = field(default_factory=lambda: ["RUNNABLE", "attempt", "SUCCEEDED"])
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    attempts: list[str] = field(default_factory=list)  # names of the training jobs

    def describe_queues(self, arguments: dict[str, Any]) -> dict[str, Any]:
        names = [name.rpartition("/")[2] for name in arguments["jobQueues"]]
        found = [
            {"jobQueueName": name, "status": "VALID", **QUEUES[name]}
            for name in names
            if name in QUEUES
        ]
        return {"jobQueues": found}

    def submit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        queue = QUEUES.get(arguments["jobQueue"].rpartition("/")[2])
        if not queue:
            raise rejected("SubmitServiceJob", "Job queue does not exist.")
        if queue["jobQueueType"] != arguments["serviceJobType"]:
            raise rejected("SubmitServiceJob", "The queue is not of this type.")
        if queue["state"] != "ENABLED":
            raise rejected("SubmitServiceJob", "The queue is disabled.")
        if ("schedulingPolicyArn" in queue) != ("shareIdentifier" in arguments):
            raise rejected("SubmitServiceJob", "shareIdentifier belongs to a fair-share policy.")
        if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,127}", arguments["jobName"], re.ASCII):
            raise rejected("SubmitServiceJob", "Job name should match valid pattern")
        if not 1 <= arguments.get("retryStrategy", {}).get("attempts", 1) <= 10:
            raise rejected("SubmitServiceJob", "attempts must be between 1 and 10")
        json.loads(arguments["serviceRequestPayload"])  # passed through without validation
        job_id = f"0bb17543-ece6-4480-b1a7-{len(self.requests):012}"
        self.requests[job_id] = arguments
        self.jobs[job_id] = {"jobId": job_id, "status": "SUBMITTED", "startedAt": 0}
        return {"jobId": job_id, "jobName": arguments["jobName"]}

    def describe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        job = self._job(arguments)
        step = self.steps.pop(0) if self.steps else job["status"]
        if isinstance(step, BaseException):
            raise step
        job["status"] = "SCHEDULED" if step == "attempt" else step
        if step == "attempt":
            self._create(job)
        elif step == "FAILED":
            job.setdefault("statusReason", "Received status from SageMaker: no.")
        return dict(job)

    def terminate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._job(arguments).update(status="FAILED", statusReason=arguments["reason"])
        return {}

    def _job(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["jobId"] not in self.jobs:
            raise rejected("DescribeServiceJob", "Service job does not exist.")
        return self.jobs[arguments["jobId"]]

    def _create(self, job: dict[str, Any]) -> None:
        """An attempt, which SageMaker's own limits judge as far as botocore and moto do."""
        payload = json.loads(self.requests[job["jobId"]]["serviceRequestPayload"])
        attempt = f"{len(self.attempts):032x}"
        name = f"AWSBatch{payload['TrainingJobName'][:23]}{attempt}"
        made = self.aws.client("sagemaker").create_training_job(
            **{**payload, "TrainingJobName": name}
        )
        self.attempts.append(name)
        resource = {"name": "TrainingJobArn", "value": made["TrainingJobArn"]}
        job["latestAttempt"] = {"serviceResourceId": resource}


@pytest.fixture
def batch(aws: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> Queues:
    queues = Queues(aws)
    record(
        monkeypatch,
        DescribeJobQueues=queues.describe_queues,
        SubmitServiceJob=queues.submit,
        DescribeServiceJob=queues.describe,
        TerminateServiceJob=queues.terminate,
    )
    monkeypatch.setattr("time.sleep", lambda _: None)
    return queues
