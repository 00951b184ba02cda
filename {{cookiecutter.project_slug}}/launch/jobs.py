"""Jobs that were launched: remembered, listed, compared, stopped, and their models fetched. None needs job.toml."""

import json
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

from launch import ROOT, aws
from launch.follow import ENDED, clock, describe
from runtime.report import UserError

MEMORY = ROOT / ".jobs.jsonl"  # a line for each job launched from here: its name and region


def remember(name: str, region: str) -> None:
    """Note a job that was sent, so that its region need not be given again."""
    with MEMORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, "region": region}) + "\n")


def remembered() -> dict[str, str]:
    """Name → region, the oldest first. A line that is damaged is passed over."""
    found = {}
    for line in MEMORY.read_text(encoding="utf-8").splitlines() if MEMORY.is_file() else ():
        try:
            entry = json.loads(line)
            found[str(entry["name"])] = str(entry["region"])
        except (ValueError, TypeError, KeyError):
            continue
    return found


def latest(where: str, count: int) -> list[str]:
    """The names of the last jobs that were launched from here into the region."""
    return [name for name, region in remembered().items() if region == where][-count:]


def region(name: str = "", given: str = "", job: Path = ROOT / "job.toml") -> str:
    """Where a job runs: as given, as remembered, else as job.toml says, of which no other line needs to be valid.

    Raises:
        UserError: nothing says it.
    """
    import boto3

    text = job.read_text(encoding="utf-8-sig", errors="replace") if job.is_file() else ""
    written = re.search(r"""(?m)^\s*region\s*=\s*["']([a-z0-9-]+)["']""", text)
    found = given or remembered().get(name) or (written and written[1]) or boto3.Session().region_name
    if not found:
        raise UserError("the job's region is not known here; name it with --region, as in --region us-east-1")
    return str(found)


def table(where: str) -> list[dict[str, str]]:
    """The region's latest 20 jobs: name, status, when sent, how long, and whether they were launched from here."""
    own, client = latest(where, 100), aws.client("sagemaker", where)
    newest = client.list_training_jobs(SortBy="CreationTime", SortOrder="Descending", MaxResults=20)
    rows = []
    for job in newest["TrainingJobSummaries"]:
        name, started = job["TrainingJobName"], job["CreationTime"]
        took = clock(((job.get("TrainingEndTime") or job["LastModifiedTime"]) - started).total_seconds())
        row = {"job": name, "status": job["TrainingJobStatus"], "sent": f"{started:%Y-%m-%d %H:%M}", "took": took}
        rows.append(row | {"from here": "yes" if name in own else ""})
    return rows


def compare(names: list[str], where: str) -> list[dict[str, str]]:
    """A row for each metric, and for each option and setting in which the jobs differ; a column for each job."""
    client = aws.client("sagemaker", where)
    facts = {name: summary(describe(name, client)) for name in names}
    rows = []
    for key in dict.fromkeys(key for fact in facts.values() for key in fact):
        values = {name: fact.get(key, "") for name, fact in facts.items()}
        if len(names) == 1 or "/" in key or len(set(values.values())) > 1:  # metrics are told even where they agree
            rows.append({"": key, **values})
    return rows


def summary(job: dict[str, Any]) -> dict[str, str]:
    """The last value of each metric, status, instances, times and options of a job, as text."""
    metrics = {metric["MetricName"]: f"{metric['Value']:.6g}" for metric in job.get("FinalMetricDataList", [])}
    resources, options = job["ResourceConfig"], job.get("HyperParameters", {})
    facts = {
        "status": job["TrainingJobStatus"],
        "instances": f"{resources.get('InstanceCount', '?')} × {resources.get('InstanceType', '?')}",
        "image": job["AlgorithmSpecification"].get("TrainingImage", "").rpartition("/")[2],
        "trained": clock(job.get("TrainingTimeInSeconds", 0)),
        "billed": clock(job.get("BillableTimeInSeconds", 0)),
    }
    told = {k: v for k, v in sorted(options.items()) if not k.startswith("sagemaker_") or k.endswith("_enabled")}
    return dict(sorted(metrics.items())) | facts | told


def stop(name: str, where: str) -> str:
    """Ask SageMaker to stop the job; what will happen, in words."""
    client = aws.client("sagemaker", where)
    status = describe(name, client)["TrainingJobStatus"]
    if status in ENDED:
        return f"{name} has ended already: {status}"
    client.stop_training_job(TrainingJobName=name)
    return f"{name} is stopping; SageMaker gives it 120 s, and keeps its model and checkpoints"


def fetch(name: str, where: str, target: Path | None = None) -> Path:
    """Download the job's model to `models/<job>`, with its curves in `output/` where there are any; the folder.

    Raises:
        UserError: there is no model, or its archive is damaged or holds what does not belong into it.
    """
    from botocore.exceptions import ClientError

    target = target or ROOT / "models" / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists already; remove it, or name another folder with --to")
    s3, job = aws.client("s3", where), describe(name, aws.client("sagemaker", where))
    log = f"see its log: python -m launch attach {name}"
    if job["TrainingJobStatus"] not in ENDED:
        raise UserError(f"{name} has no model yet, it is {job['TrainingJobStatus']}; {log}")
    uri = job.get("ModelArtifacts", {}).get("S3ModelArtifacts", "")
    if not uri:
        raise UserError(f"{name} left no model; {log}")
    bucket, key = aws.s3_location(uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        for archive, into in ((key, "model"), (key.replace("model.tar.gz", "output.tar.gz"), "model/output")):
            try:
                s3.download_file(bucket, archive, f"{folder}/archive")
                unpack(Path(folder, "archive"), Path(folder, into))
            except ClientError as error:
                if aws.code(error) not in ("404", "NoSuchKey"):
                    raise
                if into == "model":
                    raise UserError(f"{name} left no model at {uri}; {log}") from error
        Path(folder, "model").replace(target)
    return target


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar.gz within `target`; Python's `data` filter refuses devices and whatever leads out of the folder.

    Raises:
        UserError: the archive is damaged, too large for the disk, or refused.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            if sum(member.size for member in tar) > shutil.disk_usage(target).free:
                raise UserError(f"the archive needs more than is free on the disk of {target}; free some, or use --to")
            tar.extractall(target, filter="data")
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"the archive cannot be unpacked ({error}); fetch it again, or see what was saved") from error


def print_rows(rows: list[dict[str, str]], none: str = "no jobs") -> None:
    """Print rows as a table whose columns are the first row's keys; `none` says that there are none."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    columns = [Column(name, overflow="fold") for name in (rows or [{none: ""}])[0]]
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(escape, row.values()))
    Console(width=None if sys.stdout.isatty() else 120, force_jupyter=False).print(table)
