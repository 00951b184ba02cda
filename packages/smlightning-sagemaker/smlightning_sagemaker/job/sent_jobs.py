"""The jobs that were launched from this project, remembered with region and profile."""

import json
import re
import sys
from contextlib import suppress
from pathlib import Path

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.project import Project

KEYS = ("name", "region", "profile", "fingerprint")
FILE = ".jobs.jsonl"  # in the project's folder; a line for each job, as `remember` notes it


def remember(
    project: Project,
    name: str,
    region: str,
    fingerprint: str = "",
    profile: str = "",
) -> None:
    """Note a job that was sent; if the file cannot be written, print why.

    Args:
        project: from which the job was sent.
        name: of the job.
        region: of the job.
        fingerprint: of job and code (sending.fingerprint); finds a job that is sent again.
        profile: of AWS's configuration, with which it was sent.
    """
    entry = {
        "name": name,
        "region": region,
        "profile": profile,
        "fingerprint": fingerprint,
    }
    try:
        with (project.root / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as failure:  # the job is billed all the same, and is followed
        print(f"{name} was not noted here: {failure}", file=sys.stderr)


def entries(project: Project) -> list[dict[str, str]]:
    """The remembered jobs, the oldest first; damaged lines are skipped."""
    path = project.root / FILE
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    jobs = []
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            jobs.append({key: str(entry[key]) for key in KEYS})
    return jobs


def last(project: Project, key: str, value: str) -> dict[str, str]:
    """The last remembered job with this value; empty for none."""
    found = [entry for entry in entries(project) if entry[key] == value]
    return found[-1] if found else {}


def remembered(project: Project) -> dict[str, str]:
    """Name → region of the jobs that were sent, the oldest first."""
    return {entry["name"]: entry["region"] for entry in entries(project)}


def same(project: Project, fingerprint: str) -> str:
    """The name of the last job that was sent with this fingerprint; empty for none."""
    return last(project, "fingerprint", fingerprint).get("name", "")


def latest(project: Project, region: str, count: int) -> list[str]:
    """The names of the last jobs that were launched from here into the region."""
    names = [name for name, where in remembered(project).items() if where == region]
    return names[-count:]


def region_of(
    project: Project, name: str = "", *, given: str = "", job_file: Path | None = None
) -> str:
    """The region of a job: as given, as remembered, of job.toml, else of AWS's configuration.

    From job.toml it reads only the line of the region: the user reaches a billed job in spite of a
    mistake in another line.

    Raises:
        UserError: none of these has it.
    """
    region = given or last(project, "name", name).get("region")
    region = region or value_in(job_file or project.job_file, "region") or aws.session().region_name
    if not region:
        raise UserError(
            "the job's region is not known here",
            "pass it, as in --region us-east-1",
        )
    return str(region)


def use_profile(
    project: Project, name: str = "", *, given: str | None = None, job_file: Path | None = None
) -> None:
    """Sign in with a job's profile, which `--profile` replaces, in job.toml or as remembered."""
    aws.use_profile(profile_of(project, name, given=given, job_file=job_file))


def profile_of(
    project: Project, name: str = "", *, given: str | None = None, job_file: Path | None = None
) -> str:
    """The profile of AWS's configuration: as given, as remembered, else as job.toml says.

    A job may have been sent without one, which counts as well.
    """
    if given is not None:
        return given
    sent = last(project, "name", name)
    return sent["profile"] if sent else value_in(job_file or project.job_file, "profile")


def value_in(job_file: Path, key: str) -> str:
    """The value of a key above the first table of a job.toml, even of an invalid one; or empty."""
    if not job_file.is_file():
        return ""
    text = job_file.read_text(encoding="utf-8-sig", errors="replace")
    above = re.split(r"(?m)^\s*\[", text, maxsplit=1)[0]
    match = re.search(rf"""(?m)^\s*{key}\s*=\s*["']([^"'\n]+)["']""", above)
    return match[1] if match else ""
