"""A rehearsal from its beginning to its report: the printed table, and the JSON."""

import dataclasses
import functools
import importlib.util
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from smlightning.cluster.location import DEFAULT_PORT
from smlightning.errors import UserError
from smlightning.terminal import unescaped_output
from smlightning_sagemaker.rehearsal import attempts, checks, mpirun, ports
from smlightning_sagemaker.rehearsal.attempts import Lines
from smlightning_sagemaker.rehearsal.checks import Check
from smlightning_sagemaker.rehearsal.hosts import Host
from smlightning_sagemaker.rehearsal.plan import Plan

NEEDED = ("sagemaker_training", "sagemaker_pytorch_container", "psutil")
HOST_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
VERDICT_COLOURS = {checks.PASSED: "green", checks.FAILED: "red", checks.SKIPPED: "yellow"}
ONLY_WIRING = "SMDDP was a stub over gloo: this verifies the wiring, not SMDDP itself."


def rehearse(plan: Plan, folder: Path, console: Console | None = None) -> dict[str, Any]:
    """Run the plan in a folder; prints the hosts' output as it comes, and the table.

    Returns:
        The JSON report.

    Raises:
        UserError: a package that a rehearsal needs is missing.
    """
    check_modules()
    console = console or terminal()
    launcher, real_mpirun = find_launcher(plan)
    stubs = ["SMDDP", "smddprun", "nvidia-smi"] if plan.distribution == "smddp" else ["nvidia-smi"]
    title = f"{counted(plan.hosts, 'host')} × {counted(plan.processes, 'process', 'es')}"
    title += f", {plan.distribution}, started by {launcher}"
    versions = versions_of(plan)
    notes = opening_notes(plan, versions)
    started = time.time()
    with ports.claimed([DEFAULT_PORT]) as port:
        console.print(f"{title}; stubs: {', '.join(stubs)}; port {port}", style="bold")
        console.print(*notes, sep="\n", style="dim")
        plan = replace(plan, port=port, real_mpirun=real_mpirun)
        last, verdicts = attempts.run_plan(plan, folder, functools.partial(show, console))
    seconds = time.time() - started
    console.print(table(f"{title}, {seconds:.0f} s", verdicts))
    if plan.distribution == "smddp":
        console.print(ONLY_WIRING, style="dim")
    removed = checks.removed(last)
    if removed:
        without = "no Trainer of Lightning was seen, so these checks were not made"
        console.print(f"{without}: {', '.join(removed)}")
    on_cpu = list(dict.fromkeys(call for rank in last.ranks for call in rank.on_cpu))
    if on_cpu:
        console.print(f"note: ran on the CPU in place of a GPU: {', '.join(on_cpu)}")
    failed = [check.name for check in verdicts if check.verdict == checks.FAILED]
    if failed:
        console.print(f"the rehearsal failed: {', '.join(failed)}", style="red")
    return {
        "ok": not failed,
        "hosts": plan.hosts,
        "processes": plan.processes,
        "distribution": plan.distribution,
        "launcher": launcher,
        "mpirun": real_mpirun,
        "stubs": stubs,
        "port": port,
        "seconds": round(seconds, 1),
        "versions": versions,
        "notes": notes,
        "removed": removed,
        "on_cpu": on_cpu,
        "secrets": list(plan.secrets),
        "exit_codes": [host.exit_code for host in last.hosts],
        "failures": [host.output("failure") for host in last.hosts],
        "checks": [dataclasses.asdict(check) for check in verdicts],
        "ranks": [rank.report() for rank in last.ranks],
    }


def counted(number: int, word: str, ending: str = "s") -> str:
    """The number with the word in its singular or plural."""
    return f"{number} {word}{ending if number != 1 else ''}"


def check_modules() -> None:
    """Raise UserError if a package that a rehearsal needs is missing."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            problem = f"{module}, which a rehearsal needs, is not installed"
            raise UserError(problem, "run make rehearse")


def terminal() -> Console:
    """A console with colours and a spinner only on a terminal, also where FORCE_COLOR is set."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=unescaped_output(),
        highlight=False,
        soft_wrap=True,
        width=None if is_terminal else 100,
        force_terminal=is_terminal,
    )


def find_launcher(plan: Plan) -> tuple[str, bool]:
    """The launcher of the script, and whether it is a real mpirun."""
    if plan.distribution not in mpirun.LAUNCHED:
        return ("torchrun" if plan.distribution == "torch_distributed" else "no launcher"), False
    reason = mpirun.why_not(plan.hosts)
    if reason:
        return f"mpirun's environment without mpirun ({reason})", False
    return "mpirun", True


def versions_of(plan: Plan) -> dict[str, str]:
    """Versions here and in the job's image; an empty text is an unknown version."""
    image = plan.image
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "toolkit": version("sagemaker_training"),
        "image_torch": image.torch if image else "",
        "image_python": image.python if image else "",
        "image_toolkit": (image and image.toolkit) or "",
    }


def opening_notes(plan: Plan, versions: dict[str, str]) -> list[str]:
    """Sentences about differences between the rehearsal and the job on SageMaker."""
    here = "torch {torch} on Python {python}, toolkit {toolkit}".format(**versions)
    image = "unknown versions"
    if plan.image:
        image = "torch {image_torch} on Python {image_python}".format(**versions)
        image += f", toolkit {versions['image_toolkit'] or 'unknown'}"
    notes = [f"runs {here}; the job's image has {image}", *plan.notes]
    if plan.batches:
        most = f"with Lightning's Trainer, one epoch of at most {plan.batches} batches"
        notes.append(f"{most}; -- --epochs N trains N whole epochs")
    return notes


def show(console: Console, name: str, plan: Plan, hosts: Sequence[Host], lines: Lines) -> None:
    """Print each line with its host; on a terminal, a last line shows the progress."""
    console.print(name, style="bold")
    started = time.monotonic()
    with console.status("", refresh_per_second=4) as status:
        for host, line in lines:
            ended = sum(other.exit_code is not None for other in hosts)
            seconds = time.monotonic() - started
            status.update(f"{seconds:.0f} s, {ended} of {counted(plan.hosts, 'host')} ended")
            if line:
                colour = HOST_COLOURS[host.index % len(HOST_COLOURS)]
                prefix = Text(f"host {host.number} ", colour)
                console.print(prefix.append_text(Text.from_ansi(line)))


def table(title: str, verdicts: Sequence[Check]) -> Table:
    """The checks as they are printed at the end."""
    columns = (Column("check", no_wrap=True), "verdict", Column("detail", overflow="fold"))
    rows = Table(*columns, title=title, title_justify="left", title_style="bold")
    for check in verdicts:
        verdict = Text(check.verdict, VERDICT_COLOURS[check.verdict])
        detail = f"{check.detail}: {check.hint}" if check.hint else check.detail
        rows.add_row(check.name, verdict, Text(detail))
    return rows
