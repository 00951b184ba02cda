"""``smlightning rehearse``: simulates the job's cluster on this machine."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from smlightning.errors import UserError
from smlightning_sagemaker.findings import Parser, hint_for_unknown_name, print_error
from smlightning_sagemaker.job.constants import DISTRIBUTIONS
from smlightning_sagemaker.rehearsal.processes import END_SIGNALS

DESCRIPTION = """\
Simulate the job's cluster on this machine before you pay for it.

SageMaker's own training toolkit starts src/train.py on several hosts, which are loopback
addresses of this machine; the ranks train over gloo on the CPU. The command verifies ranks,
weights and outputs. It sends no job and reads nothing from AWS.

  smlightning rehearse --hosts 2 --processes 2
  smlightning rehearse --distribution smddp -- --epochs 1 --lr 1e-3
  smlightning rehearse --hosts 2 --stop-host 2
"""
EPILOG = """\
Defaults come from job.toml.

exit status: 0 if no check failed, 1 if one did, 2 for a mistake on this command line or in
job.toml, 130 after Ctrl-C.
"""


def parser() -> argparse.ArgumentParser:
    """The command line; hyperparameters follow ``--``."""
    command = Parser(
        prog="smlightning rehearse",
        usage="%(prog)s [options] [-- --epochs 1 --lr 1e-3 ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = command.add_argument_group("the cluster").add_argument
    add("--hosts", type=int, metavar="N", help="hosts (instance_count)")
    add("--processes", type=int, metavar="N", help="processes per host (its GPUs, at most 2)")
    names = f"how SageMaker starts the script: {', '.join(DISTRIBUTIONS)}"
    add("--distribution", choices=DISTRIBUTIONS, metavar="NAME", help=names)

    add = command.add_argument_group("code and data").add_argument
    add("--job", type=Path, metavar="FILE", help="the job (job.toml)")
    add("--source-dir", type=Path, metavar="DIR", help="the folder with train.py (src)")
    local = "folder with some of a channel's data"
    add("--channel", action="append", default=[], metavar="NAME=DIR", help=local)
    inherit = "pass a variable of your shell to the hosts, also as the value of a secret"
    add("--inherit", action="append", default=[], metavar="NAME", help=inherit)
    limit = "batches of one epoch, validation and test (20; 200 with --*-host); 0: no limit"
    add("--batches", type=int, metavar="N", help=limit)
    add("hyperparameters", nargs="*", metavar="-- --NAME VALUE", help="options of train.py")

    faults = command.add_argument_group("faults in the middle of training, one at a time")
    add = faults.add_mutually_exclusive_group().add_argument
    add("--fail-rank", type=int, metavar="R", help="raise an error on rank R, from 0, in step 2")
    add("--kill-rank", type=int, metavar="R", help="kill rank R in step 2")
    stop = "send SIGTERM to host N, from 1, restart the job, and compare weights"
    add("--stop-host", type=int, metavar="N", help=stop)
    lose = "kill host N once there is a checkpoint, restart the job, and compare weights"
    add("--lose-host", type=int, metavar="N", help=lose)

    add = command.add_argument_group("time and output").add_argument
    add("--timeout", type=float, default=1800, metavar="S", help="end after S seconds (1800)")
    add("--json", type=Path, metavar="FILE", help="write the verdicts and each rank's facts")
    add("--keep", type=Path, metavar="DIR", help="move the hosts' folders and complete logs to DIR")
    return command


def main(argv: Sequence[str]) -> int:
    """The command's exit status, as the help lists them."""
    arguments, unknown = parser().parse_known_args(argv)
    if unknown:
        print_error(unexpected(unknown[0], arguments))
        return 2
    for number in END_SIGNALS:
        # nohup has SIGHUP ignored. A script's shell has SIGINT ignored for what runs behind it.
        if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    run: Path | None = None
    try:
        # Imported here, so that --help answers at once.
        from smlightning_sagemaker import project
        from smlightning_sagemaker.rehearsal import report
        from smlightning_sagemaker.rehearsal.plan import make_plan

        this = project.find()
        plan = make_plan(arguments, this)
        run = Path(tempfile.mkdtemp(prefix="rehearsal-"))
        result = report.rehearse(plan, run)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1))
        return 0 if result["ok"] else 1
    except UserError as error:
        print_error(error)
        return 2
    except OSError as error:
        hint = "" if run else "; a rehearsal needs a writable temporary folder (TMPDIR)"
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; all processes of the rehearsal were ended", file=sys.stderr)
        return 130
    finally:
        if run and arguments.keep:
            shutil.move(run, arguments.keep)
        elif run:
            shutil.rmtree(run, ignore_errors=True)


def unexpected(word: str, arguments: argparse.Namespace) -> UserError:
    """The error for an option that the parser does not know."""
    own = [f"--{name.replace('_', '-')}" for name in vars(arguments) if name != "hyperparameters"]
    similar = hint_for_unknown_name(word.partition("=")[0], own, likeness=0.75)
    return UserError(
        f'rehearse does not know "{word}"', f"{similar}; options of train.py follow --"
    )


def interrupt(*_: object) -> None:
    """End the rehearsal as Ctrl-C does, once: cleaning up takes seconds."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
