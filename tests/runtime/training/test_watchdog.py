"""Heartbeats tell a hang from a pause, a first batch and a slow step, and show which rank hangs."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch.distributed

from smlightning.cluster import session
from smlightning.cluster.location import Cluster
from smlightning.cluster.session import RankStore
from smlightning.training import watchdog
from smlightning.training.hangs import Heard, Heartbeat, find_hang
from smlightning.training.watchdog import HangWatchdog, Progress, pause_watchdog

TWO = Cluster(
    hosts=("algo-1", "algo-2"),
    node_rank=0,
    rank=0,
    local_rank=0,
    local_world_size=1,
    world_size=2,
    launcher="torchrun",
    backend="gloo",
    device="cpu",
    main_address="algo-1",
    main_port=7777,
)


@dataclass
class Clock:
    now: float = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(watchdog, "_pause", watchdog._Pause())
    return clock


def test_time_at_rest_does_not_count(clock: Clock) -> None:
    progress = Progress(at=100.0, is_watched=True, is_warm=True)
    clock.now = 110.0
    assert progress.idle() == 10
    with pause_watchdog():
        clock.now = 190.0
        assert progress.idle() == pytest.approx(80 / watchdog.PAUSE_FACTOR), "a disk may be dead"
    clock.now = 195.0
    assert progress.idle() == 5
    progress.is_watched = False
    assert progress.idle() == 0


def test_first_batches_may_take_longer(clock: Clock) -> None:
    progress = Progress(at=100.0, is_watched=True)
    clock.now = 150.0
    assert progress.idle() == 50 / watchdog.WARM_UP_FACTOR
    progress.enter("train", warm=True)
    assert progress.idle() == 50
    progress.enter("validation")
    assert not progress.is_warm
    progress.enter("train")
    assert progress.is_warm


def test_a_step_may_take_three_times_as_long_as_the_slowest_before_it(clock: Clock) -> None:
    """A hang is found in bounded time all the same; the first batch of all tells nothing."""
    progress = Progress(timeout=60.0, at=100.0, is_watched=True, is_warm=True)
    verdict = watchdog.VERDICT_FRACTION * progress.timeout
    clock.now = 400.0
    progress.mark("the first batch, which loads and compiles")
    clock.now = 440.0
    assert progress.idle() > verdict, "or nothing is a hang"
    progress.has_trained = True
    progress.mark("the second")
    clock.now = 440.0 + 119
    assert progress.idle() < verdict
    clock.now = 440.0 + 121
    assert progress.idle() > verdict
    with pause_watchdog():
        clock.now += 1000
    clock.now += 10
    progress.mark("after a pause, which does not count")
    assert progress.slowest == 40
    for _ in range(9):
        clock.now += 300
        progress.mark("very slow")
    clock.now += verdict * watchdog.WARM_UP_FACTOR + 1
    assert progress.idle() > verdict


def heard(marks: int, idle: float, at: float = 100.0) -> Heard:
    return Heard(Heartbeat(1, marks, idle, f"step {marks}", 3 * idle), at)


@pytest.mark.parametrize(
    "latest, named",
    [
        ({0: heard(7, 20), 1: heard(5, 20)}, ["rank 1 on host algo-2", "60 s", "step 5", "step 7"]),
        ({0: heard(4, 20), 1: heard(5, 20)}, ["rank 0 on host algo-1", "step 4", "step 5"]),
        ({0: heard(5, 0), 1: heard(4, 0, at=80)}, ["rank 1 on host algo-2", "20 s"]),
        ({0: heard(5, 20), 1: heard(5, 20)}, ["all"]),
        ({0: heard(5, 20)}, ["rank 0 on host algo-1"]),
        ({0: heard(5, 9), 1: heard(5, 9)}, None),
        ({0: heard(5, 0, at=91), 1: heard(4, 0)}, None),
        ({}, None),
    ],
)
def test_the_verdict_has_the_rank_that_the_others_wait_for(
    latest: dict[int, Heard], named: list[str] | None
) -> None:
    verdict = find_hang(latest, now=100.0, limit=10.0, cluster=TWO)
    if named is None:
        assert verdict is None
        return
    assert verdict and verdict.kind == "failed" and verdict.cure
    assert all(word in verdict.problem for word in named), verdict
    first = verdict.problem.split(",")[0]
    assert first.startswith(named[0]) or named == ["all"]


def test_rank_1_judges_if_rank_0_is_silent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that it reads rank 0's heartbeat only."""
    three = replace(TWO, hosts=("algo-1", "algo-2", "algo-3"), rank=1, world_size=3)
    monkeypatch.setattr(session, "current_cluster", lambda: three)
    monkeypatch.setattr(watchdog.time, "sleep", lambda _: None)
    verdicts: list[Any] = []
    monkeypatch.setattr(HangWatchdog, "_exit", lambda self, verdict: verdicts.append(verdict))
    rank_1, store = HangWatchdog(60.0), RankStore(torch.distributed.HashStore())
    for rank in range(3):
        store.set(f"heartbeat/{rank}", asdict(Heartbeat(1, 5, 0.0, "step 5", 0.0)))
    latest: dict[int, Heard] = {}
    rank_1._judge(store, latest)
    assert latest.keys() == {0} and not verdicts
    clock.now += 60 * watchdog.VERDICT_FRACTION + 1
    for rank in (1, 2):
        store.set(f"heartbeat/{rank}", asdict(Heartbeat(2, 5, 0.0, "step 5", 0.0)))
    rank_1._judge(store, latest)
    assert latest.keys() == {0, 1, 2} and not verdicts, "rank 0 judges first, if it can"
    clock.now += 4 * rank_1.interval
    for rank in (1, 2):
        store.set(f"heartbeat/{rank}", asdict(Heartbeat(3, 5, 0.0, "step 5", 0.0)))
    rank_1._judge(store, latest)
    assert verdicts[0].problem.startswith("rank 0 on host algo-1 has been silent for 45 s")
    assert store.get(watchdog.HANG_KEY) == asdict(verdicts[0])
