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

exit status: 0 for success; 1 for a failed check, a failed job or an error; 2 for a mistake on the
command line; 130 after Ctrl-C. `make launch` runs `submit`.
"""
COMMANDS = {  # in the order of the work
    "rehearse": "simulate the job's cluster on this machine",
    "preflight": "check job.toml, src/ and the account before the job costs anything",
    "estimate": "compute the memory that the job needs, and how long it trains",
    "account": "print what the job needs in an AWS account, as CloudFormation or as a policy",
    "submit": "send the job and follow it; Ctrl-C leaves it running",
    "tune": "search the ranges of [tune] in job.toml with many jobs",
    "list": "list the latest jobs",
    "attach": "follow a job again",
    "why": "print which rank of a job failed first, and its last lines",
    "stop": "stop a job, and end its warm pool",
    "compare": "print metrics and options of jobs side by side",
    "fetch": "download the model of a job, for src/predict.py",
    "deploy": "create a real-time endpoint for the model of a job",
    "undeploy": "remove what deploy created",
}
EXAMPLES = {
    "preflight": "preflight --offline",
    "estimate": "estimate --samples_per_second 900 -- --batch_size 64",
    "account": "account --policy role",
    "submit": "submit --dry-run",
    "tune": "tune --dry-run",
    "list": "list --region us-east-1",
    "attach": "attach words-20260101-120000",
    "stop": "stop words-20260101-120000",
    "why": "why words-20260101-120000",
    "compare": "compare words-20260101-120000 words-20260102-120000",
    "fetch": "fetch words-20260101-120000 --to models/best",
    "deploy": "deploy words-20260101-120000",
    "undeploy": "undeploy words-20260101-120000",
}
# The extra of the package that installs a module.
EXTRAS = {
    "boto3": "launch",
    "botocore": "launch",
    "pydantic": "launch",
    "psutil": "rehearsal",
    "sagemaker_training": "rehearsal",
}


def parser() -> argparse.ArgumentParser:
    """The parser of every command; `rehearse` parses its own options."""
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
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example: smlightning {EXAMPLES.get(name, name)}",
            allow_abbrev=False,
        )
        if name != "rehearse":
            command.add_argument(
                "--job", type=Path, metavar="FILE", help="the job's file (job.toml of the project)"
            )
            command.add_argument(
                "--profile", metavar="NAME", help="profile of AWS's configuration (as in job.toml)"
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
            command.add_argument(
                "others", metavar="OTHER", nargs="+", help="names of the jobs to compare with it"
            )
        if name == "fetch":
            command.add_argument(
                "--to", type=Path, metavar="DIR", help="target folder (models/JOB)"
            )
        if name == "deploy":
            add_deployment(command)
        if name in ("submit", "tune", "deploy"):
            command.add_argument(
                "--yes", action="store_true", help="accept the price without a question"
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
    add("--offline", action="store_true", help="use no network: neither AWS nor a package index")
    add("--json", type=Path, metavar="FILE", help="also write the findings to this file")
    add(
        "--rehearse", action="store_true", help="after the checks, simulate the job on this machine"
    )
    add(
        "--sender",
        default="",
        metavar="ROLE",
        help="role that will send the job, if it is not the one of these credentials",
    )
    add(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="for --rehearse: folder with the data of a channel",
    )


def add_estimate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--samples_per_second",
        type=float,
        metavar="N",
        help="measured speed of the whole job; gives its hours",
    )
    add("--json", type=Path, metavar="FILE", help="also write the estimate to this file")
    add(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="folder with the data of a channel",
    )
    add(
        "options",
        nargs="*",
        metavar="-- --option value",
        help="options of src/train.py that replace those of job.toml",
    )


def add_account(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--policy",
        choices=("caller", "role", "deployer", "endpoint"),
        help="print one policy as JSON: for the sender of the job, the role that the job runs "
        "under, the deployer of its model, or the role of the endpoint",
    )
    add(
        "--sender",
        default="",
        metavar="ROLE",
        help="with --policy caller or deployer: the role or user that gets the policy, so that "
        "preflight may simulate its permissions",
    )
    add(
        "--image",
        default="",
        metavar="URI",
        help="with --policy endpoint: the image that deploy --image will name",
    )
    add(
        "--github",
        default="",
        metavar="OWNER@ID/REPOSITORY@ID",
        help="add two roles that the workflows of this repository assume by OIDC; without IDs, "
        "print the command that shows them",
    )
    add(
        "--without-ids",
        action="store_true",
        help="with --github OWNER/REPOSITORY: a repository from before 2026-07-15, whose tokens "
        "have no IDs",
    )
    add(
        "--notify",
        default="",
        metavar="EMAIL",
        help="add a rule that mails the end of each of the project's jobs to this address",
    )
    add(
        "--existing-bucket",
        action="store_true",
        help="do not create the bucket, because it exists",
    )


def add_sending(command: argparse.ArgumentParser, *, follows: bool) -> None:
    add = command.add_argument
    add("--dry-run", action="store_true", help="print the request as JSON and send nothing")
    if follows:
        add("--no-follow", action="store_true", help="print the job's name and exit")


def add_region(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--region", default="", help="region of the job (the one it was sent to, or of job.toml)"
    )


def add_deployment(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--count", type=int, default=1, metavar="N", help="number of instances (%(default)s)")
    add(
        "--instance",
        default=DEFAULT_INSTANCE,
        metavar="TYPE",
        help="type of the instances (%(default)s)",
    )
    add("--image", default="", metavar="URI", help="image with Ray Serve (that of AWS)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command without printing control characters, and return its exit status."""
    with printable_output():
        return run(list(sys.argv[1:] if argv is None else argv))


def run(words: list[str]) -> int:
    """Run a command line and return its exit status."""
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        cure = cure_for_unknown_name(words[0], COMMANDS)
        if words[0] == "launch":
            cure = "did you mean submit?"
        elif cure.startswith("known are"):
            cure = f"known are {', '.join(COMMANDS)}"  # all of them
        print_error(UserError(f'there is no command "{words[0]}"', cure))
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
    """The error for a word that the parser does not know."""
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
    """The error for a missing module, with the extra that installs it."""
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
