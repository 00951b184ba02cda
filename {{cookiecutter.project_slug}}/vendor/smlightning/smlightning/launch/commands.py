"""The commands of the command line, except `rehearse`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
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
from smlightning.training.options import TrainerOptions


def run(arguments: argparse.Namespace) -> int:
    """Run a command and return its exit status, 0 or 1.

    Raises:
        UserError: for every mistake of the user, and for every error of AWS.
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


def checkpoint_minutes(project: Project) -> float:
    """The project's default between two checkpoints; the package's without src/options.py."""
    default = TrainerOptions.checkpoint_minutes
    try:
        return float(getattr(project.options().cls, "checkpoint_minutes", default))
    except UserError:
        return default


def run_preflight(arguments: argparse.Namespace, project: Project) -> int:
    """Print what is wrong with the job, and rehearse one with which nothing is."""
    from smlightning.launch import tune

    if arguments.channel and not arguments.rehearse:
        raise UserError(
            "--channel gives data to a rehearsal, and --rehearse is missing", "add --rehearse"
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
    if findings.has_errors(results):
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
    template.check_options(who, arguments.sender, image)
    results, body = preflight.offline_checks(wanted, project)
    wrong = [finding for finding in results if finding.level == "error"]
    # Then it is not known what the job needs, or for which account.
    if body is None or any(finding.key == "role" for finding in wrong):
        print_findings(wrong, ())
        return 1
    if not who:
        import yaml

        content = template.cloudformation(
            wanted,
            project,
            github=arguments.github,
            without_ids=arguments.without_ids,
            existing_bucket=arguments.existing_bucket,
            notify=arguments.notify,
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
            "ok": not findings.has_errors(results),
            "findings": [asdict(finding) for finding in results],
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        file.write_text(text, encoding="utf-8")
    for finding in results:
        print(finding)


def submit(arguments: argparse.Namespace, project: Project) -> int:
    """Build the request, check it, show it, ask the user, send it, and follow the job."""
    from smlightning.launch import follow, sending

    wanted = job.load(arguments.job or project.job_file, project)
    destination = destination_of(wanted, arguments)
    results, body = preflight.offline_checks(wanted, project, destination)
    if not passes(arguments, project, wanted, results, body):
        return 1
    assert body
    if arguments.dry_run:
        print(json.dumps(body, indent=2))
        return 0
    show_costs(wanted, project)
    fingerprint = sending.fingerprint(wanted, project)
    before = history.same(project, fingerprint)
    if before:
        print(f"again   the same job was sent as {before}")
    if not confirmed("Send it?", arguments.yes):
        print("nothing was sent")
        return 1
    name = sending.submit(wanted, project, destination, body)
    print(f"sent    {name}", flush=True)  # first of all: from now on the job is billed
    profile = history.profile_of(project, given=arguments.profile, job_file=arguments.job)
    history.remember(project, name, wanted.region, fingerprint, profile)
    if arguments.no_follow:
        return 0
    outcome = follow.follow(name, wanted.region, metric_names(project), checkpoint_minutes(project))
    return int(outcome.status != "Completed")


def submit_search(arguments: argparse.Namespace, project: Project) -> int:
    """Build the search of [tune], check it, show it, ask the user, and send it."""
    from smlightning.launch import tune

    wanted = job.load(arguments.job or project.job_file, project)
    destination = destination_of(wanted, arguments)
    results, body = preflight.offline_checks(wanted, project, destination)
    results, search = tune.judged(wanted, project, results, destination)
    wanted = tune.carried(wanted)
    key = "HyperParameterTuningJobName"
    checked = {**body, key: search[key]} if body and search else None
    if not passes(arguments, project, wanted, results, checked, tuning=True):
        return 1
    assert search
    if arguments.dry_run:
        print(json.dumps(search, indent=2))
        return 0
    show_costs(wanted, project, tuning=True)
    if not confirmed("Send it?", arguments.yes):
        print("nothing was sent")
        return 1
    name, region = tune.submit(wanted, project, destination, search), wanted.region
    jobs = f"python -m smlightning list --region {region}"
    stop = (
        f"aws sagemaker stop-hyper-parameter-tuning-job --region {region} "
        f"--hyper-parameter-tuning-job-name {name}"
    )
    print(f"sent    {name}; its jobs: {jobs}; to stop it: {stop}")
    return 0


def destination_of(wanted: Job, arguments: argparse.Namespace) -> Destination:
    """Role and bucket of the account; placeholders for a dry run, which needs no credentials."""
    from smlightning.launch import sending

    if arguments.dry_run:
        return request.dry_destination(wanted)
    aws.client("sts", wanted.region).get_caller_identity()  # nothing else works without credentials
    return sending.account_destination(wanted, create=False)


def passes(
    arguments: argparse.Namespace,
    project: Project,
    wanted: Job,
    results: Sequence[Finding],
    body: dict[str, Any] | None,
    *,
    tuning: bool = False,
) -> bool:
    """Add the account's findings, print all to standard error; whether none is an error.

    Raises:
        UserError: every error was accepted, but no request could be built.
    """
    from smlightning.launch import account as accounts
    from smlightning.launch import requirements

    if body and not arguments.dry_run:
        results = [*results, *accounts.check(wanted, body, tuning=tuning)]
        results += requirements.resolved(wanted, project)
    if print_findings(results, arguments.accept):
        return False
    if body is None:
        raise UserError("no request can be built despite --accept", "correct the errors above")
    return True


def show_costs(wanted: Job, project: Project, *, tuning: bool = False) -> None:
    """Print what the job runs on, and what it costs at most."""
    print(preflight.summary(wanted, project))
    print(price.cost(wanted, tuning=tuning))


def print_findings(results: Sequence[Finding], accepted: Sequence[str]) -> bool:
    """Print the findings to standard error; whether there is an error."""
    shown = findings.ordered(results, accepted)
    for finding in shown:
        print(finding, file=sys.stderr)
    return findings.has_errors(shown)


def confirmed(question: str, yes: bool) -> bool:
    """Whether the user agrees, on the terminal or by `--yes`.

    Raises:
        UserError: there is no terminal, and no `--yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("the command needs a confirmation, and there is no terminal", "pass --yes")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False


def attach(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import follow

    outcome = follow.follow(
        arguments.name, region, metric_names(project), checkpoint_minutes(project)
    )
    return int(outcome.status != "Completed")


def why(arguments: argparse.Namespace, project: Project, region: str) -> int:
    from smlightning.launch import follow

    follow.why(arguments.name, region, checkpoint_minutes(project))
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
    print(f"the model is in {folder}; use it: {ask}")
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
    if print_findings(deploy_check.check(deployment, project.src), arguments.accept):
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
