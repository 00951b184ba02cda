"""The start of a job: ranks meet or are missed by name. And the SMDDP stub refuses what SMDDP's contract does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from conftest import Project, free_port

SESSION = """
import sys, time
import dist
from runtime import report
started = time.monotonic()
try:
    with dist.session():
        pass
except report.UserError as error:
    sys.exit(f"{error} after {time.monotonic() - started:.0f} s")
"""


def start(project: Project, rank: int, port: int, seconds: int, log: Path) -> forked.Rank:
    """One of four ranks on two hosts, as Open MPI would start it."""
    env = clean()
    numbers = {"RANK": rank, "SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2}
    env |= {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in numbers.items()}
    env |= {"SM_HOSTS": json.dumps(["algo-1", "algo-2"]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"DIST_MEET_SECONDS": str(seconds), "PYTHONPATH": str(project.path / "src"), "CUDA_VISIBLE_DEVICES": ""}
    return forked.start(SESSION, log / str(rank), env)


def clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SM_", "TORCHELASTIC"))}


@pytest.mark.parametrize("absent, host", [(None, ""), (3, "algo-2"), (0, "algo-1")])
def test_a_rank_that_does_not_come_is_named_in_time(
    absent: int | None, host: str, project: Project, tmp_path: Path
) -> None:
    port, seconds = free_port(), 100 if absent is None else 8
    ranks = [start(project, rank, port, seconds, tmp_path) for rank in range(4) if rank != absent]
    statuses, said = zip(*[rank.wait(200) for rank in ranks], strict=True)
    if absent is None:
        assert statuses == (0, 0, 0, 0), said
        table = said[0].splitlines()
        assert table[0].split() == ["host", "node", "rank", "local", "rank", "device", "backend", "shared", "memory"]
        assert len(table) == 6 and table[4].startswith("algo-2") and "launcher: mpirun" in table[5]
        return
    assert statuses == (1, 1, 1), said
    for text in said:
        assert f"rank {absent} on host {host} did not" in text and "within 8 s" in text, text
        assert "Traceback" not in text and int(text.split()[-2]) <= 12, text


RESTARTED = """
import os, sys, time
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import dist
from runtime import ranks
def rank():
    with dist.session() as cluster:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if cluster.rank == 1:
                raise ValueError("the first attempt's")
            time.sleep(60)  # the agent ends it
        elif cluster.rank == 1:
            time.sleep(8)  # says nothing
        else:
            print("cause:", ranks._cause(cluster, RuntimeError("gloo: Connection closed by peer")), flush=True)
address = {"rdzv_backend": "static", "rdzv_endpoint": f"127.0.0.1:{sys.argv[1]}", "rdzv_configs": {"rank": 0}}
config = LaunchConfig(1, 1, 2, **address, run_id="none", max_restarts=1, monitor_interval=0.1, start_method="fork")
elastic_launch(config, rank)()
"""


def test_a_restart_does_not_hear_of_the_attempt_before(project: Project, tmp_path: Path) -> None:
    """torchrun's agent keeps the store from one attempt to the next. Its ranks are forked."""
    env = clean() | {"PYTHONPATH": str(project.path / "src"), "CUDA_VISIBLE_DEVICES": "", "DIST_MEET_SECONDS": "60"}
    status, said = forked.start(RESTARTED, tmp_path / "log", env, str(free_port())).wait(200)
    assert status == 0 and "cause: rank 1 on host localhost exited without an error message" in said, said


ENDING = """
import os, signal, sys, threading, time
import dist
from runtime import report, signals
signals.install()
def later(number):
    threading.Timer(1, os.kill, (os.getpid(), number)).start()
def hide():  # as fsspec's exists does
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except:
        pass
    raise FileNotFoundError("not what ended it")
try:
    with dist.session() as cluster:
        if cluster.rank == int(sys.argv[1]):
            %s
        if cluster.rank == 0:
            time.sleep(3)
            print(f"saved at {time.time()}")
except report.UserError as error:
    sys.exit(f"error: {error}")
print(f"ended at {time.time()}")
sys.exit(signals.complete())
"""


@pytest.mark.parametrize(
    "rank, what, statuses, words",
    [
        (0, "pass", [0, 0], "ended at"),
        (0, "raise ValueError('no room')", [1, 1], "had to end: rank 0 on host localhost failed: ValueError: no room"),
        (0, "later(signal.SIGTERM)", [143, 143], ""),
        (0, "later(signal.SIGKILL)", [-9, 1], "rank 0 on host localhost exited without an error message"),
        (1, "later(signal.SIGTERM)", [143, 143], ""),  # it waits for rank 0 by then
        (0, "hide()", [143, 143], ""),
        (1, "hide()", [143, 143], ""),
        (
            1,
            "later(signal.SIGKILL)",
            [1, -9, 0],
            "had to end: rank 1 on host localhost exited without an error message",
        ),
    ],
)
def test_the_others_wait_until_rank_0_is_done(
    rank: int, what: str, statuses: list[int], words: str, project: Project, tmp_path: Path
) -> None:
    size, port = str(len(statuses)), str(free_port())
    env = clean() | {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env |= {"PYTHONPATH": str(project.path / "src"), "CUDA_VISIBLE_DEVICES": ""}
    ranks = [
        forked.start(ENDING % what, tmp_path / str(i), env | {"RANK": str(i), "LOCAL_RANK": str(i)}, str(rank))
        for i in range(len(statuses))
    ]
    found, said = zip(*[process.wait(120) for process in ranks], strict=True)
    assert list(found) == statuses, said
    other = said[1 if rank == 0 else 0]
    assert words in other and "Traceback" not in other, said
    assert statuses != [143, 143] or "Error" not in said[0] + said[1], said
    if statuses == [0, 0]:
        saved, ended = (
            float(text.split(f"{word} at ")[1].split()[0]) for word, text in zip(("saved", "ended"), said, strict=True)
        )
        assert ended > saved


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
refused(lambda: dist.init_process_group("smddp", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0")))
refused(lambda: dist.init_process_group("cpu:gloo,cuda:smddp", store=store, rank=0, world_size=1))
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


def test_the_stub_refuses_what_the_contract_does(project: Project) -> None:
    path = project.path / "rehearsal" / "stubs"
    project.run("python", "-c", CONTRACT, PYTHONPATH=str(path), PYTHONDONTWRITEBYTECODE="1")


def test_the_stub_is_not_found_outside_a_rehearsal(project: Project, tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", "import smdistributed"], cwd=project.path, capture_output=True)
    assert found.returncode == 1
