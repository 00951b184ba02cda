"""Play the cluster on this machine before paying for it.

SageMaker's own training toolkit starts src/train.py on several hosts, which are loopback addresses of this machine,
over gloo on the CPU; then everything that has to hold across ranks is checked. Nothing is sent anywhere.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rehearsal.checks import Check
    from rehearsal.hosts import Plan

ROOT = Path(__file__).resolve().parent.parent
BATCHES = 20  # enough for every wire, and for the faults, which come in step 2
HALT_BATCHES = 200  # seconds of training: a stop that is asked for after step 2 has to come before the end
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
DISTRIBUTIONS = ("torch_distributed", "smddp", "pytorchddp", "none")


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line; what follows `--` are hyperparameters."""
    parser = argparse.ArgumentParser(
        prog="python -m rehearsal",
        usage="%(prog)s [--hosts 2] [--processes 2] [--distribution …] [options] [-- --epochs 1 --lr 1e-3 …]",
        description=__doc__,
        epilog="What is not given comes from job.toml. Exit status: 0 if every host succeeded and every check held, "
        "1 if not, 2 for a mistake on this command line, 130 after Ctrl-C.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--hosts", type=_count, help="hosts (instance_count)")
    parser.add_argument("--processes", type=_count, help="processes per host, as many as it has GPUs (default 2)")
    parser.add_argument("--distribution", choices=(*DISTRIBUTIONS, "auto"), help="how SageMaker starts the script")
    parser.add_argument("--source-dir", type=Path, default=ROOT / "src", help="folder with train.py (default src)")
    parser.add_argument("--job", type=Path, default=ROOT / "job.toml", help="the job (default job.toml)")
    parser.add_argument("--channel", action="append", default=[], metavar="NAME=DIR", help="a channel's data")
    parser.add_argument(
        "--batches",
        type=_batches,
        metavar="N",
        help="one epoch of at most N batches, and as many to validate and to test; 0: all that the hyperparameters say "
        f"(default {BATCHES}; {HALT_BATCHES} to stop or lose a host; 0 where epochs or max_steps is given after --)",
    )
    parser.add_argument("--fail-rank", type=int, metavar="R", help="rank R raises in the middle of training")
    parser.add_argument("--kill-rank", type=int, metavar="R", help="rank R is killed in the middle of training")
    parser.add_argument(
        "--stop-host",
        type=_count,
        metavar="N",
        help="host N (1, 2, …) is told to stop in the middle of training; then the job is started again with the "
        "checkpoints, as after a spot interruption, and has to end as one that is left alone",
    )
    parser.add_argument(
        "--lose-host", type=_count, metavar="N", help="the same, but host N vanishes, once there is a checkpoint"
    )
    parser.add_argument("--timeout", type=_seconds, default=1800, metavar="S", help="end after so long (default 1800)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what each rank saw and every verdict")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the hosts' folders there")
    parser.add_argument("hyperparameters", nargs="*", metavar="-- --name value", help="hyperparameters of train.py")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    value = int(text)
    if not 0 < value <= 64:
        raise argparse.ArgumentTypeError(f"{value} is not between 1 and 64")
    return value


def _batches(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{value:g} is not between 0 and 86400")
    return value


def plan(args: argparse.Namespace) -> "Plan":
    """What to rehearse, from the command line and job.toml.

    Raises:
        UserError: they contradict each other or this machine.
    """
    from launch import job, profiles  # also puts src/ on the path
    from rehearsal.hosts import MPI, Plan
    from runtime.report import UserError

    own = args.source_dir.resolve() == ROOT / "src"
    answers = job.load(args.job) if own or args.job != ROOT / "job.toml" or args.job.exists() else None
    distribution = args.distribution or "auto"
    if distribution == "auto":
        distribution = profiles.launcher(answers) if answers else "torch_distributed"
    hosts = args.hosts or (answers.instance_count if answers else 2)
    processes = args.processes or (1 if distribution == "none" else 2)
    problem = ""
    if not (args.source_dir / "train.py").is_file():
        problem = f"--source-dir {args.source_dir} has no train.py; name the folder that holds your entry point"
    elif (args.source_dir / "setup.py").exists():
        problem = (
            f"--source-dir {args.source_dir} has a setup.py, and SageMaker's toolkit would install it into this "
            "environment; move it out of the folder, or rehearse a copy without it"
        )
    elif distribution == "none" and processes > 1:
        problem = (
            f"--processes {processes}: without a launcher SageMaker starts one process per host; use --processes 1"
        )
    elif sys.platform == "win32":
        problem = "SageMaker's toolkit does not run on Windows; use WSL"
    elif sys.platform != "linux" and (hosts > 1 or distribution in MPI):
        problem = "this system has one loopback address; rehearse --hosts 1 with torch_distributed, or use Linux"
    for name, rank in (("--fail-rank", args.fail_rank), ("--kill-rank", args.kill_rank)):
        if rank is not None and not 0 <= rank < hosts * processes:
            problem = f"{name} {rank} is none of the ranks 0 to {hosts * processes - 1}"
    for name, host in (("--stop-host", args.stop_host), ("--lose-host", args.lose_host)):
        if host is not None and host > hosts:
            problem = f"{name} {host} is none of the hosts 1 to {hosts}"
    faults = ("fail_rank", "kill_rank", "stop_host", "lose_host")
    if len(given := [f"--{fault.replace('_', '-')}" for fault in faults if getattr(args, fault) is not None]) > 1:
        problem = f"{' and '.join(given)} are too much at once; rehearse one after the other"
    if args.json and (args.json.is_dir() or not os.access(args.json.parent, os.W_OK)):
        problem = f"--json {args.json} cannot be written; name a file in a folder that is yours"
    if args.keep and (args.keep.exists() or not os.access(args.keep.parent, os.W_OK)):
        problem = f"--keep {args.keep} exists or cannot be made; name a new folder in one that is yours"
    image = profiles.profile(dataclasses.replace(answers, distribution=distribution)) if answers else None
    channels = dict(channel.partition("=")[::2] for channel in args.channel)
    for name, folder in channels.items():
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or not folder or not Path(folder).is_dir():
            problem = f"--channel {name}={folder}: no such folder; write NAME=DIR"
    if problem:
        raise UserError(problem)
    given_here = pairs(args.hyperparameters)
    batches = args.batches
    if batches is None:
        batches = HALT_BATCHES if args.stop_host or args.lose_host else BATCHES
        batches = 0 if {"epochs", "max_steps"} & given_here.keys() else batches
    if args.lose_host and own:
        given_here = {"checkpoint_steps": 5, **given_here}  # what is lost before a checkpoint begins from nothing
    return Plan(
        hosts=hosts,
        processes=processes,
        distribution=distribution,
        source=args.source_dir,
        hyperparameters={**(answers.hyperparameters if own and answers else {}), **given_here},
        channels={name: Path(folder) for name, folder in channels.items()},
        environment=answers.environment if answers else {},
        instance_type=answers.instance_type if answers else "ml.p4d.24xlarge",
        region=answers.region if answers else "us-east-1",
        image_torch=image.torch if image else version("torch"),
        fail_rank=args.fail_rank,
        kill_rank=args.kill_rank,
        stop_host=args.stop_host and args.stop_host - 1,
        lose_host=args.lose_host and args.lose_host - 1,
        batches=batches,
        timeout=args.timeout,
    )


def pairs(words: list[str]) -> dict[str, Any]:
    """`--epochs 1 --lr=1e-3` as hyperparameters; a value is a number or a boolean if it reads like one.

    Raises:
        UserError: a word is no option, or an option has no value.
    """
    from runtime.report import UserError

    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") or not (equals or rest):
            raise UserError(f"{name!r} after -- is no hyperparameter; write them as --name value")
        text = value if equals else rest.pop(0)
        try:
            found[name[2:]] = json.loads(text)
        except ValueError:
            found[name[2:]] = text
    return found


def rehearse(plan: "Plan", run: Path) -> dict[str, Any]:
    """Play and judge; prints what hosts say while they run, and the table at the end."""
    import importlib.util

    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    from rehearsal import checks, hosts, requirements
    from runtime.report import UserError

    for module in ("sagemaker_training", "sagemaker_pytorch_container", "psutil"):
        if importlib.util.find_spec(module) is None:
            raise UserError(
                f"{module} is not installed, and a rehearsal runs SageMaker's own toolkit; run make rehearse"
            )
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    why = hosts.without_mpirun(plan) if plan.distribution in hosts.MPI else ""
    mpirun = plan.distribution in hosts.MPI and not why
    launcher = {"torch_distributed": "torchrun", "none": "no launcher"}.get(plan.distribution, "mpirun")
    if why:
        launcher = f"mpirun's environment without mpirun ({why})"
    standins = ["SMDDP", "smddprun", "nvidia-smi"] if plan.distribution == "smddp" else ["nvidia-smi"]
    title = f"{plan.hosts} hosts × {plan.processes} processes, {plan.distribution}, started by {launcher}"
    started = time.time()

    def act(plan: "Plan", run: Path, port: int, what: str = "") -> list[hosts.Host]:
        """One attempt at the job; shows what its hosts say."""
        cast = hosts.lay_out(plan, run)
        spinner = Spinner("dots")
        with (
            contextlib.closing(hosts.play(plan, run, cast, port, mpirun)) as play,
            Live(spinner, console=console, refresh_per_second=4, transient=True) as live,
        ):
            live.console.print(f"{title}{what}; stand-ins: {', '.join(standins)}; port {port}", style="bold")
            if plan.batches:
                short = f"one epoch of at most {plan.batches} batches; -- --epochs N plays N whole epochs"
                live.console.print(short, style="dim")
            for host, line in play:
                ended = sum(other.exit_code is not None for other in cast)
                spinner.update(text=f"{time.time() - started:.0f} s, {ended} of {plan.hosts} hosts ended")
                if line:
                    text = Text(f"host {host.index + 1} ", COLOURS[host.index % len(COLOURS)])
                    live.console.print(text.append_text(Text.from_ansi(line)))
        return cast

    halted: dict[str, Any] = {}
    with hosts.port() as port:
        if plan.halt is None:
            cast = act(plan, run, port)
            ranks = checks.evidence(run)
            verdicts = checks.judge(plan, run, cast, ranks)
        else:
            how = "stopped" if plan.lose_host is None else "lost"
            first, second, third = run / "halted", run / "restarted", run / "undisturbed"
            cast = act(plan, first, port, f", host {plan.halt + 1} will be {how}")
            verdicts = checks.judge(plan, first, cast, [])
            halted = {"host": plan.halt + 1, "how": how, "exit_codes": [host.exit_code for host in cast]}
            ranks = []
            if verdicts[0].verdict == "held":
                calm = dataclasses.replace(plan, stop_host=None, lose_host=None)
                act(calm, third, port, ", left alone")
                calm = dataclasses.replace(calm, restored=hosts.upload(cast, run / "s3"))
                cast = act(calm, second, port, ", started again")
                ranks = checks.evidence(second)
                verdicts += checks.judge(calm, second, cast, ranks)
                verdicts += checks.judge_restart(ranks, checks.evidence(third))
    seconds = time.time() - started
    packages, verdict = requirements.check(plan.source / "requirements.txt", plan.image_torch)
    verdicts.append(verdict)
    _table(console, f"{title}, {seconds:.0f} s", verdicts)
    if packages:
        console.print(f"the container would install {', '.join(packages)}", style="dim")
    if "SMDDP" in standins:
        console.print("SMDDP was a stand-in over gloo: this proves the wiring, not SMDDP itself.", style="dim")
    ok = all(host.exit_code == 0 for host in cast) and not any(check.verdict == "failed" for check in verdicts)
    return {
        "ok": ok,
        "hosts": plan.hosts,
        "processes": plan.processes,
        "distribution": plan.distribution,
        "launcher": launcher,
        "mpirun": mpirun,
        "standins": standins,
        "port": port,
        "seconds": round(seconds, 1),
        "halted": halted,
        "exit_codes": [host.exit_code for host in cast],
        "failures": [host.file("failure") for host in cast],
        "checks": [check.as_dict() for check in verdicts],
        "ranks": [{key: value for key, value in rank.items() if key not in checks.LONG} for rank in ranks],
        "requirements": packages,
    }


def _table(console: Any, title: str, verdicts: "list[Check]") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict")
    table.add_column("detail", overflow="fold")
    for check in verdicts:
        colour = {"held": "green", "failed": "red", "skipped": "yellow"}[check.verdict]
        table.add_row(check.name, Text(check.verdict, colour), Text(check.detail))
    console.print(table)


def main(argv: list[str]) -> int:
    args = parse(argv)
    sys.path.insert(0, str(ROOT / "src"))
    from rehearsal.hosts import END
    from runtime.report import UserError

    def interrupted(*_: object) -> None:
        for number in END:
            signal.signal(number, signal.SIG_IGN)  # cleaning up takes seconds; a second Ctrl-C would cut it short
        raise KeyboardInterrupt

    for number in END:
        signal.signal(number, interrupted)
    run: Path | None = None
    try:
        made = plan(args)
        run = Path(tempfile.mkdtemp(prefix="rehearsal-"))
        report = rehearse(made, run)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1))
        return 0 if report["ok"] else 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        hint = "" if run else "; a rehearsal needs a temporary folder that it can write to (TMPDIR)"
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; every process of the rehearsal was ended", file=sys.stderr)
        return 130
    finally:
        if run and args.keep:
            shutil.move(run, args.keep)
        elif run:
            shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
