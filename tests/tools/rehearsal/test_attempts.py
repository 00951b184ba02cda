"""Attempts with small programs in place of the toolkit: output, time limits, signals."""

import io
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from small_rehearsal import script, small_plan, small_request, stranger

from smlightning_sagemaker.rehearsal import attempts, command, faults, processes, report
from smlightning_sagemaker.rehearsal.checks import PASSED, Check
from smlightning_sagemaker.rehearsal.hosts import Host, create_hosts
from smlightning_sagemaker.rehearsal.plan import LOSE_HOST, STOP_HOST, Fault, Plan

Play = Callable[[Plan, str], tuple[list[Host], list[tuple[int, str]]]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a program in place of the toolkit on every host: the hosts, and who printed what."""

    def run(plan: Plan, program: str) -> tuple[list[Host], list[tuple[int, str]]]:
        toolkit = script(tmp_path / "toolkit", program)
        monkeypatch.setattr(attempts.sys, "executable", toolkit)
        folder = tmp_path / "run"
        hosts = create_hosts(plan, folder)
        lines = attempts.run_hosts(plan, folder, hosts)
        return hosts, [(host.index, line) for host, line in lines if line]

    return run


def test_a_host_is_lost_only_once_a_checkpoint_is_complete(tmp_path: Path) -> None:
    hosts = create_hosts(small_plan(2, 1), tmp_path)
    (tmp_path / "evidence").mkdir(exist_ok=True)
    (tmp_path / "evidence" / "in-training-1").touch()
    checkpoints = hosts[0].base / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    file = io.BytesIO()
    torch.save(torch.zeros(1000), file)
    whole = file.getvalue()
    half = whole[:2000]
    written = [(".x.ckpt", whole), ("1.shard", whole), ("1.ckpt", b""), ("1.ckpt", half)]
    for name, content in [*written, ("1.ckpt", whole), ("2.ckpt", half), ("2.ckpt", b"others")]:
        (checkpoints / name).write_bytes(content)
        may = faults.may_interrupt(Fault(LOSE_HOST, 1), tmp_path, hosts)
        assert may == (content in (whole, b"others") and name in ("1.ckpt", "2.ckpt")), name
    for content in (half, whole):
        (checkpoints / "3.ckpt" / "sharded").mkdir(parents=True, exist_ok=True)
        (checkpoints / "3.ckpt" / "sharded" / "__0_0.pt").write_bytes(content)
        may = faults.may_interrupt(Fault(LOSE_HOST, 1), tmp_path, hosts)
        assert may == (content == whole), "a folder"
        assert faults.interrupt(Fault(LOSE_HOST, 1), tmp_path, hosts) == may


def test_the_requests_entry_point_sees_only_its_hosts_processes(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = small_request(1, "torch_distributed")
    shell = "mkdir -p processes/self; echo $NCCL_DEBUG; cd /proc/self; pwd"
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["bash", "-c", shell]
    request["Environment"] = {"NCCL_DEBUG": "INFO"}
    [host], lines = play(small_plan(1, 1, request=request), "exit 9")
    folder = (host.base / "processes/self").resolve()
    assert lines == [(0, "INFO"), (0, str(folder))] and host.exit_code == 0


def test_all_attempts_have_the_code_of_the_start(tmp_path: Path, monkeypatch) -> None:
    """It is edited while the first of three runs."""
    passed = [Check("ends-in-time", PASSED, "")]
    for judge in ("judge", "judge_restart", "judge_interruption"):
        monkeypatch.setattr(attempts.checks, judge, lambda *_: passed)
    monkeypatch.setattr(attempts.sys, "executable", script(tmp_path / "toolkit", "exit 0"))
    code = stranger(tmp_path / "code") / "train.py"
    code.write_text("before")
    ran: list[str] = []

    def show(name: str, plan: Plan, hosts: Sequence[Host], lines: attempts.Lines) -> None:
        code.write_text("after")
        ran.extend((host.base / "code/train.py").read_text() for host in hosts)
        for _ in lines:
            pass

    (tmp_path / "run").mkdir()
    plan = replace(small_plan(2, 1, source=code.parent), fault=Fault(STOP_HOST, 1))
    attempts.run_plan(plan, tmp_path / "run", show)
    assert ran == ["before"] * 6


def test_a_signal_while_processes_are_ended_comes_after_it(tmp_path: Path, monkeypatch) -> None:
    received: list[int] = []

    def of_run(_: Path) -> list[int]:
        assert not received or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        return []

    monkeypatch.setattr(processes, "of_run", of_run)
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        processes.end_all(tmp_path)
        assert received == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as it is after the first one
        processes.end_all(tmp_path)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN and len(received) == 1
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    """A script's shell has SIGINT ignored, too, for what runs in the background."""
    ignored = (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in processes.END_SIGNALS}
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        assert command.main(["--job", str(tmp_path / "missing.toml")]) == 2
        handlers = [signal.getsignal(number) for number in ignored]
        assert handlers == [command.interrupt, signal.SIG_IGN]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_each_line_of_a_log_is_shown_with_its_host(tmp_path: Path) -> None:
    plan, screen = small_plan(1, 1), Console(file=io.StringIO(), width=200)
    hosts = create_hosts(plan, tmp_path)
    lines = ["Traceback (most recent call last):", '  File "train.py", line 1, in f']
    report.show(screen, "a run", plan, hosts, ((hosts[0], line) for line in lines))
    assert all(f"host 1 {line}" in screen.file.getvalue() for line in lines)


def test_a_noisy_host_ends_at_the_time_limit(play: Play, tmp_path: Path) -> None:
    plan = small_plan(1, 1, source=stranger(tmp_path / "code"), timeout=5)
    [host], lines = play(plan, "while sleep 0.05; do echo said; done")
    assert lines[0] == (0, "said") and host.overdue


def test_the_forwarding_entry_stops_the_ranks_of_one_host(play: Play, tmp_path: Path) -> None:
    """On hosts that share /proc: not the launcher, and no other host."""
    trap = "trap 'echo rank told; exit 3' TERM"
    mark = "touch $REHEARSAL_EVIDENCE/in-training-$REHEARSAL_HOST"
    script(tmp_path / "train.py", f"{trap}; {mark}; while sleep 0.1; do :; done")
    launcher = f"trap 'echo launcher told' TERM; sh {tmp_path}/train.py & wait $!; wait $!"
    script(tmp_path / "torchrun", launcher)
    request = small_request(2, "torch_distributed", forward_stop=True)
    plan = small_plan(2, 1, source=stranger(tmp_path / "code"), request=request)
    plan = replace(plan, fault=Fault(STOP_HOST, 1), grace=8)
    hosts, lines = play(plan, f"sh {tmp_path}/torchrun train.py")
    assert (1, "rank told") in lines and hosts[1].exit_code == 3 and not hosts[1].overdue
    assert (1, "launcher told") not in lines
    assert hosts[0].overdue, "the other host gets no signal before its end"
