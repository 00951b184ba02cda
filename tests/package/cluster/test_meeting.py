"""A job's start: ranks meet or are missed by name; SMDDP's stub keeps to its contract."""

import json
import os
import socket
import struct
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

import forked
from smlightning import rehearsal
from smlightning.cluster import rendezvous
from smlightning.cluster.location import LAUNCHERS
from smlightning.testing.environment import of_tests
from smlightning.testing.processes import free_port

SESSION = """
import sys, time
import dist
from smlightning import errors
started = time.monotonic()
try:
    with dist.session():
        pass
except errors.UserError as error:
    sys.exit(f"{error} after {time.monotonic() - started:.0f} s")
"""


def start(rank: int, port: int, seconds: int, log: Path) -> forked.Rank:
    """One of four ranks on two hosts, as Open MPI would start it."""
    environment = dict(
        of_tests(os.environ),
        OMPI_COMM_WORLD_RANK=str(rank),
        OMPI_COMM_WORLD_SIZE="4",
        OMPI_COMM_WORLD_LOCAL_RANK=str(rank % 2),
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
        SM_HOSTS=json.dumps(["algo-1", "algo-2"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DIST_MEET_SECONDS=str(seconds),
        CUDA_VISIBLE_DEVICES="",
    )
    return forked.start(SESSION, log / str(rank), environment)


def test_a_rank_that_does_not_come_is_named_in_time(tmp_path: Path) -> None:
    """All come; one of the second host or of the first does not. At once: they mostly wait."""
    jobs = {}
    for absent in (None, 3, 0):
        port, seconds = free_port(), 100 if absent is None else 5
        folder = tmp_path / str(absent)
        folder.mkdir()
        jobs[absent] = [start(rank, port, seconds, folder) for rank in range(4) if rank != absent]
    ended = {absent: forked.wait_for_all(ranks, 200) for absent, ranks in jobs.items()}
    statuses, said = ended[None]
    assert statuses == (0, 0, 0, 0), said
    table = said[0].splitlines()
    titles = "host node rank local rank device backend shared memory"
    assert table[0].split() == titles.split()
    assert len(table) == 6 and table[4].startswith("algo-2") and "launcher: mpirun" in table[5]
    for absent, host in ((3, "algo-2"), (0, "algo-1")):
        statuses, said = ended[absent]
        assert statuses == (1, 1, 1), said
        for text in said:
            assert f"rank {absent} on host {host} did not" in text and "within 5 s" in text, text
            assert "Traceback" not in text and int(text.split()[-2]) <= 9, text


def test_an_address_that_answers_once_is_not_waited_for_longer(tmp_path: Path) -> None:
    """TCPStore alone would wait 10 s by its timeout of 5, 70 s by one of 30: torch 2.13."""
    listener = socket.create_server(("127.0.0.1", 0))
    rank = start(1, listener.getsockname()[1], 5, tmp_path)
    for _ in range(2):  # whether it answers is asked first
        connection, _ = listener.accept()
    listener.close()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()  # with a reset, as of a process that is gone
    status, said = rank.wait(100)
    assert status == 1 and "rank 0 on host algo-1 did not come and answer at" in said, said
    assert int(said.split()[-2]) <= 17, said


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
@pytest.mark.parametrize("launcher", ["mpirun", "variables"])
def test_the_ranks_store_listens_at_the_main_address_only(launcher: str, tmp_path: Path) -> None:
    """Under torchrun the agent keeps it."""
    port, ranks = free_port(), []
    for rank in range(2):
        environment = dict(
            of_tests(os.environ),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            CUDA_VISIBLE_DEVICES="",
            RANK=str(rank),
            WORLD_SIZE="2",
        )
        place = LAUNCHERS["mpirun" if launcher == "mpirun" else "torchrun"]
        for name, value in zip(astuple(place), (rank, 2, rank, 2), strict=True):
            environment[name] = str(value)
        ranks.append(forked.start(LISTENERS, tmp_path / str(rank), environment))
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
    listener = rendezvous._listen(host, 0)
    assert (listener is not None) is is_bound
    if listener:
        assert listener.getsockname()[0] == address
        listener.close()


CONTRACT = """
import sys, torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
store = dist.HashStore()
def refused(call):
    try:
        call()
    except RuntimeError as error:
        assert "SMDDP does not support" in str(error), error
    else:
        sys.exit(f"{call} was let through")
one = dict(store=store, rank=0, world_size=1)
refused(lambda: dist.init_process_group("smddp", device_id=torch.device("cuda:0"), **one))
refused(lambda: dist.init_process_group("cpu:gloo,cuda:smddp", **one))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
refused(lambda: dist.new_group(backend="smddp"))
dist.destroy_process_group()
dist.init_process_group("smddp", store=store, rank=0, world_size=1)
x = torch.ones(2)
for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
    refused(lambda: dist.all_reduce(x, op=op))
refused(lambda: dist.new_group())
refused(lambda: dist.new_group(backend="gloo"))
refused(lambda: dist.barrier(device_ids=[0]))
refused(lambda: dist.all_gather_into_tensor(torch.empty(2), x))
refused(lambda: dist.reduce_scatter_tensor(torch.empty(2), x))
refused(lambda: dist.reduce(x, 0))
dist.all_reduce(x); dist.barrier(); dist.broadcast(x, 0); dist.all_gather([torch.empty(2)], x)
assert x.tolist() == [1, 1] and dist.get_backend() == "smddp"
dist.broadcast_object_list([None], 0)
dist.destroy_process_group()
"""


def test_the_stub_refuses_what_the_contract_does() -> None:
    path = Path(rehearsal.__file__).parent / "stubs"
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", CONTRACT], env=environment, check=True)


def test_the_stub_is_not_found_outside_a_rehearsal(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", "import smdistributed"], capture_output=True)
    assert found.returncode == 1


RESTARTED = """
import os, sys, time
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import dist
from smlightning.cluster import ending, session
ending.CAUSE_SECONDS = 3.0
def rank():
    with dist.session() as cluster:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if cluster.rank == 1:
                raise ValueError("the first attempt's")
            time.sleep(60)  # the agent ends it
        elif cluster.rank == 1:
            time.sleep(5)  # says nothing
        else:
            error = RuntimeError("gloo: Connection closed by peer")
            print("cause:", session.cause(error), flush=True)
config = LaunchConfig(1, 1, 2, rdzv_backend="static", rdzv_endpoint=f"127.0.0.1:{sys.argv[1]}",
                      rdzv_configs={"rank": 0}, run_id="none", max_restarts=1,
                      monitor_interval=0.1, start_method="fork")
elastic_launch(config, rank)()
"""


def test_a_restart_does_not_hear_of_the_attempt_before(tmp_path: Path) -> None:
    """torchrun's agent keeps the store from one attempt to the next. Its ranks are forked."""
    environment = dict(of_tests(os.environ), CUDA_VISIBLE_DEVICES="", DIST_MEET_SECONDS="60")
    agent = forked.start(RESTARTED, tmp_path / "log", environment, str(free_port()))
    status, said = agent.wait(200)
    assert (
        status == 0 and "cause: rank 1 on host localhost exited without an error message" in said
    ), said
