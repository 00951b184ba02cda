"""The jobs that were launched from this project, remembered with their regions."""

import json
import re
from pathlib import Path

from smlightning.errors import UserError
from smlightning.project import Project

FILE = ".jobs.jsonl"  # in the project's folder; a line for each job: name, region, fingerprint


def remember(project: Project, name: str, region: str, fingerprint: str = "") -> None:
    """Note a job that was sent.

    Args:
        project: from which.
        name: of the job.
        region: where it runs.
        fingerprint: of job and code (sending.fingerprint), by which the same job is known again.
    """
    entry = {"name": name, "region": region, "fingerprint": fingerprint}
    with (project.root / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def entries(project: Project) -> list[dict[str, str]]:
    """What was noted of each job, the oldest first. A line that is damaged is passed over."""
    path = project.root / FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    jobs = []
    for line in lines:
        try:
            entry = json.loads(line)
            jobs.append({"name": str(entry["name"]), "region": str(entry["region"])})
            jobs[-1]["fingerprint"] = str(entry.get("fingerprint", ""))
        except (ValueError, TypeError, KeyError):
            continue
    return jobs


def remembered(project: Project) -> dict[str, str]:
    """Name → region of the jobs that were sent, the oldest first."""
    return {entry["name"]: entry["region"] for entry in entries(project)}


def same(project: Project, fingerprint: str) -> str:
    """The name of the last job that was sent with this fingerprint; empty for none."""
    names = [entry["name"] for entry in entries(project) if entry["fingerprint"] == fingerprint]
    return names[-1] if names else ""


def latest(project: Project, region: str, count: int) -> list[str]:
    """The names of the last jobs that were launched from here into the region."""
    names = [name for name, where in remembered(project).items() if where == region]
    return names[-count:]


def region_of(
    project: Project, name: str = "", *, given: str = "", job_file: Path | None = None
) -> str:
    """Where a job runs: as given, as remembered, as job.toml says, else as AWS is configured here.

    Of job.toml only the region's line is read: a mistake in another keeps nobody from a billed job.

    Raises:
        UserError: none of these says it.
    """
    region = given or remembered(project).get(name) or region_in(job_file or project.job_file)
    if not region:
        import boto3

        region = boto3.Session().region_name or ""
    if not region:
        raise UserError(
            "the job's region is not known here",
            "name it with --region, as in --region us-east-1",
        )
    return region


def region_in(job_file: Path) -> str:
    """The region that a job.toml names, valid or not; empty if there is none."""
    if not job_file.is_file():
        return ""
    text = job_file.read_text(encoding="utf-8-sig", errors="replace")
    match = re.search(r"""(?m)^\s*region\s*=\s*["']([a-z0-9-]+)["']""", text)
    return match[1] if match else ""
