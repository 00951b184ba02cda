"""Whether a queue of AWS Batch takes training jobs."""

from collections.abc import Iterator

from smlightning.launch.account.context import Context
from smlightning.launch.findings import Finding, error
from smlightning.launch.queues import TYPE


def queue(context: Context) -> Iterator[Finding]:
    """The queue of `submit --queue` exists, is for training jobs, and is enabled."""
    name = context.queue
    if not name:
        return
    found = context.ask("batch", "describe_job_queues", jobQueues=[name])["jobQueues"]
    if not found:
        problem = f"there is no queue {name} in {context.job.region}"
        yield error("--queue", problem, "name one that aws batch describe-job-queues prints")
        return
    kind, state = found[0].get("jobQueueType", "ECS"), found[0]["state"]
    status = found[0].get("status", "VALID")
    if kind != TYPE:
        problem = f"{name} is a queue of type {kind}, and training jobs need one of {TYPE}"
        yield error("--queue", problem, "name a queue of that type")
    if state != "ENABLED" or status not in ("VALID", "UPDATING"):
        problem = f"{name} is {state} and {status}, and takes no jobs"
        yield error("--queue", problem, "enable it, or name another queue")
