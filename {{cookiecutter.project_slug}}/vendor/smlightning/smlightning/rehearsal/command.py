"""``python -m smlightning rehearse``: the job's cluster on this machine, before it is paid for."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from smlightning.errors import UserError
from smlightning.launch.constants import DISTRIBUTIONS
from smlightning.launch.findings import print_error
from smlightning.rehearsal.processes import END_SIGNALS

if TYPE_CHECKING:
    from smlightning.rehearsal.plan import Plan

DESCRIPTION = """\
Simulate the job's cluster on this machine, before it is paid for.

SageMaker's own training toolkit starts src/train.py on several hosts, which are loopback
addresses of this machine; the ranks train over gloo on the CPU. Ranks, weights and outputs
are verified. No job is sent; of a channel's data a sample may come from S3.

  python -m smlightning rehearse --hosts 2 --processes 2
  python -m smlightning rehearse --distribution smddp -- --epochs 1 --lr 1e-3
  python -m smlightning rehearse --hosts 2 --stop-host 2
"""
EPILOG = """\
What is not given comes from job.toml.

exit status: 0 if every host succeeded and every check passed, 1 if not, 2 for a mistake on
this command line or in job.toml, 130 after Ctrl-C.
"""


def parser() -> argparse.ArgumentParser:
    """The command line; what follows ``--`` are hyperparameters."""
    command = argparse.ArgumentParser(
        prog="python -m smlightning rehearse",
        usage="%(prog)s [options] [-- --epochs 1 --lr 1e-3 ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_cluster(command)
    add_code_and_data(command)
    add_faults(command)
    add_output(command)
    return command


def add_cluster(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("the cluster").add_argument
    add("--hosts", type=int, metavar="N", help="hosts (instance_count)")
    add("--processes", type=int, metavar="N", help="processes per host, one for each GPU (2)")
    add(
        "--distribution",
        choices=DISTRIBUTIONS,
        metavar="NAME",
        help=f"how SageMaker starts the script: {', '.join(DISTRIBUTIONS)}",
    )
    add(
        "--image-versions",
        action="store_true",
        help="run with the image's torch, in an environment that pip makes once",
    )


def add_code_and_data(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("code and data").add_argument
    add("--job", type=Path, metavar="FILE", help="the job (job.toml)")
    add("--profile", metavar="NAME", help="of AWS's configuration, in place of job.toml's")
    add("--source-dir", type=Path, metavar="DIR", help="the folder with train.py (src)")
    add(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a channel's data; without it a sample comes from S3",
    )
    add(
        "--inherit",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable of this shell that the hosts get, too; one of [secrets] they read "
        "from a stub of Secrets Manager",
    )
    add(
        "--batches",
        type=int,
        metavar="N",
        help="of one epoch, of validation and of test (20); 0: all of all epochs",
    )
    add("hyperparameters", nargs="*", metavar="-- --NAME VALUE", help="options of train.py")


def add_faults(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("what goes wrong in the middle of training, one at a time")
    add = group.add_argument
    add("--fail-rank", type=int, metavar="R", help="rank R, from 0, raises an error")
    add("--kill-rank", type=int, metavar="R", help="rank R is killed")
    add(
        "--stop-host",
        type=int,
        metavar="N",
        help="host N, from 1, gets SIGTERM; the job starts again, and its weights are compared",
    )
    add(
        "--lose-host",
        type=int,
        metavar="N",
        help="the same with a host that is killed, once there is a checkpoint",
    )


def add_output(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("time and output").add_argument
    add("--timeout", type=float, default=1800, metavar="S", help="end after S seconds (1800)")
    add("--json", type=Path, metavar="FILE", help="write what each rank saw, and the verdicts")
    add("--keep", type=Path, metavar="DIR", help="keep the hosts' folders and complete logs")


def main(argv: Sequence[str]) -> int:
    """The command's exit status, as the help says."""
    arguments = parser().parse_args(argv)
    for number in END_SIGNALS:
        signal.signal(number, interrupt)
    run: Path | None = None
    try:
        # Here, so that --help does not wait for them.
        from smlightning import project
        from smlightning.rehearsal import report
        from smlightning.rehearsal.planning import make_plan

        this = project.find()
        plan = make_plan(arguments, this)
        if arguments.image_versions:
            run_with_image_versions(argv, this.root, plan)
        run = Path(tempfile.mkdtemp(prefix="rehearsal-"))
        result = report.rehearse(plan, run)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1))
        return 0 if result["ok"] else 1
    except UserError as error:
        print_error(error)
        return 2
    except OSError as error:
        cure = "" if run else "; a rehearsal needs a temporary folder that it can write to (TMPDIR)"
        print(f"error: {error}{cure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; all processes of the rehearsal were ended", file=sys.stderr)
        return 130
    finally:
        if run and arguments.keep:
            shutil.move(run, arguments.keep)
        elif run:
            shutil.rmtree(run, ignore_errors=True)


def interrupt(*_: object) -> None:
    """Signals that end the rehearsal: as Ctrl-C, once. Cleaning up takes seconds."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def run_with_image_versions(argv: Sequence[str], root: Path, plan: "Plan") -> None:
    """Go on in the image's environment, as the same process, so that signals reach it."""
    from smlightning.rehearsal.image import image_python

    python = str(image_python(plan.image, root, plan.request.get("Environment", {})))
    rest = [word for word in argv if word != "--image-versions"]
    sys.stdout.flush()
    os.execv(python, [python, "-m", "smlightning", "rehearse", *rest])  # noqa: S606
