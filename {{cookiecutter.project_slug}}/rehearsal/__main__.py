"""Simulate the job's cluster on this machine before paying for it.

SageMaker's own training toolkit starts src/train.py on several hosts, which are loopback addresses of this machine,
over gloo on the CPU; ranks, weights and outputs are verified. No job is sent; a channel's sample may come from S3.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launch import ROOT, SRC, preflight, profiles  # also puts src/ on the path
from launch import job as jobs
from launch.findings import near, print_error
from rehearsal import checks, hosts, image, request, requirements
from rehearsal.hosts import END, FAULTS, MPI, Host, Plan
from runtime.report import UserError

BATCHES = 20  # enough for every check, and for the faults, which come in step 2; not where epochs or max_steps is given
INTERRUPTED_BATCHES = 200  # seconds of training: an interruption after step 2 has to come before the end
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line; what follows `--` are hyperparameters."""
    parser = argparse.ArgumentParser(
        prog="python -m rehearsal",
        usage="%(prog)s [--hosts 2] [--processes 2] [--distribution …] [options] [-- --epochs 1 --lr 1e-3 …]",
        description=__doc__,
        epilog="What is not given comes from job.toml. Exit status: 0 if every host succeeded and every check passed, "
        "1 if not, 2 for a mistake on this command line or in job.toml, 130 after Ctrl-C.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", type=int, help="hosts (instance_count)")
    add("--processes", type=int, help="processes per host, as many as it has GPUs (default 2)")
    add("--distribution", choices=jobs.DISTRIBUTIONS, help="how SageMaker starts the script")
    add("--source-dir", type=Path, default=SRC, help="folder with train.py (default src)")
    add("--job", type=Path, default=ROOT / "job.toml", help="the job (default job.toml)")
    add("--channel", action="append", default=[], metavar="NAME=DIR", help="a channel's data (else a sample from S3)")
    add("--inherit", action="append", default=[], metavar="NAME", help="a variable of this shell to pass to the hosts")
    add("--image-versions", action="store_true", help="run in an environment with the image's torch, made by pip once")
    add("--batches", type=int, metavar="N", help="of one epoch, and of validation and test (20); 0: all of all epochs")
    add("--fail-rank", type=int, metavar="R", help="rank R raises an error in the middle of training")
    add("--kill-rank", type=int, metavar="R", help="rank R is killed in the middle of training")
    add("--stop-host", type=int, metavar="N", help="SIGTERM to host N, a restart, and a comparison of the weights")
    add("--lose-host", type=int, metavar="N", help="the same, but host N is killed, once there is a checkpoint")
    add("--timeout", type=float, default=1800, metavar="S", help="end after S seconds (default 1800)")
    add("--json", type=Path, metavar="FILE", help="write what each rank saw and each check's verdict")
    add("--keep", type=Path, metavar="DIR", help="keep the hosts' folders and complete logs there")
    add("hyperparameters", nargs="*", metavar="-- --name value", help="hyperparameters of train.py")
    return parser.parse_args(argv)


def plan(args: argparse.Namespace) -> Plan:
    """What to rehearse, from the command line and job.toml.

    Raises:
        UserError: they contradict each other or this machine.
    """
    own = args.source_dir.resolve() == SRC
    job = jobs.load(args.job)
    distribution = args.distribution if args.distribution not in (None, "auto") else profiles.launcher(job)
    count = job.instance_count if args.hosts is None else args.hosts
    processes = args.processes if args.processes is not None else 1 if distribution == "none" else 2
    given = [(name, getattr(args, name.replace("-", "_"))) for name in FAULTS]
    faults = [(name, number) for name, number in given if number is not None]
    refuse_contradictions(args, count, processes, distribution, faults)
    folders = dict(channel.partition("=")[::2] for channel in args.channel)
    for name, folder in folders.items():
        if not (re.fullmatch(r"[A-Za-z0-9._-]+", name) and folder and Path(folder).is_dir()):
            raise UserError(f"--channel {name}={folder}: no such folder; write NAME=DIR")
        if own and job.channels and name not in job.channels:
            raise UserError(f"--channel {name} is not among [channels] of job.toml; {near(name, job.channels)}")
    fault, target = faults[0] if faults else ("", 0)
    after = pairs(args.hyperparameters)
    batches = args.batches
    if batches is None:
        batches = INTERRUPTED_BATCHES if fault.endswith("-host") else BATCHES
        batches = 0 if {"epochs", "max_steps"} & after.keys() else batches
    if fault == "lose-host" and own:
        after = {"checkpoint_steps": 5, **after}  # without a checkpoint there is nothing to resume from
    if not own:
        job = dataclasses.replace(job, hyperparameters={}, channels={})
    values = {**job.hyperparameters, **after}
    job = dataclasses.replace(job, instance_count=count, distribution=distribution, hyperparameters=values)
    for finding in preflight.hyperparameters(job) if own else ():  # now, and not once every host has started
        raise UserError(f"{finding.key}: {finding.problem}; {finding.cure}")
    notes = []
    if fault == "stop-host" and not job.forward_stop:
        notes.append("forward_stop is false in job.toml: SageMaker's SIGTERM would not reach training; see --lose-host")
        job = dataclasses.replace(job, forward_stop=True)
    if job.hub_token_secret:
        notes.append("hub_token_secret is not read here: export HF_TOKEN, and let it in with --inherit HF_TOKEN")
    kept = {name: value for name, value in job.environment.items() if not name.startswith("MLFLOW_")}
    job = dataclasses.replace(job, hub_token_secret="", mlflow="", environment=kept)  # nor is a server logged to
    made, note = request.make(job) if own else (request.without_sdk(job), "")
    profile = profiles.profile(job)
    remote = {k: v if isinstance(v, str) else str(v.get("s3_data", "")) for k, v in job.channels.items()}
    return Plan(
        *(count, processes, distribution, args.source_dir, made),
        channels={**remote, **{name: Path(folder) for name, folder in folders.items()}},
        inherit=args.inherit,
        image=(profile.torch, profile.python) if profile else ("", ""),
        notes=[*notes, *filter(None, [note])],
        fault=fault,
        target=target - 1 if fault.endswith("-host") else target,
        batches=batches,
        timeout=args.timeout,
    )


def refuse_contradictions(
    args: argparse.Namespace, count: int, processes: int, distribution: str, faults: list[tuple[str, int]]
) -> None:
    """Raises UserError for what this command line, code and machine cannot be together."""

    def refuse(wrong: Any, sentence: str) -> None:
        if wrong:
            raise UserError(sentence)

    source = args.source_dir
    refuse(not (source / "train.py").is_file(), f"--source-dir {source} has no train.py; name your script's folder")
    install = "SageMaker's toolkit would install it into this environment; rehearse a copy without it"
    refuse((source / "setup.py").exists(), f"--source-dir {source} has a setup.py; {install}")
    limits = [("hosts", count, 1, 64), ("processes", processes, 1, 64), ("timeout", args.timeout, 1, 86400)]
    limits += [(name, i, 1, count) if "host" in name else (name, i, 0, count * processes - 1) for name, i in faults]
    for name, number, first, last in [*limits, ("batches", args.batches or 0, 0, 10**9)]:
        refuse(not first <= number <= last, f"--{name} {number} is not from {first} to {last}")
    single = "without a launcher SageMaker starts one process per host; use --processes 1"
    refuse(distribution == "none" and processes > 1, f"--processes {processes}: {single}")
    refuse(sys.platform == "win32", "SageMaker's toolkit does not run on Windows; use WSL")
    alone = "this system has one loopback address and no /proc; use Linux, or --hosts 1 with torch_distributed"
    refuse(sys.platform != "linux" and (count > 1 or distribution in MPI or args.stop_host), alone)
    together = " and ".join(f"--{name}" for name, _ in faults)
    refuse(len(faults) > 1, f"{together} are mutually exclusive; rehearse them one by one")
    for name in args.inherit:
        refuse(name not in os.environ, f"--inherit {name}: this shell has no such variable; export it first")
    for option, path in (("json", args.json), ("keep", args.keep)):
        taken = path and (path.is_dir() if option == "json" else path.exists())
        unfit = taken or (path and not writable(path))
        refuse(unfit, f"--{option} {path} exists or cannot be written; name another place")


def writable(path: Path) -> bool:
    """Whether a file can be made there; root may write everywhere, and yet not to /proc."""
    new = not os.path.lexists(path)
    try:
        with path.open("a"):
            pass
    except OSError:
        return False
    if new:
        path.unlink()
    return True


def pairs(words: list[str]) -> dict[str, Any]:
    """`--epochs 1 --lr=1e-3` as hyperparameters; a value is a number or a boolean if it reads like one.

    Raises:
        UserError: a word is no option, or an option has no value.
    """
    found, rest = {}, list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") or not (equals or rest):
            raise UserError(f"{name!r} after -- is not a hyperparameter; write --name value")
        text = value if equals else rest.pop(0)
        if "/" in text and os.path.exists(text):  # noqa: PTH110  Path.exists raises where a text is too long for a path
            text = str(Path(text).resolve())  # the hosts start train.py in a folder of their own
        found[name[2:]] = text
        with contextlib.suppress(ValueError):
            found[name[2:]] = json.loads(text)
    return found


def rehearse(plan: Plan, run: Path) -> dict[str, Any]:
    """Run the hosts and check them; prints their output while they run, and the table at the end."""
    from rich.console import Console

    for module in ("sagemaker_training", "sagemaker_pytorch_container", "psutil"):
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{module}, which a rehearsal needs, is not installed; run make rehearse")
    terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says, which notebooks set: a spinner would fill their output
    console = Console(highlight=False, soft_wrap=True, width=None if terminal else 100, force_terminal=terminal)
    why = hosts.without_mpirun(plan) if plan.distribution in MPI else ""
    mpirun = plan.distribution in MPI and not why
    launcher = {"torch_distributed": "torchrun", "none": "no launcher"}.get(plan.distribution, "mpirun")
    launcher = f"mpirun's environment without mpirun ({why})" if why else launcher
    stubs = ["SMDDP", "smddprun", "nvidia-smi"] if plan.distribution == "smddp" else ["nvidia-smi"]
    title = f"{plan.hosts} hosts × {plan.processes} processes, {plan.distribution}, started by {launcher}"
    versions = {"torch": version("torch"), "python": platform.python_version()}
    versions |= {"image_torch": plan.image[0], "image_python": plan.image[1]}
    theirs = "torch {} on Python {}".format(*plan.image) if plan.image[0] else "versions that are not known here"
    ran = f"runs torch {versions['torch']} on Python {versions['python']}; the job's image has {theirs}"
    notes = [ran, *plan.notes]
    if plan.batches:
        notes.append(f"one epoch of at most {plan.batches} batches; -- --epochs N trains N whole epochs")
    for name, place in plan.channels.items():
        if isinstance(place, str):
            sample = request.sample(name, place, plan.request, run / "channels" / name)
            notes.append(f"channel {name}: {sample}; --channel {name}=DIR takes a local folder")
    folders = {name: run / "channels" / name if isinstance(at, str) else at for name, at in plan.channels.items()}
    plan, started = dataclasses.replace(plan, channels=folders), time.time()
    with hosts.port() as port:
        console.print(f"{title}; stubs: {', '.join(stubs)}; port {port}", style="bold")
        console.print(*notes, sep="\n", style="dim")
        if plan.interrupts:
            ended, ranks = start(plan, run / "interrupted", port, mpirun, console), []
            verdicts = checks.judge(plan, run / "interrupted", ended, [])
            if verdicts[0].verdict == "passed":
                plan = dataclasses.replace(plan, fault="")
                start(plan, run / "undisturbed", port, mpirun, console)
                plan = dataclasses.replace(plan, restored=hosts.upload(ended, run / "s3"))
                ended = start(plan, run / "restarted", port, mpirun, console)
                ranks, undisturbed = checks.evidence(run / "restarted"), checks.evidence(run / "undisturbed")
                verdicts += checks.judge(plan, run / "restarted", ended, ranks, undisturbed)
        else:
            ended = start(plan, run / "job", port, mpirun, console)
            ranks = checks.evidence(run / "job")
            verdicts = checks.judge(plan, run / "job", ended, ranks)
    seconds = time.time() - started
    packages, verdict = requirements.check(plan.source / "requirements.txt", plan.image[0] or versions["torch"])
    verdicts.append(verdict)
    console.print(table(f"{title}, {seconds:.0f} s", verdicts))
    if "SMDDP" in stubs:
        console.print("SMDDP was a stub over gloo: this verifies the wiring, not SMDDP itself.", style="dim")
    ok = all(host.exit_code == 0 for host in ended) and not any(check.verdict == "failed" for check in verdicts)
    report = {"ok": ok, "hosts": plan.hosts, "processes": plan.processes, "distribution": plan.distribution}
    report |= {"launcher": launcher, "mpirun": mpirun, "stubs": stubs, "port": port, "seconds": round(seconds, 1)}
    report |= {"versions": versions, "notes": notes, "requirements": packages}
    report |= {"exit_codes": [h.exit_code for h in ended], "failures": [h.file("failure") for h in ended]}
    report["checks"] = [dataclasses.asdict(check) for check in verdicts]
    report["ranks"] = [{key: value for key, value in rank.items() if key not in checks.LONG} for rank in ranks]
    return report


def start(plan: Plan, run: Path, port: int, mpirun: bool, console: Any) -> list[Host]:
    """Start the job once; prints what its hosts print. Returns them as they ended."""
    from rich.text import Text

    what = f", host {plan.target + 1} will be {'stopped' if plan.fault == 'stop-host' else 'lost'}"
    console.print(f"{run.name}{what if plan.interrupts else ''}", style="bold")
    created, started = hosts.create_hosts(plan, run), time.monotonic()
    with (
        contextlib.closing(hosts.run_hosts(plan, run, created, port, mpirun)) as lines,
        console.status("", refresh_per_second=4) as status,  # nothing where no terminal is
    ):
        for host, line in lines:
            ended = sum(other.exit_code is not None for other in created)
            status.update(f"{time.monotonic() - started:.0f} s, {ended} of {plan.hosts} hosts ended")
            if line:
                text = Text(f"host {host.index + 1} ", COLOURS[host.index % len(COLOURS)])
                console.print(text.append_text(Text.from_ansi(line)))
    return created


def table(title: str, verdicts: list[checks.Check]) -> Any:
    from rich.table import Column, Table
    from rich.text import Text

    columns = (Column("check", no_wrap=True), "verdict", Column("detail", overflow="fold"))
    made = Table(*columns, title=title, title_justify="left", title_style="bold")
    for check in verdicts:
        colour = {"passed": "green", "failed": "red", "skipped": "yellow"}[check.verdict]
        made.add_row(check.name, Text(check.verdict, colour), Text(check.detail))
    return made


def main(argv: list[str]) -> int:
    args = parse(argv)

    def interrupted(*_: object) -> None:
        for number in END:
            signal.signal(number, signal.SIG_IGN)  # cleaning up takes seconds; a second Ctrl-C would cut it short
        raise KeyboardInterrupt

    for number in END:
        signal.signal(number, interrupted)
    run: Path | None = None
    try:
        made = plan(args)
        if args.image_versions:
            python = image.environment(*made.image)
            again = [str(python), "-m", "rehearsal", *(word for word in argv if word != "--image-versions")]
            sys.stdout.flush()
            os.execv(python, again)  # noqa: S606  the same process: signals reach it
        run = Path(tempfile.mkdtemp(prefix="rehearsal-"))
        report = rehearse(made, run)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1))
        return 0 if report["ok"] else 1
    except UserError as error:
        print_error(error)
        return 2
    except OSError as error:
        hint = "" if run else "; a rehearsal needs a temporary folder that it can write to (TMPDIR)"
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; all processes of the rehearsal were ended", file=sys.stderr)
        return 130
    finally:
        if run and args.keep:
            shutil.move(run, args.keep)
        elif run:
            shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    gc.freeze()  # else Python would look through every module of the SDK for garbage once more
    sys.exit(status)
