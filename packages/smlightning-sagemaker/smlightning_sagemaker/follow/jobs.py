"""List and stop jobs that were sent, without job.toml."""

import sys
from collections.abc import Collection

from smlightning import terminal
from smlightning_sagemaker.follow.follow import ENDED, KEEP_ALIVE, clock, describe
from smlightning_sagemaker.job import aws

LISTED = 20  # jobs in a table


def table(region: str, launched_here: Collection[str]) -> list[dict[str, str]]:
    """A row for each of the region's latest jobs."""
    client = aws.client("sagemaker", region)
    newest = client.list_training_jobs(
        SortBy="CreationTime", SortOrder="Descending", MaxResults=LISTED
    )
    rows = []
    for job in newest["TrainingJobSummaries"]:
        name = job["TrainingJobName"]
        started = job["CreationTime"]
        ended = job.get("TrainingEndTime") or job["LastModifiedTime"]
        rows.append(
            {
                "job": name,
                "status": job["TrainingJobStatus"],
                "sent": f"{started:%Y-%m-%d %H:%M}",
                "took": clock((ended - started).total_seconds()),
                "from here": "yes" if name in launched_here else "",
            }
        )
    return rows


def stop(name: str, region: str) -> str:
    """Stop the job, or end the warm pool of a job that has ended, and return a line about it.

    AWS ends a pool only after its job has ended
    (https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools-how-to-use.html).
    """
    from botocore.exceptions import ClientError

    client = aws.client("sagemaker", region)
    job = describe(name, client)
    if job["TrainingJobStatus"] not in ENDED:
        try:
            client.stop_training_job(TrainingJobName=name)
        except ClientError:
            job = describe(name, client)
            if job["TrainingJobStatus"] not in ENDED:  # else it ended meanwhile
                raise
        else:
            done = f"{name} is stopping; SageMaker gives it 120 s, and keeps model and checkpoints"
            if job.get("ResourceConfig", {}).get(KEEP_ALIVE):
                done += (
                    "; to end its warm pool, which is billed, run stop again once it has stopped"
                )
            return done
    status = job["TrainingJobStatus"]
    if job.get("WarmPoolStatus", {}).get("Status") != "Available":
        return f"{name} has ended already: {status}"
    with aws.errors(f"the warm pool of {name} may be kept, and billed"):
        client.update_training_job(TrainingJobName=name, ResourceConfig={KEEP_ALIVE: 0})
    return f"{name} has ended already: {status}; its warm pool ends now, and is billed no longer"


def print_rows(rows: list[dict[str, str]]) -> None:
    """Print rows of equal keys as a table with a column for each key."""
    from rich.markup import escape
    from rich.table import Column, Table

    names = list(rows[0]) if rows else ["no jobs"]
    table = Table(*(Column(name, overflow="fold") for name in names))
    for row in rows:
        table.add_row(*map(escape, row.values()))
    width = None if sys.stdout.isatty() else 120
    terminal.console(width=width, force_jupyter=False).print(table)
