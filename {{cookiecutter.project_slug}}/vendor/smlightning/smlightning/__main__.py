"""The one command line: ``python -m smlightning COMMAND``, installed as ``smlightning`` too."""

import argparse
import gc
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from smlightning import __version__
from smlightning.errors import UserError
from smlightning.launch.constants import DEFAULT_INSTANCE
from smlightning.launch.findings import cure_for_unknown_name, print_error
from smlightning.terminal import printable_output

DESCRIPTION = "Check, rehearse, send, follow and fetch SageMaker training jobs."
EPILOG = """\
`smlightning COMMAND --help` explains a command. A job that was sent needs no valid job.toml.

exit status: 0 if all went well; 1 if a finding refuses the job, the job failed, or something is to
be mended; 2 for a mistake on the command line; 130 after Ctrl-C.
"""
COMMANDS = {
    "preflight": "what is wrong with job.toml, src/ and the account, before it costs anything",
    "estimate": "whether the job fits into the memory of GPUs and hosts, and how long it trains",
    "account": "what the job needs in an AWS account, as CloudFormation or as a policy",
    "rehearse": "simulate the job's cluster on this machine",
    "submit": "send the job and follow it; Ctrl-C leaves it running",
    "tune": "search the ranges of job.toml's [tune] by many jobs",
    "list": "the latest jobs",
    "attach": "follow a job again",
    "stop": "stop a job",
    "why": "which rank of a job failed first, and its last lines",
    "compare": "metrics and options of jobs side by side",
    "fetch": "the model of a job, for src/predict.py",
    "deploy": "the model of a job as a real-time endpoint",
    "undeploy": "remove what deploy created",
}
# Which extra of the package brings a module that a command needs.
EXTRAS = {
    "boto3": "launch",
    "botocore": "launch",
    "pydantic": "launch",
    "psutil": "rehearsal",
    "sagemaker_training": "rehearsal",
}


def parser() -> argparse.ArgumentParser:
    """The command line; of `rehearse` the rest is its own."""
    main = argparse.ArgumentParser(
        prog="smlightning",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    main.add_argument("--version", action="version", version=f"smlightning {__version__}")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        if name != "rehearse":
            command.add_argument(
                "--job", type=Path, metavar="FILE", help="the job (the project's job.toml)"
            )
            command.add_argument(
                "--profile", metavar="NAME", help="of AWS's configuration, in place of job.toml's"
            )
        if name in ("preflight", "submit", "tune", "deploy"):
            add_accept(command)
        if name == "preflight":
            add_preflight(command)
        elif name == "estimate":
            add_estimate(command)
        elif name == "account":
            add_account(command)
        elif name in ("submit", "tune"):
            add_sending(command, follows=name == "submit")
        elif name != "rehearse":
            add_region(command)
        if name in ("attach", "stop", "why", "compare", "fetch", "deploy", "undeploy"):
            command.add_argument("name", metavar="JOB", help="name of the training job")
        if name == "compare":
            command.add_argument("others", metavar="JOB", nargs="+", help="and of others")
        if name == "fetch":
            command.add_argument("--to", type=Path, metavar="DIR", help="where to (models/JOB)")
        if name == "deploy":
            add_deployment(command)
        if name in ("submit", "tune", "deploy"):
            command.add_argument(
                "--yes", action="store_true", help="do not ask whether the price is right"
            )
        command.set_defaults(usage=command.format_usage)
    return main


def add_accept(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="KEY",
        help="make KEY's error a warning",
    )


def add_preflight(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--offline", action="store_true", help="ask nothing of AWS, nor of a package index")
    add("--json", type=Path, metavar="FILE", help="write the findings there, too")
    add("--rehearse", action="store_true", help="then simulate the job on this machine")
    add(
        "--sender",
        default="",
        metavar="ROLE",
        help="who will send the job, where these credentials may only look",
    )
    add(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="for --rehearse: local data",
    )


def add_estimate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    speed = command.add_mutually_exclusive_group().add_argument
    speed("--samples_per_second", type=float, metavar="N", help="of the whole job, to tell hours")
    speed("--like", metavar="JOB", help="take them of an earlier job, rank for rank")
    add("--json", type=Path, metavar="FILE", help="write the estimate there, too")
    add("--channel", action="append", default=[], metavar="NAME=DIR", help="a channel's data here")
    add("options", nargs="*", metavar="-- --option value", help="in place of job.toml's")


def add_account(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--policy",
        choices=("caller", "role", "deployer", "endpoint"),
        help="print one policy as JSON: of who sends the job, of the role that it runs under, of "
        "who deploys its model, or of the role that the model answers under",
    )
    add(
        "--sender",
        default="",
        metavar="ROLE",
        help="with --policy caller or deployer: the role or user that gets the policy, so that "
        "preflight may ask IAM about it (a user about itself)",
    )
    add("--image", default="", metavar="URI", help="with --policy endpoint: of deploy --image")
    add(
        "--github",
        default="",
        metavar="OWNER@ID/REPOSITORY@ID",
        help="with two roles that this repository's workflows take on by OIDC; without IDs it "
        "prints the command that shows them",
    )
    add(
        "--without-ids",
        action="store_true",
        help="with --github OWNER/REPOSITORY: a repository from before 2026-07-15, whose tokens "
        "have no IDs",
    )
    add(
        "--existing-bucket",
        action="store_true",
        help="leave the bucket out, as one that the SDK's configuration file names always is",
    )


def add_sending(command: argparse.ArgumentParser, *, follows: bool) -> None:
    add = command.add_argument
    add("--dry-run", action="store_true", help="print the request as JSON and send nothing")
    if follows:
        add("--no-follow", action="store_true", help="print the job's name and exit")


def add_region(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--region", default="", help="where the job runs (as launched, else as in job.toml)"
    )


def add_deployment(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--count", type=int, default=1, metavar="N", help="number of instances (%(default)s)")
    add("--instance", default=DEFAULT_INSTANCE, metavar="TYPE", help="their type (%(default)s)")
    add("--image", default="", metavar="URI", help="for inference, with Ray Serve (AWS's own)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, which prints no control characters; its exit status, as the help says."""
    with printable_output():
        return run(list(sys.argv[1:] if argv is None else argv))


def run(words: list[str]) -> int:
    """The exit status of a command line."""
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        print_error(
            UserError(
                f'there is no command "{words[0]}"', cure_for_unknown_name(words[0], COMMANDS)
            )
        )
        return 2
    try:
        if words[:1] == ["rehearse"]:
            from smlightning.rehearsal import main as rehearse

            return rehearse(words[1:])
        arguments, unknown = parser().parse_known_args(words)
        if unknown:
            print_error(unexpected(unknown[0], arguments, before_command=unknown[0] == words[0]))
            return 2
        from smlightning.launch import commands

        return commands.run(arguments)
    except ModuleNotFoundError as error:
        print_error(missing(error))
    except BrokenPipeError:  # `| head` has seen enough; else Python complains at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (UserError, OSError) as error:
        print_error(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 1


def unexpected(word: str, arguments: argparse.Namespace, *, before_command: bool) -> UserError:
    """What is wrong with a word that the command line has no place for."""
    command, name = arguments.command, word.partition("=")[0]
    options = re.findall(r"--[\w-]+", arguments.usage())
    if not word.startswith("-"):
        problem = f'{command} has no place for "{word}"'
        return UserError(problem, f"remove it, or see smlightning {command} --help")
    if not before_command:
        return UserError(f'{command} has no option "{word}"', cure_for_unknown_name(name, options))
    cure = cure_for_unknown_name(name, ["--help", "--version"])
    if name in options:
        cure = f"write it after {command}"
    return UserError(f'there is no option "{word}" before a command', cure)


def missing(error: ModuleNotFoundError) -> UserError:
    """What to install where a module is missing."""
    module = (error.name or "").split(".")[0]
    extra = EXTRAS.get(module)
    cure = "run make setup"
    if extra:
        cure += f", or pip install -e 'vendor/smlightning[{extra}]'"
    return UserError(f"{module} is not installed in this Python", cure)


if __name__ == "__main__":
    status = main()
    gc.freeze()  # else Python would look through every loaded module for garbage once more
    sys.exit(status)
