"""Slurm's variables describe a cluster; contradictions are errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlightning.cluster import slurm
from smlightning.cluster.location import Machine, locate
from smlightning.errors import UserError

settings.load_profile("ci")  # a busy machine may take its time

CPU = Machine(torch_version="2.13.0+cpu")
# Further variables that srun sets for each task of a batch job (Slurm 22.05).
BATCH = {"SLURM_JOB_ID": "4321", "SLURM_JOB_NAME": "job.sh", "SLURM_STEP_ID": "0"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu01",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "gpu01",
}


def srun(task: int, hosts: int, local: int, **more: str) -> dict[str, str]:
    """The variables that srun sets, for ``local`` tasks on each of the hosts."""
    numbers = {
        "SLURM_PROCID": task,
        "SLURM_LOCALID": task % local,
        "SLURM_NODEID": task // local,
        "SLURM_NTASKS": hosts * local,
        "SLURM_NNODES": hosts,
        "SLURM_STEP_NUM_TASKS": hosts * local,
        "SLURM_STEP_NUM_NODES": hosts,
    }
    first = task - task % local
    lists = {
        "SLURM_GTIDS": ",".join(map(str, range(first, first + local))),
        "SLURM_STEP_TASKS_PER_NODE": str(local) if hosts == 1 else f"{local}(x{hosts})",
        "SLURM_STEP_NODELIST": "gpu01" if hosts == 1 else f"gpu[01-{hosts:02}]",
    }
    return {**BATCH, **{name: str(number) for name, number in numbers.items()}, **lists, **more}


@given(st.integers(1, 12), st.integers(1, 8), st.data())
def test_every_task_gets_its_place(hosts: int, local: int, data: st.DataObject) -> None:
    task = data.draw(st.integers(0, hosts * local - 1))
    found = locate(srun(task, hosts, local), CPU)
    assert (found.rank, found.local_rank, found.node_rank) == (task, task % local, task // local)
    assert (found.world_size, found.num_nodes) == (hosts * local, hosts)
    if hosts * local > 1:
        assert (found.launcher, found.main_address) == ("srun", "gpu01")
        assert found.name(task) == f"rank {task} on host gpu{task // local + 1:02}"


def test_steps_on_one_host_use_different_ports() -> None:
    ports = {
        locate(srun(0, 1, 2, SLURM_JOB_ID=job, SLURM_STEP_ID=step), CPU).main_port
        for job in ("4321", "4322")
        for step in ("0", "1")
    }
    assert len(ports) == 4 and all(1024 < port < 32768 for port in ports)


def test_address_and_port_of_a_script_win() -> None:
    found = locate(srun(3, 2, 2, MASTER_ADDR="10.0.0.1", MASTER_PORT="29500"), CPU)
    assert (found.main_address, found.main_port) == ("10.0.0.1", 29500)


@pytest.mark.parametrize(
    "text, names",
    [
        ("ip-10-1-2-3", ["ip-10-1-2-3"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("gpu[8-11],big", ["gpu8", "gpu9", "gpu10", "gpu11", "big"]),
        ("q-dy-p4d[1-2],q-st-p4d7", ["q-dy-p4d1", "q-dy-p4d2", "q-st-p4d7"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("127.0.0.[2-3]", ["127.0.0.2", "127.0.0.3"]),
    ],
)
def test_host_names_of_a_list(text: str, names: list[str]) -> None:
    assert slurm.host_names(text) == names


RIGHT = {
    "torchrun in each task of one per host": (
        srun(1, 2, 1) | TORCHRUN,
        ("torchrun", 3, 4),
    ),
    "mpirun, whose agents srun starts": (srun(1, 2, 1) | MPIRUN, ("mpirun", 3, 4)),
    "torchrun's variables, copied by a script": (
        srun(3, 2, 2, RANK="3", WORLD_SIZE="4", LOCAL_RANK="1"),
        ("srun", 3, 4),
    ),
    "one host of a larger job": (
        srun(1, 1, 2, SLURM_JOB_NODELIST="gpu[01-09]", SLURM_JOB_NUM_NODES="9"),
        ("srun", 1, 2),
    ),
    "a script that sets all of torchrun's variables for each of its steps": (
        srun(0, 1, 1)
        | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        | {"MASTER_ADDR": "gpu01"},
        ("torchrun", 1, 2),
    ),
    "a job of SageMaker": (
        {"SM_HOSTS": '["algo-1", "algo-2"]', **TORCHRUN, "MASTER_ADDR": "algo-1"},
        ("torchrun", 3, 4),
    ),
}


@pytest.mark.parametrize("env, expected", RIGHT.values(), ids=RIGHT)
def test_launchers_that_agree(env: dict[str, str], expected: tuple[str, int, int]) -> None:
    found = locate(env, CPU)
    assert (found.launcher, found.rank, found.world_size) == expected


WRONG = {
    "a batch script exported its own rank": (srun(1, 2, 2, RANK="0"), "RANK is 0"),
    "nodes taken for processes": (srun(1, 2, 2, WORLD_SIZE="2"), "WORLD_SIZE is 2"),
    "another local rank": (srun(3, 2, 2, LOCAL_RANK="0"), "LOCAL_RANK is 0"),
    "another local size": (srun(3, 2, 2, LOCAL_WORLD_SIZE="8"), "LOCAL_WORLD_SIZE is 8"),
    "a torchrun in each task": (
        srun(1, 2, 2) | TORCHRUN | {"GROUP_WORLD_SIZE": "1"},
        "GROUP_WORLD_SIZE is 1",
    ),
    "an mpirun in each task": (
        srun(1, 2, 2) | MPIRUN | {"OMPI_COMM_WORLD_SIZE": "2"},
        "OMPI_COMM_WORLD_SIZE is 2",
    ),
    "SageMaker's hosts": (srun(1, 2, 2, SM_HOSTS='["algo-1"]'), "SM_HOSTS"),
    "tasks on hosts in turn": (
        srun(1, 2, 2) | {"SLURM_NODEID": "1", "SLURM_LOCALID": "0"},
        "task 1 is on a host with",
    ),
    "tasks on hosts in turn, seen by rank 0": (srun(0, 2, 2, SLURM_GTIDS="0,2"), "tasks 0,2;"),
    "more tasks on one host": (
        srun(1, 2, 2) | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"},
        "SLURM_STEP_TASKS_PER_NODE is 2,1",
    ),
    "variables missing in a container": (
        {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"},
        "SLURM_LOCALID is unset",
    ),
}


@pytest.mark.parametrize("env, value", WRONG.values(), ids=WRONG)
def test_a_contradiction_is_an_error(env: dict[str, str], value: str) -> None:
    with pytest.raises(UserError, match=value):
        locate(env, CPU)


# Recorded in Slurm 22.05, without what all have.
ONE_PROCESS = {
    "a batch script": {
        "SLURM_NTASKS": "4",
        "SLURM_NNODES": "2",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
    },
    "salloc --ntasks 4, with a shell on a node": {
        **srun(0, 1, 1),
        "SLURM_JOB_NAME": "interactive",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_ID": "4294967290",
        "SLURM_PTY_PORT": "41357",
    },
    "srun --ntasks 4 --pty bash": {
        **srun(0, 1, 4),
        "SLURM_JOB_NAME": "bash",
        "SLURM_PTY_PORT": "40961",
    },
}


@pytest.mark.parametrize("env", ONE_PROCESS.values(), ids=ONE_PROCESS)
def test_without_srun_one_process_trains_and_says_so(env: dict[str, str]) -> None:
    found = locate({**BATCH, **env}, CPU)
    assert (found.world_size, found.num_nodes, found.launcher) == (1, 1, "none")
    assert "SLURM_NTASKS is 4" in slurm.unused(env, found.world_size, found.num_nodes)


def test_srun_in_the_shell_of_salloc_starts_ranks() -> None:
    env = srun(2, 1, 4, SLURM_JOB_NAME="interactive", SLURM_PTY_PORT="41357")
    assert locate(env, CPU).rank == 2


def test_a_run_on_the_whole_job_has_nothing_unused() -> None:
    assert not slurm.unused({}, 1, 1)
    assert not slurm.unused(srun(0, 1, 1), 1, 1)
    assert not slurm.unused(srun(3, 2, 2), 4, 2)
    assert not slurm.unused(srun(1, 2, 1) | TORCHRUN, 4, 2)
    assert "SLURM_NNODES 2" in slurm.unused(srun(0, 2, 1), 8, 1)  # torchrun on one of two hosts
