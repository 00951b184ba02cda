"""A rehearsal from its beginning to its report: what is printed, and what is written as JSON."""

import dataclasses
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from smlightning import ports, stored_secrets
from smlightning.cluster.location import DEFAULT_PORT
from smlightning.errors import UserError
from smlightning.rehearsal import attempts, checks, mpirun, samples, secret_store
from smlightning.rehearsal.attempts import Lines, Machine
from smlightning.rehearsal.checks import Check
from smlightning.rehearsal.evidence import Attempt
from smlightning.rehearsal.hosts import Host
from smlightning.rehearsal.installed_requirements import requirements_keep_torch
from smlightning.rehearsal.plan import STOP_HOST, Plan
from smlightning.terminal import unescaped_output

NEEDED = ("sagemaker_training", "sagemaker_pytorch_container", "psutil")
HOST_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
VERDICT_COLOURS = {checks.PASSED: "green", checks.FAILED: "red", checks.SKIPPED: "yellow"}
ONLY_WIRING = "SMDDP was a stub over gloo: this verifies the wiring, not SMDDP itself."


@dataclass(frozen=True)
class Setting:
    """What a rehearsal says of itself before it begins."""

    launcher: str  # what starts the script
    real_mpirun: bool
    stubs: list[str]  # of what AWS alone has
    versions: dict[str, str]

    def title(self, plan: Plan) -> str:
        size = f"{plan.hosts} hosts × {plan.processes} processes"
        return f"{size}, {plan.distribution}, started by {self.launcher}"


def rehearse(plan: Plan, folder: Path, console: Console | None = None) -> dict[str, Any]:
    """Run the plan in a folder; prints the hosts' output as it comes, and the table.

    Returns:
        The JSON report.

    Raises:
        UserError: something that a rehearsal needs is not installed, or a channel has no data.
    """
    refuse_missing_modules()
    console = console or terminal()
    setting = describe(plan)
    plan, notes = with_samples(plan, folder / "channels", opening_notes(plan, setting))
    title = setting.title(plan)
    started = time.time()
    values = secret_store.contents(plan.secrets, os.environ)
    with ports.claimed([DEFAULT_PORT]) as port, secret_store.serve(values) as store:
        console.print(f"{title}; stubs: {', '.join(setting.stubs)}; port {port}", style="bold")
        console.print(*notes, sep="\n", style="dim")
        cluster = Machine(folder, port, setting.real_mpirun, store)
        printer = Printer(console)
        last, verdicts = attempts.run_plan(plan, cluster, printer.show)
    seconds = time.time() - started
    image_torch = plan.image.torch if plan.image else setting.versions["torch"]
    packages, verdict = requirements_keep_torch(plan.source / "requirements.txt", image_torch)
    verdicts.append(verdict)
    console.print(table(f"{title}, {seconds:.0f} s", verdicts))
    if plan.distribution == "smddp":
        console.print(ONLY_WIRING, style="dim")
    return {
        "ok": last.succeeded and not any(check.verdict == checks.FAILED for check in verdicts),
        "hosts": plan.hosts,
        "processes": plan.processes,
        "distribution": plan.distribution,
        "launcher": setting.launcher,
        "mpirun": setting.real_mpirun,
        "stubs": setting.stubs,
        "port": port,
        "seconds": round(seconds, 1),
        "versions": setting.versions,
        "notes": notes,
        "secrets": {
            variable: store.reads[secret_store.place(stored_secrets.parse(text))]
            for variable, text in plan.secrets.items()
        },
        "requirements": packages,
        **outcome(last, verdicts),
    }


def outcome(last: Attempt, verdicts: Sequence[Check]) -> dict[str, Any]:
    """How the last attempt ended, by host, check and rank."""
    return {
        "exit_codes": [host.exit_code for host in last.hosts],
        "failures": [host.output("failure") for host in last.hosts],
        "checks": [dataclasses.asdict(check) for check in verdicts],
        "ranks": [rank.report() for rank in last.ranks],
    }


def refuse_missing_modules() -> None:
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            problem = f"{module}, which a rehearsal needs, is not installed"
            raise UserError(problem, "run make rehearse")


def terminal() -> Console:
    """Colours on a terminal alone, whatever FORCE_COLOR says: notebooks set it, and a spinner
    would fill their output."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=unescaped_output(),
        highlight=False,
        soft_wrap=True,
        width=None if is_terminal else 100,
        force_terminal=is_terminal,
    )


def describe(plan: Plan) -> Setting:
    """The launcher, stubs and versions of this rehearsal."""
    launcher = {"torch_distributed": "torchrun", "none": "no launcher"}.get(
        plan.distribution, "mpirun"
    )
    real_mpirun = False
    if plan.distribution in mpirun.LAUNCHED:
        reason = mpirun.why_not(plan.hosts)
        real_mpirun = not reason
        if reason:
            launcher = f"mpirun's environment without mpirun ({reason})"
    stubs = ["SMDDP", "smddprun", "nvidia-smi"] if plan.distribution == "smddp" else ["nvidia-smi"]
    if plan.secrets:
        stubs.append("Secrets Manager")
    versions = {
        "torch": version("torch"),
        "python": platform.python_version(),
        "toolkit": version("sagemaker_training"),
        "image_torch": plan.image.torch if plan.image else "",
        "image_python": plan.image.python if plan.image else "",
        "image_toolkit": (plan.image.toolkit if plan.image else None) or "",
    }
    return Setting(launcher, real_mpirun, stubs, versions)


def opening_notes(plan: Plan, setting: Setting) -> list[str]:
    """What differs from the job on SageMaker."""
    image = "versions that are not known here"
    if plan.image:
        image = f"torch {plan.image.torch} on Python {plan.image.python}"
        if plan.image.toolkit:
            image += f", toolkit {plan.image.toolkit}"
    versions = setting.versions
    here = f"torch {versions['torch']} on Python {versions['python']}"
    here += f", toolkit {versions['toolkit']}"
    notes = [f"runs {here}; the job's image has {image}", *plan.notes]
    if plan.batches:
        most = f"one epoch of at most {plan.batches} batches"
        notes.append(f"{most}; -- --epochs N trains N whole epochs")
    return notes


def with_samples(plan: Plan, folder: Path, notes: Sequence[str]) -> tuple[Plan, list[str]]:
    """The plan with all channels in folders of this machine, and the notes with what was copied."""
    channels = dict(plan.channels)
    all_notes = list(notes)
    for name, address in plan.remote_channels.items():
        channels[name] = folder / name
        copied = samples.copy_sample(name, address, plan.region, channels[name])
        all_notes.append(f"channel {name}: {copied}; --channel {name}=DIR takes a local folder")
    return replace(plan, channels=channels, remote_channels={}), all_notes


@dataclass(frozen=True)
class Printer:
    """Prints what the hosts of an attempt print."""

    console: Console

    def show(self, name: str, plan: Plan, hosts: Sequence[Host], lines: Lines) -> None:
        """Each line with its host; on a terminal a line below tells the time and who has ended."""
        self.console.print(f"{name}{interruption(plan)}", style="bold")
        started = time.monotonic()
        with self.console.status("", refresh_per_second=4) as status:
            for host, line in lines:
                ended = sum(other.exit_code is not None for other in hosts)
                seconds = time.monotonic() - started
                status.update(f"{seconds:.0f} s, {ended} of {plan.hosts} hosts ended")
                if line:
                    colour = HOST_COLOURS[host.index % len(HOST_COLOURS)]
                    prefix = Text(f"host {host.number} ", colour)
                    self.console.print(prefix.append_text(Text.from_ansi(line)))


def interruption(plan: Plan) -> str:
    """What the attempt's heading says of the host that will be interrupted."""
    if not plan.fault or not plan.fault.interrupts:
        return ""
    end = "stopped" if plan.fault.kind == STOP_HOST else "lost"
    return f", host {plan.fault.target + 1} will be {end}"


def table(title: str, verdicts: Sequence[Check]) -> Table:
    """The checks, as they are printed at the end."""
    columns = (Column("check", no_wrap=True), "verdict", Column("detail", overflow="fold"))
    rows = Table(*columns, title=title, title_justify="left", title_style="bold")
    for check in verdicts:
        verdict = Text(check.verdict, VERDICT_COLOURS[check.verdict])
        rows.add_row(check.name, verdict, Text(check.detail))
    return rows
