"""The command line ``smlightning COMMAND``, also ``python -m smlightning_sagemaker COMMAND``."""

import argparse
import gc
import os
import re
import sys
from collections.abc import Sequence

from smlightning import __version__
from smlightning.errors import UserError
from smlightning.terminal import printable_output
from smlightning_sagemaker import commands
from smlightning_sagemaker.findings import Parser, hint_for_unknown_name, print_error

DESCRIPTION = "Check, rehearse, send, follow and fetch SageMaker training jobs."
EPILOG = """\
`smlightning COMMAND --help` explains a command. A job that was sent needs no valid job.toml.

exit status: 0 for success; 1 for a failed check, a failed job or an error; 2 for a mistake on the
command line; 130 after Ctrl-C. `make launch` runs `submit`.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of every command; `rehearse` parses its own options."""
    main = Parser(
        prog="smlightning",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    main.add_argument("--version", action="version", version=f"smlightning {__version__}")
    parsers = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers.add_parser("rehearse", help="simulate the job's cluster on this machine")
    for name, command in commands.COMMANDS.items():
        added = parsers.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"example: smlightning {command.example}",
            allow_abbrev=False,
        )
        for option, settings in (commands.JOB_FILE, commands.PROFILE, *command.options):
            added.add_argument(option, **settings)
        added.set_defaults(usage=added.format_usage)
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command without printing control characters, and return its exit status."""
    with printable_output():
        return run(list(sys.argv[1:] if argv is None else argv))


def run(words: list[str]) -> int:
    """Run a command line and return its exit status."""
    names = ("rehearse", *commands.COMMANDS)
    if words and not words[0].startswith("-") and words[0] not in names:
        # `make launch` runs submit.
        similar = "did you mean submit?" if words[0] == "launch" else ""
        hint = similar or hint_for_unknown_name(words[0], names)
        print_error(UserError(f'there is no command "{words[0]}"', hint))
        return 2
    try:
        if words[:1] == ["rehearse"]:
            from smlightning_sagemaker.rehearsal import main as rehearse

            return rehearse(words[1:])
        arguments, unknown = parser().parse_known_args(words)
        if unknown:
            print_error(unexpected(unknown[0], arguments))
            return 2
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


def unexpected(word: str, arguments: argparse.Namespace) -> UserError:
    """The error for a word that the parser does not know."""
    command, name = arguments.command, word.partition("=")[0]
    options = re.findall(r"--[\w-]+", arguments.usage())
    hint = f"remove it, or see smlightning {command} --help"
    if name in options:
        hint = f"write it after {command}"
    elif word.startswith("-"):
        hint = hint_for_unknown_name(name, options)
    return UserError(f'{command} does not know "{word}"', hint)


def missing(error: ModuleNotFoundError) -> UserError:
    """The error for a missing module."""
    module = (error.name or "").split(".")[0]
    return UserError(f"{module} is not installed in this Python", "run make setup")


if __name__ == "__main__":
    status = main()
    gc.freeze()  # so that Python does not collect every loaded module's garbage at exit
    sys.exit(status)
