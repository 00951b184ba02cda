"""Check, send, follow and fetch SageMaker training jobs.

python -m launch preflight            what is wrong with job.toml, src/ and the account, before it costs anything
python -m launch submit --dry-run     the request that would be sent
python -m launch submit               send it and follow; Ctrl-C leaves the job running
python -m launch tune                 search the ranges of job.toml's [tune]; --dry-run as above
python -m launch list                 the latest jobs
python -m launch attach JOB           follow it again
python -m launch stop JOB
python -m launch why JOB              which rank failed first, and its last lines
python -m launch compare JOB JOB      metrics and options side by side
python -m launch fetch JOB            its model, for src/predict.py
python -m launch deploy JOB           its model as an endpoint, or --transform FROM TO; undeploy JOB removes it
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from launch import ROOT, findings
from launch import job as jobs_file
from runtime.report import UserError

# Commands about jobs that were sent, which need no job.toml.
OF_JOBS = ("list", "attach", "stop", "why", "compare", "fetch", "deploy", "undeploy")
INSTANCE = "ml.m5.xlarge"  # a deployment's, where none is named


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="python -m launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared, judged, priced = (argparse.ArgumentParser(add_help=False) for _ in range(3))
    shared.add_argument("--job", type=Path, default=ROOT / "job.toml", help="the job's description (job.toml)")
    judged.add_argument("--accept", action="append", default=[], metavar="KEY", help="make KEY's error a warning")
    priced.add_argument("--yes", action="store_true", help="go on without asking whether the price is right")
    add = commands.add_parser("preflight", parents=[shared, judged]).add_argument
    add("--offline", action="store_true", help="ask nothing of AWS")
    add("--json", type=Path, metavar="FILE", help="write the findings there, too")
    add("--rehearse", action="store_true", help="then simulate the job on this machine")
    add("--channel", action="append", default=[], metavar="NAME=DIR", help="for --rehearse: local data")
    for name in ("tune", "submit"):
        command = commands.add_parser(name, parents=[shared, judged, priced])
        command.set_defaults(unsent="; nothing was sent")  # as long as that is so
        add = command.add_argument
        add("--dry-run", action="store_true", help="print the request as JSON and send nothing")
    add("--no-follow", action="store_true", help="print the job's name and exit")
    for name in OF_JOBS:
        command = commands.add_parser(name, parents=[shared, priced] if name == "deploy" else [shared])
        add = command.add_argument
        add("--region", default="", help="where the job runs (as launched, else as in job.toml)")
        if name != "list":
            add("name", metavar="JOB")
        if name == "compare":
            add("others", metavar="JOB", nargs="+")
        if name == "fetch":
            add("--to", type=Path, metavar="DIR", help="where to (models/JOB)")
        if name == "deploy":
            kind = command.add_mutually_exclusive_group().add_argument
            kind("--serverless", action="store_true", help="an endpoint on CPUs that costs while it answers")
            kind("--transform", nargs=2, metavar=("FROM", "TO"), help="answer every line of files in S3")
            add("--instance", default=INSTANCE, help="instance type (%(default)s)")
            add("--count", type=int, default=1, help="instances (%(default)s)")
            add("--image", default="", metavar="URI", help="inference image (AWS's own for PyTorch)")
    return main


def main(argv: list[str] | None = None) -> int:
    """0: well; 1: a finding, a failed job, or a mistake of the user's; 2: of the command line; 130: Ctrl-C."""
    options = parser().parse_args(argv)
    try:
        from launch import aws

        with aws.errors():
            if options.command in OF_JOBS:
                return of_jobs(options)
            return preflight(options) if options.command == "preflight" else submit(options)
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed in this Python; run make setup", file=sys.stderr)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
    except (UserError, OSError) as error:
        findings.print_error(error)
    except KeyboardInterrupt:
        print(f"interrupted{getattr(options, 'unsent', '')}", file=sys.stderr)
        return 130
    return 1


def preflight(options: argparse.Namespace) -> int:
    from launch import account, tune
    from launch import preflight as checks

    if options.channel and not options.rehearse:
        raise UserError("--channel gives data to a rehearsal, and none was asked for; add --rehearse")
    try:
        job = jobs_file.load(options.job)
        found = checks.run(job, offline=options.offline, accept=options.accept, also=tune.ranges(job))
    except jobs_file.JobError as error:
        job, found = None, [findings.from_sentence("job.toml", line) for line in str(error).split("\n")]
    refused = findings.refused(found)
    if options.json:
        report = {"ok": not refused, "findings": [asdict(finding) for finding in found]}
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
    for finding in found:
        print(finding)
    if job:
        print(checks.summary(job))
        print(account.cost(job, offline=options.offline))
    accepting = ", or pass --accept KEY for one that does not apply" if job else ""
    print(f"preflight failed: fix the errors above{accepting}" if refused else "preflight passed")
    if options.rehearse and job and not refused:
        local = [word for channel in options.channel for word in ("--channel", channel)]
        return subprocess.run([*checks.rehearsal(job, options.job), *local], cwd=ROOT).returncode
    return int(refused)


def submit(options: argparse.Namespace) -> int:
    """Send the job, or with the command tune many of it."""
    from launch import account, aws, follow, jobs, request, requirements, tune
    from launch import preflight as checks

    job, tuning = jobs_file.load(options.job), options.command == "tune"
    found, made = checks.offline_checks(job)
    search = None
    if tuning:
        found, search = tune.judged(job, found)
        job = tune.carried(job)
    if not options.dry_run and made:
        aws.client("sts", job.region).get_caller_identity()  # without credentials nothing can be sent
        named = {**made, "HyperParameterTuningJobName": search["HyperParameterTuningJobName"]} if search else made
        found += [*account.check(job, named, tuning), *requirements.resolved(job)]
    found = findings.ordered(found, options.accept)
    for finding in found:
        print(finding, file=sys.stderr)
    if findings.refused(found):
        return 1
    build = tune.tuning_request if tuning else request.training_request
    made = (search if tuning else made) or request.dry_run(job, build)  # says why there is none, where it was accepted
    if options.dry_run:
        print(json.dumps(made, indent=2))
        return 0
    print(checks.summary(job))
    print(account.cost(job, tuning=tuning))
    if not confirmed("Send it?", options.yes):
        print("nothing was sent")
        return 1
    options.unsent = ""
    if tuning:
        name = request.submit(job, tune.tuner, tune.job_name(job))
        stop = f"aws sagemaker stop-hyper-parameter-tuning-job --region {job.region} --hyper-parameter-tuning-job-name"
        print(f"sent    {name}; its jobs: python -m launch list --region {job.region}; to stop it: {stop} {name}")
        return 0
    name = request.submit(job)
    jobs.remember(name, job.region)
    print(f"sent    {name}", flush=True)
    return 0 if options.no_follow else int(follow.follow(name, job.region).status != "Completed")


def confirmed(question: str, yes: bool) -> bool:
    """Whether the user agrees; without a terminal nobody is asked."""
    if yes or not sys.stdin.isatty():
        return True
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False


def of_jobs(options: argparse.Namespace) -> int:
    """A command about jobs that were sent."""
    from launch import follow, jobs

    name = getattr(options, "name", "")
    region = jobs.region(name, options.region, options.job)
    if options.command == "attach":
        return int(follow.follow(name, region).status != "Completed")
    if options.command == "why":
        follow.why(name, region)
    elif options.command == "stop":
        print(jobs.stop(name, region))
    elif options.command == "list":
        jobs.print_rows(jobs.table(region))
    elif options.command == "compare":
        jobs.print_rows(jobs.compare([name, *options.others], region), "they do not differ")
    elif options.command == "fetch":
        folder = jobs.fetch(name, region, options.to)
        print(f'the model is in {folder}; ask it: python src/predict.py --model_dir {folder} "a text"')
    elif options.command == "deploy":
        return deploy(options, region)
    elif options.command == "undeploy":
        from launch.deploy import undeploy

        removed = undeploy(name, region)
        print(f"removed {', '.join(removed) or f'nothing: {name} is not deployed in {region}'}")
        return int(not removed)
    return 0


def deploy(options: argparse.Namespace, region: str) -> int:
    from launch.deploy import deploy, plan

    if options.serverless and (options.instance, options.count) != (INSTANCE, 1):
        raise UserError("--serverless takes no --instance and no --count; remove them, or --serverless")
    where = (options.instance, options.count, options.serverless, options.transform, options.image)
    made = plan(options.name, region, *where)
    print(made.cost)
    if not confirmed("Make it?", options.yes):
        print("nothing was made")
        return 1
    print(deploy(made))
    return 0


if __name__ == "__main__":
    status = main()
    gc.freeze()  # else Python would look through every module of the SDK for garbage once more
    sys.exit(status)
