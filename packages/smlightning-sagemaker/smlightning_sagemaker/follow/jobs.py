"""List, compare and stop jobs that were sent, without job.toml."""

import sys
from collections.abc import Collection
from typing import Any

from smlightning import terminal
from smlightning_sagemaker.follow.follow import ENDED, KEEP_ALIVE, clock, describe
from smlightning_sagemaker.job import aws, resources

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


def compare(names: list[str], region: str) -> list[dict[str, str]]:
    """A row for each metric, and for each option and setting in which the jobs differ.

    The key "" holds the row's name, each other key the value of a job.
    """
    client = aws.client("sagemaker", region)
    described = {name: describe(name, client) for name in names}
    measured = {key for job in described.values() for key in metrics(job)}
    facts = {name: summary(job) for name, job in described.items()}
    keys = dict.fromkeys(key for fact in facts.values() for key in fact)
    rows = []
    for key in keys:
        values = {name: fact.get(key, "") for name, fact in facts.items()}
        differs = len(set(values.values())) > 1
        if len(names) == 1 or differs or key in measured:
            rows.append({"": key, **values})
    return rows


def summary(job: dict[str, Any]) -> dict[str, str]:
    """The last value of each metric, status, instances, times and options of a job, as text.

    Args:
        job: DescribeTrainingJob's answer.
    """
    facts = {
        "status": job["TrainingJobStatus"],
        "instances": resources.shown(resources.candidates(job["ResourceConfig"])[0]),
        "image": job["AlgorithmSpecification"].get("TrainingImage", "").rpartition("/")[2],
        "trained": clock(job.get("TrainingTimeInSeconds", 0)),
        "billed": clock(job.get("BillableTimeInSeconds", 0)),
    }
    options = {}
    for key, value in sorted(job.get("HyperParameters", {}).items()):
        # Skip the toolkit's own hyperparameters except the launcher's flag, which differs by job.
        if not key.startswith("sagemaker_") or key.endswith("_enabled"):
            options[key] = value
    return {**metrics(job), **facts, **options}


def metrics(job: dict[str, Any]) -> dict[str, str]:
    """Name → last value of each metric, in alphabetical order."""
    last = job.get("FinalMetricDataList", [])
    return dict(sorted((metric["MetricName"], f"{metric['Value']:.6g}") for metric in last))


def stop(name: str, region: str) -> str:
    """Stop the job, or end the warm pool of a job that has ended, and return a line about it.

    AWS ends a pool only after its job has ended
    (https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools-how-to-use.html).
    """
    client = aws.client("sagemaker", region)
    job = describe(name, client)
    status = job["TrainingJobStatus"]
    if status not in ENDED:
        client.stop_training_job(TrainingJobName=name)
        done = f"{name} is stopping; SageMaker gives it 120 s, and keeps model and checkpoints"
        if job["ResourceConfig"].get(KEEP_ALIVE):
            done += "; to end its warm pool, which is billed, run stop again once it has stopped"
        return done
    if job.get("WarmPoolStatus", {}).get("Status") != "Available":
        return f"{name} has ended already: {status}"
    with aws.errors(f"the warm pool of {name} may be kept, and billed"):
        client.update_training_job(TrainingJobName=name, ResourceConfig={KEEP_ALIVE: 0})
    return f"{name} has ended already: {status}; its warm pool ends now, and is billed no longer"


def print_rows(rows: list[dict[str, str]], none: str = "no jobs") -> None:
    """Print rows as a table whose columns are the first row's keys.

    Args:
        rows: of equal keys.
        none: text for an empty table.
    """
    from rich.markup import escape
    from rich.table import Column, Table

    names = list(rows[0]) if rows else [none]
    table = Table(*(Column(name, overflow="fold") for name in names))
    for row in rows:
        table.add_row(*map(escape, row.values()))
    width = None if sys.stdout.isatty() else 120
    terminal.console(width=width, force_jupyter=False).print(table)
