"""The cause of a job's end, from the ends of its ranks; the failure file; the exit status."""

import errno
import io
import json
import math
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from smlightning.cluster import ending
from smlightning.cluster.ending import RankOutcome
from smlightning.cluster.location import Cluster
from smlightning.cluster.store import Ranks, RankStore
from smlightning.errors import UserError

THREE = Cluster(
    hosts=("a", "b", "c"),
    node_rank=1,
    rank=1,
    local_rank=0,
    local_world_size=1,
    world_size=3,
    launcher="torchrun",
    backend="gloo",
    device="cpu",
    main_address="a",
    main_port=7777,
)
LOST = RankOutcome(1, "lost", "rank 1 on host b failed: RuntimeError: gloo")
FAILED = RankOutcome(0, "failed", "rank 0 on host a failed: ValueError: 7")
STOPPED = RankOutcome(2, "stopped", "rank 2 on host c was stopped")
HUNG = RankOutcome(0, "hung", "no progress for 9 s", "compare", "step 4, data.py:7 f")


@pytest.mark.parametrize(
    ("found", "silent", "kind", "words"),
    [
        ([LOST, FAILED], [2], "failed", "rank 0 on host a failed: ValueError: 7"),
        ([STOPPED, FAILED, LOST], [], "stopped", "rank 2 on host c was stopped"),
        ([FAILED, STOPPED, LOST], [], "failed", "rank 0 on host a failed: ValueError: 7"),
        ([LOST], [0, 2], "failed", "rank 0 on host a, rank 2 on host c exited without an error"),
        ([LOST, RankOutcome(0, "done")], [], "lost", "rank 1 on host b failed: RuntimeError: gloo"),
        (
            [HUNG, RankOutcome(1, "hung", seen="step 5, x.py:1 g")],
            [2],
            "hung",
            "no progress for 9 s: rank 2 on host c does not answer, rank 0 on host a was in step "
            "4, data.py:7 f, rank 1 on host b was in step 5, x.py:1 g",
        ),
    ],
)
def test_the_first_cause_wins_then_ranks_that_said_nothing(
    found: list[RankOutcome], silent: list[int], kind: str, words: str
) -> None:
    cause = ending._cause(LOST, THREE, {outcome.rank: outcome for outcome in found}, silent)
    assert cause.kind == kind and cause.problem.startswith(words), cause


class Gone:
    """A store that rank 0 takes with it."""

    text = b""
    is_gone = False

    def check(self, keys: list[str]) -> bool:
        if self.is_gone:
            raise RuntimeError("Connection reset by peer")
        return True

    def get(self, key: str) -> bytes:
        return self.text

    def append(self, key: str, text: str) -> None:
        self.check([key])


@pytest.mark.parametrize(
    ("read", "kind", "words"),
    [
        ([], ending.ClusterError, "rank 0 on host a exited without an error"),
        ([FAILED], ending.ClusterError, "rank 0 on host a failed: ValueError: 7"),
        ([RankOutcome(0, "lost"), RankOutcome(2, "failed", "7")], ending.ClusterError, "because 7"),
        ([RankOutcome(0, "lost")], ending.ClusterError, "rank 2 on host c exited without"),
        ([RankOutcome(each, "done") for each in (0, 2)], ending.ClusterError, "rank 0 on host a"),
        ([STOPPED, RankOutcome(0, "lost")], ending.Stopped, "143"),
    ],
)
def test_what_was_read_counts_once_the_store_is_gone(
    read: list[RankOutcome], kind: type, words: str, failure: Path
) -> None:
    store = Gone()
    store.text = "".join(f"{json.dumps(asdict(each))}\n" for each in read).encode()
    ending.enter(Ranks(THREE, RankStore(store)))
    ending.outcomes(RankStore(store))  # as the thread of watch.py does
    store.is_gone = True
    error = ending.end(RuntimeError("gloo: Connection closed by peer"))
    assert type(error) is kind and words in str(error)
    assert failure.exists() == (kind is not ending.Stopped)


@pytest.fixture
def failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setattr(ending, "_state", ending._State(ranks=Ranks(THREE)))
    monkeypatch.setattr(ending.signal, "signal", lambda *_: None)
    return tmp_path / "failure"


def test_the_failure_file_has_rank_host_line_and_cause_and_the_first_one_stays(
    failure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward() -> None:
        raise KeyError("x")

    for raising in (forward, lambda: 1 / 0):
        with pytest.raises((KeyError, ZeroDivisionError)) as caught:
            raising()
        assert ending.end(caught.value) is caught.value
    text = failure.read_text()
    assert text.startswith("rank 1 on host b failed: test_ending.py:")
    assert text.endswith("forward: KeyError: 'x'")
    failure.unlink()
    monkeypatch.setenv("SM_OUTPUT_DIR", str(failure / "missing"))
    ending.end(KeyError("a folder that is missing is no error of its own"))
    monkeypatch.delenv("SM_OUTPUT_DIR")
    ending.end(KeyError("outside SageMaker nothing is written"))
    assert not failure.exists()


def test_a_full_disk_hides_no_cause(failure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    error = UserError("no data", "bring some")
    assert ending.end(error) is error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("no data", "bring some"), "error: no data; bring some\n"),
        (SystemExit(0), "error: sys.exit(0) ended the run before it was complete"),
        (KeyError("x"), "error: rank 1 on host b failed: test_ending.py:"),
    ],
)
def test_a_mistake_is_a_sentence_and_other_errors_keep_their_stack_trace(
    error: BaseException, said: str, failure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece each, so that those of a host's ranks do not mix."""
    pieces: list[str] = []

    class Pieces(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    def job() -> None:
        raise error

    monkeypatch.setattr("sys.stderr", Pieces())
    assert ending.run(job) == 1
    (printed,) = filter(None, pieces)
    assert printed.startswith(said) and printed.endswith("\n") and failure.exists()
    assert ("Traceback" in printed) == isinstance(error, KeyError)


def test_an_error_that_a_stop_led_to_ends_as_the_stop(failure: Path) -> None:
    stopped = ending.Stopped()
    assert ending.stopped_at() < math.inf and stopped.code == ending.STOPPED
    assert isinstance(ending.end(FileNotFoundError("it hides the stop")), ending.Stopped)
    assert ending.report(ImportError("half imported"), 1) == ending.STOPPED
    assert not failure.exists()
