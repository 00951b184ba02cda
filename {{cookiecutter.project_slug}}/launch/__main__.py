"""Check, send, follow and fetch SageMaker training jobs.

python -m launch preflight            what is wrong with job.toml, src/ and the account, before it costs anything
python -m launch submit --dry-run     the request that would be sent
python -m launch submit               send it and follow; Ctrl-C leaves the job running
python -m launch attach JOB           follow it again
python -m launch stop JOB
python -m launch fetch JOB            its model, for src/predict.py
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from launch import ROOT
from launch import job as jobs
from runtime.report import UserError


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="python -m launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--job", type=Path, default=ROOT / "job.toml", help="the job's description (job.toml)")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser("preflight", parents=[shared], help="find what is wrong before it is paid for")
    check.add_argument("--offline", action="store_true", help="ask nothing of AWS")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    check.add_argument("--rehearse", action="store_true", help="then play the job on this machine")
    send = commands.add_parser("submit", parents=[shared], help="send the job and follow it")
    send.add_argument("--dry-run", action="store_true", help="print the request as JSON and send nothing")
    send.add_argument("--no-follow", action="store_true", help="print the job's name and leave")
    for name, text in (("attach", "follow a job"), ("stop", "stop a job"), ("fetch", "bring a job's model home")):
        command = commands.add_parser(name, parents=[shared], help=text)
        command.add_argument("name", metavar="JOB")
        if name == "fetch":
            command.add_argument("--to", type=Path, metavar="DIR", help="where to (models/JOB)")
    return main


def main(argv: list[str] | None = None) -> int:
    """0: well; 1: a finding, a failed job, or a mistake of the user's; 2: of the command line; 130: Ctrl-C."""
    options = parser().parse_args(argv)
    try:
        from launch.request import aws_errors

        with aws_errors():
            return COMMANDS[options.command](options)
    except jobs.JobError as error:
        for problem in error.problems:
            print(f"error   {problem}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed in this Python; run make setup", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def preflight(options: argparse.Namespace) -> int:
    from launch import account
    from launch import preflight as checks

    try:
        job = jobs.load(options.job)
        findings = checks.run(job, offline=options.offline)
    except jobs.JobError as error:
        job, findings = None, [checks.error("job.toml", problem, "mend it") for problem in error.problems]
    refused = checks.refused(findings)
    if options.json:
        report = {"ok": not refused, "findings": [asdict(finding) for finding in findings]}
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
    for finding in findings:
        print(finding)
    if job:
        print(checks.summary(job))
        print(account.ceiling(job, offline=options.offline))
    print("refused: mend the errors above" if refused else "nothing stands against it")
    if options.rehearse and job and not refused:
        return subprocess.run(checks.rehearsal(job, options.job), cwd=ROOT).returncode
    return int(refused)


def submit(options: argparse.Namespace) -> int:
    from launch import account, request
    from launch import preflight as checks

    job = jobs.load(options.job)
    findings = checks.quick(job)
    if not options.dry_run and not checks.refused(findings):
        account.connect(job)("sts").get_caller_identity()  # without credentials there is no use in going on
        findings += account.check(job)
    for finding in findings:
        print(finding, file=sys.stderr)
    if checks.refused(findings):
        return 1
    if options.dry_run:
        print(json.dumps(request.dry_run(job), indent=2))
        return 0
    print(checks.summary(job))
    print(account.ceiling(job))
    name = request.submit(job)
    print(f"sent    {name}", flush=True)
    return 0 if options.no_follow else follow(name, job)


def follow(name: str, job: jobs.Job) -> int:
    from launch import follow as jobs_log

    return int(jobs_log.follow(name, job.region).status != "Completed")


def attach(options: argparse.Namespace) -> int:
    return follow(options.name, jobs.load(options.job))


def stop(options: argparse.Namespace) -> int:
    from launch.follow import stop

    print(stop(options.name, jobs.load(options.job).region))
    return 0


def fetch(options: argparse.Namespace) -> int:
    from launch.follow import fetch

    folder = fetch(options.name, jobs.load(options.job).region, options.to)
    print(f'the model is in {folder}; ask it: python src/predict.py --model_dir {folder} "a text"')
    return 0


COMMANDS = {"preflight": preflight, "submit": submit, "attach": attach, "stop": stop, "fetch": fetch}

if __name__ == "__main__":
    sys.exit(main())
