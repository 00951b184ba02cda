"""Runs the job: once, or interrupted, undisturbed and restarted."""

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.rehearsal import checks, evidence, faults, mpirun, processes
from smlightning_sagemaker.rehearsal.checks import Check
from smlightning_sagemaker.rehearsal.environment import container_environment
from smlightning_sagemaker.rehearsal.evidence import Attempt
from smlightning_sagemaker.rehearsal.hosts import (
    NOT_COPIED,
    Host,
    create_hosts,
    with_copied_channels,
)
from smlightning_sagemaker.rehearsal.plan import Plan

TOOLKIT = "sagemaker_training.cli.train"  # the console script `train` of the container
INTERVAL = 0.2  # seconds between two looks at the hosts
TOOLKITS_REMARK = "sagemaker-training-toolkit INFO"
LISTING_BEGINS, LISTING_ENDS = "Training Env:", "Invoking script with"  # of all variables

Lines = Generator[tuple[Host, str], None, None]
# Prints an attempt's lines while they come: its name, the plan, the hosts, the lines.
Show = Callable[[str, Plan, Sequence[Host], Lines], None]


def run_plan(plan: Plan, folder: Path, show: Show) -> tuple[Attempt, list[Check]]:
    """Run the job as planned; the last attempt, and the verdicts in the order of the report.

    All hosts of all attempts get the code as it is now: attempts take minutes, and files change.
    """
    plan = replace(plan, source=source_archive.copy(plan.source, folder / "source", NOT_COPIED))
    if plan.fault and plan.fault.interrupts:
        return run_interrupted(plan, folder, show)
    plan = with_copied_channels(plan, folder / "channels")
    attempt = run_attempt(plan, folder / "job", show)
    return attempt, checks.judge(plan, attempt)


def run_interrupted(plan: Plan, folder: Path, show: Show) -> tuple[Attempt, list[Check]]:
    """Run the job with an interruption, then undisturbed, then restarted from its checkpoints."""
    whole = replace(plan, fault=None)
    plan = with_copied_channels(plan, folder / "channels")
    interrupted = run_attempt(plan, folder / "interrupted", show)
    verdicts = checks.judge_interruption(plan, interrupted)
    if verdicts[0].verdict != checks.PASSED:
        return replace(interrupted, ranks=()), verdicts
    plan = with_copied_channels(whole, folder / "channels")
    undisturbed = run_attempt(plan, folder / "undisturbed", show)
    kept = faults.upload_checkpoints(interrupted.hosts, folder / "s3")
    plan = with_copied_channels(whole, folder / "channels")
    restarted = run_attempt(plan, folder / "restarted", show, kept)
    verdicts += checks.judge(plan, restarted)
    verdicts += checks.judge_restart(restarted, undisturbed, interrupted)
    return restarted, verdicts


def run_attempt(plan: Plan, folder: Path, show: Show, restored: Path | None = None) -> Attempt:
    """Run the job once in a folder, and read what it left."""
    hosts = create_hosts(plan, folder, restored)
    with contextlib.closing(run_hosts(plan, folder, hosts)) as lines:
        show(folder.name, plan, hosts, lines)
    ranks = evidence.read_ranks(folder)
    return Attempt(folder, hosts, ranks, evidence.read_violations(folder))


def run_hosts(plan: Plan, folder: Path, hosts: Sequence[Host]) -> Lines:
    """Start every host and yield its lines as they come, and an empty line each 0.2 s of silence.

    It ends when all hosts have ended. Closing it ends every process of the rehearsal.
    """
    lines: queue.Queue[tuple[Host, str]] = queue.Queue()
    readers = []
    started = looked = time.time()
    try:
        for host in hosts:
            start_host(plan, folder, host)
            reader = threading.Thread(target=read_output, args=(host, lines), daemon=True)
            reader.start()
            readers.append(reader)
        running = True
        while running:
            try:
                yield lines.get(timeout=INTERVAL)
            except queue.Empty:
                yield hosts[0], ""
            if time.time() > looked + INTERVAL:  # also while a host never falls silent
                looked = time.time()
                running = look_at_hosts(plan, folder, hosts, started)
        processes.end_all(folder)  # a process that is left would keep the readers waiting
        for reader in readers:
            reader.join(5)
        while not lines.empty():
            yield lines.get()
    finally:
        processes.end_all(folder)


def start_host(plan: Plan, folder: Path, host: Host) -> None:
    """Start the container's entry point, the request's or the image's, as the host's process."""
    host.command = entry_point(plan)
    command = host.command
    if plan.real_mpirun:
        command = mpirun.with_opt_ml(folder, host.base, command)
    host.process = subprocess.Popen(
        command,
        cwd=host.base,
        env=container_environment(plan, folder, host),
        start_new_session=True,  # Ctrl-C reaches the rehearsal, which then ends them in order
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def entry_point(plan: Plan) -> list[str]:
    """The command of process 1. Hosts that share /proc look at their own part of it (faults.py)."""
    if not plan.entrypoint:
        return [sys.executable, "-m", TOOLKIT]
    if plan.real_mpirun:
        return plan.entrypoint
    return [part.replace("/proc/", "processes/") for part in plan.entrypoint]


def look_at_hosts(plan: Plan, folder: Path, hosts: Sequence[Host], started: float) -> bool:
    """Note which hosts have ended, carry out an interruption; False when all have ended."""
    for host in hosts:
        if host.exit_code is None and host.process and host.process.poll() is not None:
            host.exit_code = host.process.returncode
            host.ended_at = time.time()
    if all(host.exit_code is not None for host in hosts):
        return False
    if plan.fault and plan.fault.interrupts:
        target = hosts[plan.fault.target]
        is_running = target.exit_code is None and not target.interrupted_at
        due = is_running and faults.may_interrupt(plan.fault, folder, hosts)
        if due and faults.interrupt(plan.fault, folder, hosts):
            target.interrupted_at = time.time()
    if time.time() > time_limit(plan, hosts, started):
        for host in hosts:
            host.overdue = host.overdue or host.exit_code is None
        processes.end_all(folder)
    return True


def time_limit(plan: Plan, hosts: Sequence[Host], started: float) -> float:
    """When running hosts are ended: sooner once one has failed or was interrupted."""
    failed = [host.ended_at for host in hosts if host.exit_code]
    failed += [host.interrupted_at for host in hosts if host.interrupted_at]
    return min([started + plan.timeout, *(at + plan.grace for at in failed)])


def read_output(host: Host, lines: "queue.Queue[tuple[Host, str]]") -> None:
    """Write all output to the host's log.txt; pass on all but the toolkit's own remarks."""
    assert host.process and host.process.stdout
    listing = False
    with (host.base / "log.txt").open("w") as log:
        for line in host.process.stdout:
            log.write(line)
            if line.startswith(LISTING_BEGINS):
                listing = True
            if line.startswith(LISTING_ENDS):
                listing = False
            if not listing and line.strip() and TOOLKITS_REMARK not in line:
                lines.put((host, line.rstrip()))
