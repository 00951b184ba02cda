"""A job's ranks connect, exchange values, and end together, whatever ends one of them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
from smlightning.cluster import ending, exchange, session
from smlightning.cluster.location import Cluster
from smlightning.cluster.store import RankStore
from smlightning_sagemaker.testing.environment import of_tests
from smlightning_sagemaker.testing.processes import free_port, torchrun_variables

SESSION = """
import os, sys, time
import dist
import torch
if os.environ["RANK"] == os.environ.get("ANOTHER_TORCH"):
    torch.__version__ = "1.0"
from smlightning import errors
from smlightning.cluster import ending, session
ending.CAUSE_SECONDS = 3.0
if os.environ["RANK"] == os.environ.get("SILENT"):
    session._rank_info = lambda cluster: time.sleep(1000)
started = time.monotonic()
try:
    with dist.session():
        pass
except errors.UserError as error:
    sys.exit(f"{error} after {time.monotonic() - started:.0f} s")
"""
LIMIT = 8  # seconds in which the ranks have to connect


def test_torch_for_cpus_on_a_host_with_a_gpu_is_a_warning(tmp_path: Path, monkeypatch) -> None:
    assert not session.unused_gpu(tmp_path / "nvidia0")
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("torch.version.cuda", None)
    assert "make setup TORCH=cuda" in session.unused_gpu(tmp_path / "nvidia0")
    monkeypatch.setattr("torch.version.cuda", "13.3")
    assert not session.unused_gpu(tmp_path / "nvidia0")


def test_all_ranks_connect_and_one_that_differs_or_is_missing_ends_all(tmp_path: Path) -> None:
    """All cases at once: most of their time is waiting."""
    cases: dict[str, dict[str, Any]] = {
        "all": {"DIST_CONNECT_SECONDS": "100"},
        "another torch": {"DIST_CONNECT_SECONDS": "100", "ANOTHER_TORCH": "2"},
        "wrong limit": {"DIST_CONNECT_SECONDS": "soon"},
        "without rank 3": {"DIST_CONNECT_SECONDS": str(LIMIT), "absent": 3},
        "without rank 0": {"DIST_CONNECT_SECONDS": str(LIMIT), "absent": 0},
        "silent rank 0": {"DIST_CONNECT_SECONDS": str(LIMIT), "SILENT": "0"},
    }
    jobs = {
        name: forked.start_ranks(SESSION, tmp_path / name, 4, hosts=2, **more)
        for name, more in cases.items()
    }
    silent = jobs["silent rank 0"].pop(0)
    try:
        ended = {name: forked.wait_for_all(ranks, 100) for name, ranks in jobs.items()}
    finally:
        silent.process.kill()
    statuses, said = ended.pop("all")
    assert statuses == (0, 0, 0, 0), said
    table = said[0].splitlines()
    titles = "host node rank local rank device backend shared memory"
    assert table[0].split() == titles.split()
    assert len(table) == 6 and table[4].startswith("algo-2") and "launcher: torchrun" in table[5]
    words = {
        "another torch": "torch is 1.0 on rank 2 on host algo-2, and",
        "wrong limit": "DIST_CONNECT_SECONDS is 'soon'",
        "without rank 3": f"rank 3 on host algo-2 did not connect within {LIMIT} s",
        "without rank 0": "rank 0 on host algo-1 did not connect at 127.0.0.1",
        "silent rank 0": "rank 0 on host algo-1 did not connect within",
    }
    for name, (statuses, said) in ended.items():
        assert set(statuses) == {1}, said
        for text in said:
            assert words[name] in text and "Traceback" not in text, (name, text)
            in_time = int(text.split()[-2]) <= 5 * LIMIT
            assert in_time or "did not connect" not in text, (name, text)


LISTENERS = """
import json, os, sys, time
import torch.distributed
import dist
with dist.session() as cluster:
    torch.distributed.init_process_group(
        "gloo", rank=cluster.rank, world_size=cluster.world_size  # as Lightning does
    )
    if cluster.rank == 0:
        lines = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}")]
        port = f"{int(os.environ['MASTER_PORT']):04X}"
        places = [words[1].rpartition(":") for words in lines if words[3] == "0A"]  # LISTEN
        print("listens:", json.dumps([address for address, _, at in places if at == port]))
    torch.distributed.barrier()
"""
LOOPBACK = "0100007F"  # 127.0.0.1, as the kernel of a little-endian machine writes it


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net")
def test_the_store_listens_only_at_the_main_address(tmp_path: Path) -> None:
    """Under torchrun the agent keeps the store."""
    ranks = forked.start_ranks(LISTENERS, tmp_path, 2)
    statuses, said = forked.wait_for_all(ranks, 200)
    assert statuses == (0, 0), said
    (line,) = [line for line in said[0].splitlines() if line.startswith("listens: ")]
    assert json.loads(line.removeprefix("listens: ")) == [LOOPBACK]


@pytest.mark.parametrize(
    ("host", "address", "is_bound"),
    [
        ("algo-1", "127.0.0.1", False),  # Debian's name for itself: other hosts come by another
        ("service", "192.0.2.1", False),  # not an address of this machine
        ("localhost", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.2", True),  # a host of a rehearsal
    ],
)
def test_the_store_binds_to_an_address_of_this_machine(
    host: str, address: str, is_bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listener = session._listen(host, 0)
    assert (listener is not None) is is_bound
    if listener:
        assert listener.getsockname()[0] == address
        listener.close()


def test_rank_0_may_open_as_many_files_as_its_system_lets_it() -> None:
    """The store has some connections of each rank."""
    resource = pytest.importorskip("resource")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    session._allow_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)


RESTARTED = """
import os, sys, time
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import dist
from smlightning.cluster import ending
ending.CAUSE_SECONDS = 1.0
def rank():
    with dist.session():
        pass
    with dist.session() as cluster:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if cluster.rank == 1:
                raise ValueError("the first attempt's")
            time.sleep(60)  # the agent ends it
        outcomes = ending.outcomes(ending.ranks().store).values()
        causes = [outcome for outcome in outcomes if outcome.kind != "done"]
        print("earlier causes:", causes, flush=True)
config = LaunchConfig(1, 1, 2, rdzv_backend="static", rdzv_endpoint=f"127.0.0.1:{sys.argv[1]}",
                      rdzv_configs={"rank": 0}, run_id="none", max_restarts=1,
                      monitor_interval=0.1, start_method="fork")
elastic_launch(config, rank)()
"""


def test_a_session_ignores_the_attempt_and_the_session_before(tmp_path: Path) -> None:
    """torchrun's agent keeps the store meanwhile. Its ranks are forked."""
    environment = dict(of_tests(os.environ), CUDA_VISIBLE_DEVICES="", DIST_CONNECT_SECONDS="60")
    agent = forked.start(RESTARTED, tmp_path / "log", environment, str(free_port()))
    status, said = agent.wait(200)
    assert status == 0 and said.count("earlier causes: []") == 2, said


ENDING = """
import os, signal, sys, threading, time
import dist
from smlightning import errors
from smlightning.cluster import ending, session, signals
from smlightning.cluster.store import RankStore
session.ARRIVAL_SECONDS = ending.CAUSE_SECONDS = 5.0
signals.install()
def later(number):
    threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
def hide():  # as fsspec's exists does
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except:
        pass
    raise FileNotFoundError("not what ended it")
def ask_slowly():
    has = RankStore.has
    RankStore.has = lambda *asked: (has(*asked), time.sleep(0.5))[0]
try:
    with dist.session() as cluster:
        if cluster.rank == int(sys.argv[1]):
            %s
        if cluster.rank == 0:
            time.sleep(4)
            print(f"saved at {time.time()}")
except errors.UserError as error:
    sys.exit(f"error: {error}")
print(f"ended at {time.time()}")
sys.exit(signals.complete())
"""


CASES = [  # a rank, its code, exit statuses, words in the log of another rank
    (0, "pass", [0, 0], "ended at"),
    (1, "ask_slowly()", [0, 0], "saved at"),  # it is done, and rank 0 leaves with the store
    (
        0,
        "raise ValueError('no room')",
        [1, 1],
        "ended because rank 0 on host localhost failed: ValueError: no room",
    ),
    (0, "later(signal.SIGTERM)", [143, 143], ""),
    (
        0,
        "later(signal.SIGKILL)",
        [-9, 1],
        "rank 0 on host localhost exited without an error message",
    ),
    (1, "later(signal.SIGTERM)", [143, 143], ""),  # it waits for rank 0 by then
    (0, "hide()", [143, 143], ""),
    (1, "hide()", [143, 143], ""),
    (
        1,
        "later(signal.SIGKILL)",
        [1, -9, 0],
        "ended because rank 1 on host localhost exited without an error message",
    ),
]


def test_ranks_end_together_and_know_the_cause(tmp_path: Path) -> None:
    """All cases at once: most of their time is waiting."""
    jobs = [
        forked.start_ranks(ENDING % what, tmp_path / str(number), len(statuses), str(rank))
        for number, (rank, what, statuses, _) in enumerate(CASES)
    ]
    for job, (rank, what, statuses, words) in zip(jobs, CASES, strict=True):
        found, said = forked.wait_for_all(job, 120)
        assert list(found) == statuses, (rank, what, said)
        other = said[1 if rank == 0 else 0]
        assert words in other and "Traceback" not in other, (rank, what, said)
        assert statuses != [143, 143] or "Error" not in said[0] + said[1], (rank, what, said)
        if statuses == [0, 0]:
            saved, ended = (
                float(text.split(f"{word} at ")[1].split()[0])
                for word, text in zip(("saved", "ended"), said, strict=True)
            )
            assert ended > saved


BUSY = """
import os, signal, time
import dist
from smlightning.cluster import ending, exchange, signals, watch
ending.STOP_SECONDS, watch.GRACE = 10.0, 20.0  # a busy machine's processes may pause
signals.install()
with dist.session() as cluster:
    if cluster.rank == 0:
        time.sleep({seconds})
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(6)  # a model is read
    exchange.from_rank_0("model", lambda: "read")
"""


def test_a_busy_rank_knows_that_rank_0_was_stopped(tmp_path: Path) -> None:
    """Rank 0 leaves with the store, at several moments between two looks of the others at it."""
    moments = (0.2, 0.4, 0.6, 0.8)
    jobs = [
        forked.start_ranks(BUSY.format(seconds=each), tmp_path / str(each), 2) for each in moments
    ]
    for job in jobs:
        statuses, said = forked.wait_for_all(job, 100)
        assert statuses == (143, 143), said


SESSIONS = """
import dist
for number in range(3):
    with dist.session() as cluster:
        print("session", number, flush=True)
"""


def test_a_process_has_several_sessions(tmp_path: Path) -> None:
    """As for cross-validation; rank 0 keeps the store, without torchrun."""
    statuses, said = forked.wait_for_all(forked.start_ranks(SESSIONS, tmp_path, 2), 100)
    assert statuses == (0, 0) and all("session 2" in text for text in said), said


RANK_0_ENDS = """
import os, sys, time
import dist
from smlightning import errors
from smlightning.cluster import session
for number in range(2):
    try:
        with dist.session() as cluster:
            pass
    except errors.UserError as error:
        sys.exit(f"error: {error}")
    if cluster.rank == 0:
        sys.exit(3)
    while session._answers("127.0.0.1", cluster.main_port):
        time.sleep(0.1)
    os.environ["DIST_CONNECT_SECONDS"] = "1"
"""


def test_a_later_session_without_rank_0_names_it(tmp_path: Path) -> None:
    statuses, said = forked.wait_for_all(forked.start_ranks(RANK_0_ENDS, tmp_path, 2), 100)
    assert statuses == (3, 1) and "rank 0 on host localhost did not connect" in said[1], said


JOB = """
import sys, time
from pathlib import Path
import dist
with dist.session():
    print("connected", flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.1)
"""


def test_a_second_job_at_the_same_port_does_not_disturb_the_first(tmp_path: Path) -> None:
    at = {"MASTER_PORT": str(free_port())}
    end = tmp_path / "end"
    first = forked.start_ranks(JOB, tmp_path / "first", 2, str(end), **at)
    while not all(rank.log.exists() and "connected" in rank.log.read_text() for rank in first):
        assert all(rank.process.is_alive() for rank in first)
        time.sleep(0.1)
    second = forked.start_ranks(JOB, tmp_path / "second", 3, str(end), **at)
    statuses, said = forked.wait_for_all(second, 100)
    assert statuses == (1, 1, 1) and "end the other program that uses this port" in said[0], said
    assert all("they are another job's" in text for text in said[1:]), said
    end.touch()
    statuses, said = forked.wait_for_all(first, 100)
    assert statuses == (0, 0), said


LOSES_RANK_0 = """
import os, sys, time
from smlightning import entry
from smlightning.training.options import TrainerOptions
def train(options):
    import dist
    with dist.session() as cluster:
        if cluster.rank == 0:
            os.kill(os.getpid(), 9)
        time.sleep(60)
sys.exit(entry.main(train, TrainerOptions, None))
"""


@pytest.mark.long
def test_a_rank_that_loses_rank_0_prints_one_sentence(tmp_path: Path) -> None:
    """Rank 0 keeps the store. Real processes: torch reads the level of its log once."""
    port, ranks = free_port(), []
    for rank in range(2):
        variables = {**of_tests(os.environ), **torchrun_variables(rank, 2, port)}
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
        with (tmp_path / f"log{rank}").open("w") as log:
            program = [sys.executable, "-W", "ignore", "-c", LOSES_RANK_0]
            ranks.append(subprocess.Popen(program, env=variables, stdout=log, stderr=log))
    statuses = [rank.wait(200) for rank in ranks]
    said = (tmp_path / "log1").read_text()
    assert statuses == [-9, 1], said
    (line,) = said.splitlines()
    assert "because rank 0 on host localhost exited without an error message" in line


TWO = Cluster(
    hosts=("localhost",),
    node_rank=0,
    rank=0,
    local_rank=0,
    local_world_size=2,
    world_size=2,
    launcher="torchrun",
    backend="gloo",
    device="cpu",
    main_address="127.0.0.1",
    main_port=7777,
)


class Late:
    """The ranks' store: after one of rank 0's questions rank 1 ends, perhaps with its value set."""

    def __init__(self, question: int, is_set: bool) -> None:
        self.ranks = RankStore(torch.distributed.HashStore())
        self.question, self.is_set, self.asked = question, is_set, 0
        self.get_each, self.set = self.ranks.get_each, self.ranks.set

    def has(self, *keys: str) -> bool:
        answer = self.ranks.has(*keys)
        self.asked += 1
        if self.asked == self.question:
            if self.is_set:
                self.set("key/1", "b")
            self.set(ending.OUTCOMES, {})
        return answer


@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize("question", range(1, 9))
def test_a_rank_may_set_its_value_and_end_while_another_waits(question: int, is_set: bool) -> None:
    store: Any = Late(question, is_set)
    store.set("key/0", "a")
    if is_set:
        assert exchange.wait_for_ranks(store, "key", range(2), TWO) == ["a", "b"]
    else:
        with pytest.raises(torch.distributed.DistError, match="before it set key"):
            exchange.wait_for_ranks(store, "key", range(2), TWO)
