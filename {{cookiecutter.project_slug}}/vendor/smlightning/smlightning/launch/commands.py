"""What each command of the command line does, but for `rehearse`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smlightning import project as projects
from smlightning.errors import UserError
from smlightning.files import ensure_dir
from smlightning.launch import aws, findings, history, job, preflight, price, request
from smlightning.launch.findings import Finding
from smlightning.launch.job import Job
from smlightning.launch.request import Destination
from smlightning.project import Project


def run(arguments: argparse.Namespace) -> int:
    """The exit status of a command: 0 or 1.

    Raises:
        UserError: of everything that is to be mended, AWS's refusals too.
    """
    with aws.errors():
        name, given, job_file = getattr(arguments, "name", ""), arguments.profile, arguments.job
        if arguments.command in COMMANDS:
            project = projects.find()
            project.add_src_to_path()
            history.use_profile(project, given=given, job_file=job_file)
            return COMMANDS[arguments.command](arguments, project)
        project = project_or_folder()
        history.use_profile(project, name, given=given, job_file=job_file)
        region = history.region_of(project, name, given=arguments.region, job_file=job_file)
        return COMMANDS_OF_JOBS[arguments.command](arguments, project, region)


def project_or_folder() -> Project:
    """The project, else the working directory: a job that was sent needs none."""
    try:
        return projects.find()
    except UserError:
        return Project(Path.cwd())


def metric_names(project: Project) -> tuple[str, ...]:
    """METRICS of src/options.py; none without that file: the log can be followed all the same."""
    try:
        return project.options().metrics
    except UserError:
        return ()


def run_preflight(arguments: argparse.Namespace, project: Project) -> int:
    """Print what is wrong with the job, and rehearse one with which nothing is."""
    from smlightning.launch import tune

    if arguments.channel and not arguments.rehearse:
        raise UserError(
            "--channel gives data to a rehearsal, and none was asked for", "add --rehearse"
        )
    if arguments.json:
        ensure_dir(arguments.json.parent)  # before minutes of work
    job_file = arguments.job or project.job_file
    try:
        wanted = job.load(job_file, project)
    except job.JobError as error:
        report(error.findings, arguments.json)
        print("preflight failed: fix the errors above")
        return 1
    results = preflight.run(
        wanted,
        project,
        offline=arguments.offline,
        accept=arguments.accept,
        also=tune.ranges(wanted, project),
        sender=arguments.sender,
    )
    report(results, arguments.json)
    print(preflight.summary(wanted, project))
    print(price.cost(wanted, offline=arguments.offline))
    if findings.refused(results):
        print(
            "preflight failed: fix the errors above, "
            "or pass --accept KEY for one that does not apply"
        )
        return 1
    print(preflight.passed(results))
    if not arguments.rehearse:
        return 0
    command = preflight.rehearsal(wanted, project, job_file)
    if arguments.profile is not None:
        command.append(f"--profile={arguments.profile}")
    for channel in arguments.channel:
        command += ["--channel", channel]
    return subprocess.run(command, cwd=project.root).returncode


def estimate(arguments: argparse.Namespace, project: Project) -> int:
    """Print whether the job's model fits, and how long it trains."""
    from smlightning.launch.estimate import command

    return command.estimate(arguments, project)


def account(arguments: argparse.Namespace, project: Project) -> int:
    """Print what the job needs in an account: CloudFormation, or a policy alone."""
    from smlightning.launch.account import template

    wanted = job.load(arguments.job or project.job_file, project)
    who, image = arguments.policy, arguments.image
    template.refuse_options(who, arguments.sender, image)
    results, body = preflight.offline_checks(wanted, project)
    wrong = [finding for finding in results if finding.level == "error"]
    # Then it is not known what the job needs, or for which account.
    if body is None or any(finding.key == "role" for finding in wrong):
        refused(wrong, ())
        return 1
    if not who:
        import yaml

        content = template.cloudformation(
            wanted,
            project,
            github=arguments.github,
            without_ids=arguments.without_ids,
            existing_bucket=arguments.existing_bucket,
        )
        text = yaml.safe_dump(content, sort_keys=False, width=100).rstrip()
    else:
        account, partition = template.account_of(wanted), aws.partition(wanted.region)
        given = template.facts(
            wanted,
            project,
            account=account,
            partition=partition,
            senders=(template.sender_arn(arguments.sender, account, partition),),
            image=image,
        )
        text = json.dumps(template.policy(given, who), indent=2)
    for finding in template.not_granted(template.facts(wanted, project)):
        print(finding, file=sys.stderr)
    print(text)
    return 0


def report(results: Sequence[Finding], file: Path | None) -> None:
    """Print the findings, and write them as JSON where a file is named."""
    if file:
        content = {
            "ok": not findings.refused(results),
            "findings": [asdict(finding) for finding in results],
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        file.write_text(text, encoding="utf-8")
    for finding in results:
        print(finding)


@dataclass(frozen=True)
class Submission:
    """What is sent: the request that was judged, and what is uploaded with it."""

    job: Job
    destination: Destination
    request: dict[str, Any]
    fingerprint: str  # of job and code; empty for a search


def submit(arguments: argparse.Namespace, project: Project) -> int:
    """Send the job, and follow it."""
    from smlightning.launch import follow, sending

    submission = decide(arguments, project, tuning=False)
    if isinstance(submission, int):
        return submission
    region = submission.job.region
    name = sending.submit(submission.job, project, submission.destination, submission.request)
    print(f"sent    {name}", flush=True)  # first of all: from now on the job is billed
    profile = history.profile_of(project, given=arguments.profile, job_file=arguments.job)
    history.remember(project, name, region, submission.fingerprint, profile)
    if arguments.no_follow:
        return 0
    outcome = follow.follow(name, region, metric_names(project))
    return int(outcome.status != "Completed")


def submit_search(arguments: argparse.Namespace, project: Project) -> int:
    """Send the search of [tune]."""
    from smlightning.launch import tune

    submission = decide(arguments, project, tuning=True)
    if isinstance(submission, int):
        return submission
    region = submission.job.region
    name = tune.submit(submission.job, project, submission.destination, submission.request)
    jobs = f"python -m smlightning list --region {region}"
    stop = (
        f"aws sagemaker stop-hyper-parameter-tuning-job --region {region} "
        f"--hyper-parameter-tuning-job-name {name}"
    )
    print(f"sent    {name}; its jobs: {jobs}; to stop it: {stop}")
    return 0


def decide(arguments: argparse.Namespace, project: Project, *, tuning: bool) -> Submission | int:
    """Judge the job, show its findings and its price, and ask the user.

    Returns:
        what is to be sent; where nothing is, the status of the command.
    """
    try:
        return judge(arguments, project, tuning=tuning)
    except KeyboardInterrupt:
        print("interrupted; nothing was sent", file=sys.stderr)
        return 130


def judge(arguments: argparse.Namespace, project: Project, *, tuning: bool) -> Submission | int:
    """As `decide`. Findings go to standard error, the request of a dry run to standard output."""
    from smlightning.launch import account as accounts
    from smlightning.launch import requirements, sending, tune

    wanted = job.load(arguments.job or project.job_file, project)
    if not arguments.dry_run:  # without credentials nothing can be sent
        aws.client("sts", wanted.region).get_caller_identity()
    destination, unknown = (None, None) if arguments.dry_run else destination_of(wanted)
    results, body = preflight.offline_checks(wanted, project, destination)
    search: dict[str, Any] | None = None
    if tuning:
        results, search = tune.judged(wanted, project, results, destination)
        wanted = tune.carried(wanted)
    if body and not arguments.dry_run:
        if search:
            key = "HyperParameterTuningJobName"
            body = {**body, key: search[key]}
        results += accounts.check(wanted, body, tuning=tuning)
        results += requirements.resolved(wanted, project)
    if refused(results, arguments.accept):
        return 1
    outgoing = search if tuning else body
    if outgoing is None:  # raises the error whose finding was accepted
        build = tune.tuning_request if tuning else request.training_request
        place = destination or request.dry_destination(wanted)
        outgoing = build(wanted, project, place, wanted.name)
    if arguments.dry_run:
        print(json.dumps(outgoing, indent=2))
        return 0
    if unknown:
        raise unknown
    assert destination
    print(preflight.summary(wanted, project))
    print(price.cost(wanted, tuning=tuning))
    fingerprint = "" if tuning else sending.fingerprint(wanted, project)
    before = history.same(project, fingerprint) if fingerprint else ""
    if before:
        print(f"again   this very job was sent as {before}")
    if confirmed("Send it?", arguments.yes):
        return Submission(wanted, destination, outgoing, fingerprint)
    print("nothing was sent")
    return 1


def refused(results: Sequence[Finding], accepted: Sequence[str]) -> bool:
    """Whether there is an error, once the findings were printed to standard error."""
    shown = findings.ordered(results, accepted)
    for finding in shown:
        print(finding, file=sys.stderr)
    return findings.refused(shown)


def destination_of(wanted: Job) -> tuple[Destination | None, Exception | None]:
    """Role and bucket in the account, or why they are not known.

    The findings of the account then say what is wrong, so that it is raised only after them.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from smlightning.launch import sending

    try:
        return sending.account_destination(wanted, create=False), None
    except (UserError, BotoCoreError, ClientError) as failure:
        return None, failure


def confirmed(question: str, yes: bool) -> bool:
    """Whether the user agrees; where there is no terminal to ask at, `--yes` alone does.

    Raises:
        UserError: there is no terminal, and no `--yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask at whether to go on", "pass --yes")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False


def attach(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import follow

    outcome = follow.follow(arguments.name, region, metric_names(project))
    return int(outcome.status != "Completed")


def why(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import follow

    follow.why(arguments.name, region)
    return 0


def stop(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import jobs

    print(jobs.stop(arguments.name, region))
    return 0


def list_jobs(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import jobs

    launched_here = history.latest(project, region, 5 * jobs.LISTED)
    jobs.print_rows(jobs.table(region, launched_here))
    return 0


def compare(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import jobs

    names = [arguments.name, *arguments.others]
    jobs.print_rows(jobs.compare(names, region), "they do not differ")
    return 0


def fetch(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch.fetch import fetch

    target = arguments.to or project.root / "models" / arguments.name
    folder = fetch(arguments.name, region, target)
    ask = f'python src/predict.py --model_dir {folder} "a text"'
    print(f"the model is in {folder}; ask it: {ask}")
    return 0


def deploy(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import deploy_check
    from smlightning.launch.deploy import deploy
    from smlightning.launch.deploy_plan import Options, plan

    options = Options(
        instance=arguments.instance,
        count=arguments.count,
        image=arguments.image,
        create=job.members_to_create(arguments.job or project.job_file),
    )
    deployment = plan(arguments.name, region, options)
    if refused(deploy_check.check(deployment, project.src), arguments.accept):
        return 1
    print(deployment.cost)
    if not confirmed("Make it?", arguments.yes):
        print("nothing was made")
        return 1
    print(deploy(deployment, project.src))
    return 0


def undeploy(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch.deploy import undeploy

    removed = undeploy(arguments.name, region)
    if removed:
        print(f"removed {', '.join(removed)}")
        return 0
    print(f"removed nothing: {arguments.name} is not deployed in {region}")
    return 1


COMMANDS = {
    "preflight": run_preflight,
    "estimate": estimate,
    "account": account,
    "submit": submit,
    "tune": submit_search,
}
COMMANDS_OF_JOBS = {
    "list": list_jobs,
    "attach": attach,
    "stop": stop,
    "why": why,
    "compare": compare,
    "fetch": fetch,
    "deploy": deploy,
    "undeploy": undeploy,
}
