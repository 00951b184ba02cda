"""The commands of the command line, except `rehearse`: their options, and what they do.

A command imports heavy modules when it runs, so that `--help` answers at once.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smlightning.errors import UserError
from smlightning.files import ensure_dir
from smlightning_sagemaker import findings
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job import aws, sent_jobs
from smlightning_sagemaker.project import Project

if TYPE_CHECKING:
    from smlightning_sagemaker.job.job import Job
    from smlightning_sagemaker.job.request import Destination

Option = tuple[str, dict[str, Any]]  # the arguments of argparse's add_argument
Run = Callable[[argparse.Namespace, Project], int]


@dataclass(frozen=True)
class Command:
    """A command; `run` returns its exit status, 0 or 1."""

    help: str
    example: str
    options: tuple[Option, ...]
    run: Run


COMMANDS: dict[str, Command] = {}  # in the order of the work


def command(name: str, text: str, *options: Option, example: str = "") -> Callable[[Run], Run]:
    """Make a function the command of this name, with its help and an example of its arguments."""

    def add(run: Run) -> Run:
        COMMANDS[name] = Command(text, f"{name} {example}".strip(), options, run)
        return run

    return add


def option(name: str, text: str, **settings: Any) -> Option:
    """An option or argument, with its help."""
    return name, {"help": text, **settings}


JOB_FILE = option("--job", "job file (the project's job.toml)", type=Path, metavar="FILE")
PROFILE = option("--profile", "profile of AWS's configuration (as in job.toml)", metavar="NAME")
ACCEPT = option(
    "--accept", "turn the error KEY into a warning", action="append", default=[], metavar="KEY"
)
YES = option("--yes", "accept the price without a question", action="store_true")
DRY_RUN = option("--dry-run", "print the request as JSON and send nothing", action="store_true")
REPORT = option("--json", "also write the result to this file", type=Path, metavar="FILE")


# Commands with this option are for jobs that were sent, and need no valid job.toml.
REGION = option(
    "--region", "region of the job (the one it was sent to, or of job.toml)", default=""
)
NAME = option("name", "name of the training job", metavar="JOB")
A_JOB = "words-20260101-120000"


def run(arguments: argparse.Namespace) -> int:
    """Run a command and return its exit status, 0 or 1.

    Raises:
        UserError: for every mistake of the user, and for every error of AWS.
    """
    with aws.errors():
        is_sent = "region" in arguments
        project = project_or_folder() if is_sent else projects.find()
        arguments.job = arguments.job or project.job_file
        name, job_file = getattr(arguments, "name", ""), arguments.job
        sent_jobs.use_profile(project, name, given=arguments.profile, job_file=job_file)
        if is_sent:
            given = arguments.region
            arguments.region = sent_jobs.region_of(project, name, given=given, job_file=job_file)
        else:
            project.add_src_to_path()
        return COMMANDS[arguments.command].run(arguments, project)


def project_or_folder() -> Project:
    """The project, or the working directory: a job that was sent needs no project."""
    try:
        return projects.find()
    except UserError:
        return Project(Path.cwd())


def metrics(project: Project) -> tuple[str, ...]:
    """METRICS of src/options.py; without that file none, so that a log can still be followed."""
    try:
        return project.options().metrics
    except UserError:
        return ()


@command(
    "preflight",
    "check job.toml, src/ and the account before the job costs anything",
    ACCEPT,
    option("--offline", "use no network: neither AWS nor a package index", action="store_true"),
    REPORT,
    example="--offline",
)
def run_preflight(arguments: argparse.Namespace, project: Project) -> int:
    """Print the findings of all checks; 1 if there is an error."""
    from smlightning_sagemaker import preflight
    from smlightning_sagemaker.job import job, price

    if arguments.json:
        ensure_dir(arguments.json.parent)  # before minutes of work
    try:
        wanted = job.load(arguments.job, project)
    except job.JobError as error:
        report(error.findings, arguments.json)
        print("preflight failed: fix the errors above")
        return 1
    results = preflight.run(
        wanted,
        project,
        offline=arguments.offline,
        accept=arguments.accept,
    )
    report(results, arguments.json)
    print(preflight.summary(wanted, project))
    print(price.cost(wanted, offline=arguments.offline))
    print(preflight.verdict(results, offline=arguments.offline))
    return int(findings.has_errors(results))


def report(results: Sequence[Finding], file: Path | None) -> None:
    """Print the findings, and write them to a JSON file if one is given."""
    if file:
        content = {
            "ok": not findings.has_errors(results),
            "findings": [asdict(finding) for finding in results],
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        file.write_text(text, encoding="utf-8")
    for finding in results:
        print(finding)


@command(
    "submit",
    "send the job and follow it; Ctrl-C leaves it running",
    ACCEPT,
    DRY_RUN,
    option("--no-follow", "print the job's name and exit", action="store_true"),
    YES,
    example="--dry-run",
)
def submit(arguments: argparse.Namespace, project: Project) -> int:
    """Build the request, check it, show it, ask the user, send it, and follow the job."""
    from smlightning_sagemaker import preflight
    from smlightning_sagemaker.job import job, price, sending, source_archive

    wanted = job.load(arguments.job, project)
    destination = destination_of(wanted, arguments)
    versions = source_archive.versions(project.src)
    results, body = preflight.all_findings(wanted, project, destination, offline=arguments.dry_run)
    if print_findings(results, arguments.accept):
        return 1
    if body is None:
        raise UserError("an accepted error prevents the request", "correct the errors above")
    if arguments.dry_run:
        print(json.dumps(body, indent=2))
        return 0
    print(preflight.summary(wanted, project))
    print(price.cost(wanted))
    fingerprint = sending.fingerprint(wanted, project)
    before = sent_jobs.same(project, fingerprint)
    if before:
        print(f"again   the same job was sent as {before}")
    if not confirmed(arguments.yes):
        return 1
    if source_archive.versions(project.src) != versions:
        raise UserError("a file of src/ has changed since it was checked", "run the command again")
    name = sending.submit(wanted, project, destination, body)
    print(f"sent    {name}", flush=True)  # at once: from now on the job is billed
    profile = sent_jobs.profile_of(project, given=arguments.profile, job_file=arguments.job)
    sent_jobs.remember(project, name, wanted.region, fingerprint, profile)
    if arguments.no_follow:
        return 0
    return followed(project, name, wanted.region)


def followed(project: Project, name: str, region: str) -> int:
    """Follow a job; 1 unless it completed."""
    from smlightning_sagemaker.follow import follow

    return int(follow.follow(name, region, metrics(project)).status != "Completed")


def destination_of(wanted: "Job", arguments: argparse.Namespace) -> "Destination":
    """Role and bucket of the account; placeholders for a dry run, which needs no credentials."""
    from smlightning_sagemaker.job import request, sending

    if arguments.dry_run:
        return request.dry_destination(wanted)
    aws.client("sts", wanted.region).get_caller_identity()  # fails without credentials
    return sending.account_destination(wanted, create=False)


def print_findings(results: Sequence[Finding], accepted: Sequence[str]) -> bool:
    """Print the findings to standard error; whether there is an error."""
    shown = findings.ordered(results, accepted)
    for finding in shown:
        print(finding, file=sys.stderr)
    return findings.has_errors(shown)


def confirmed(yes: bool) -> bool:
    """Whether the user agrees to send the job, on the terminal or by `--yes`.

    Raises:
        UserError: there is no terminal, and no `--yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("the command needs a confirmation, and there is no terminal", "pass --yes")
    try:
        agrees = input("Send it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        agrees = False
    if not agrees:
        print("nothing was sent")
    return agrees


@command("list", "list the latest jobs", REGION, example="--region us-east-1")
def list_jobs(arguments: argparse.Namespace, project: Project) -> int:
    from smlightning_sagemaker.follow import jobs

    launched_here = sent_jobs.latest(project, arguments.region, 5 * jobs.LISTED)
    jobs.print_rows(jobs.table(arguments.region, launched_here))
    return 0


@command("follow", "follow a job again", REGION, NAME, example=A_JOB)
def follow(arguments: argparse.Namespace, project: Project) -> int:
    return followed(project, arguments.name, arguments.region)


@command(
    "why",
    "print which rank of a job failed first, and its last lines",
    REGION,
    NAME,
    example=A_JOB,
)
def why(arguments: argparse.Namespace, project: Project) -> int:
    from smlightning_sagemaker.follow import follow

    follow.why(arguments.name, arguments.region)
    return 0


@command("stop", "stop a job, and end its warm pool", REGION, NAME, example=A_JOB)
def stop(arguments: argparse.Namespace, project: Project) -> int:
    from smlightning_sagemaker.follow import jobs

    print(jobs.stop(arguments.name, arguments.region))
    return 0


@command(
    "fetch",
    "download the model of a job, for src/predict.py",
    REGION,
    NAME,
    option("--to", "target folder (models/JOB)", type=Path, metavar="DIR"),
    example=f"{A_JOB} --to models/best",
)
def fetch(arguments: argparse.Namespace, project: Project) -> int:
    from smlightning_sagemaker.follow.fetch import fetch

    target = arguments.to or project.root / "models" / arguments.name
    folder = fetch(arguments.name, arguments.region, target)
    ask = f'python src/predict.py --model_dir {folder} "a text"'
    print(f"the model is in {folder}; use it: {ask}")
    return 0
