"""Each launcher's variables describe a cluster; wrong launches are errors."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dist
import forked
from smlightning.cluster import session, strategies
from smlightning.cluster.location import ClusterError, Machine, locate
from smlightning.errors import UserError
from smlightning_sagemaker.testing.processes import free_port

settings.load_profile("ci")  # a busy machine may take its time

CPU = Machine(torch_version="2.13.0+cpu")
GPUS = Machine(gpus=8, has_nccl=True, torch_version="2.5.1+cu124")
TWO = json.dumps(["algo-1", "algo-2"])
SMDDP = {"sagemaker_distributed_dataparallel_enabled": True}


def torchrun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    """The variables that torchrun sets."""
    counts = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": local,
    }
    env = {name: str(value) for name, value in counts.items()}
    return {
        **env,
        "GROUP_RANK": str(rank // local),
        "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "algo-1",
        **more,
    }


def mpirun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    """The variables that Open MPI sets."""
    counts = {"RANK": rank, "SIZE": world, "LOCAL_RANK": rank % local, "LOCAL_SIZE": local}
    return {**{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in counts.items()}, **more}


@given(
    st.integers(1, 9),
    st.integers(1, 8),
    st.data(),
    st.sampled_from([torchrun, mpirun]),
    st.booleans(),
)
def test_every_rank_of_every_cluster_gets_its_place(
    hosts: int, local: int, data: st.DataObject, launcher: Any, sagemaker: bool
) -> None:
    rank = data.draw(st.integers(0, hosts * local - 1))
    names = [f"algo-{i}" for i in range(hosts)]
    env = launcher(rank, hosts * local, local, MASTER_ADDR="algo-0", MASTER_PORT="7777")
    if sagemaker:
        here = names[rank // local] if launcher is torchrun else names[0]
        env |= {"SM_HOSTS": json.dumps(names), "SM_CURRENT_HOST": here}
    found = locate(env, CPU)
    assert (found.rank, found.local_rank, found.node_rank) == (rank, rank % local, rank // local)
    assert (found.world_size, found.local_world_size, found.num_nodes) == (
        hosts * local,
        local,
        hosts,
    )
    assert (found.launcher, found.main_address, found.main_port) == (
        launcher.__name__,
        "algo-0",
        7777,
    )
    assert found.backend == ("none" if hosts * local == 1 else "gloo") and found.device == "cpu"
    if sagemaker:
        assert (
            found.hosts == tuple(names)
            and found.name(rank) == f"rank {rank} on host {names[rank // local]}"
        )


def test_torchrun_in_the_pods_of_a_pytorch_job_sets_the_ranks(tmp_path: Path) -> None:
    """Kubeflow's operator sets RANK and WORLD_SIZE of pods; torchrun replaces them.

    Its variables: pkg/controller.v1/pytorch/envvar.go and master.go of kubeflow/training-operator,
    release-1.9.
    """
    script = tmp_path / "place.py"
    script.write_text(
        "import os\nfrom smlightning.cluster.location import Machine, locate\n"
        "cluster = locate(os.environ, Machine())\n"
        f"path = {str(tmp_path)!r} + f'/{{cluster.rank}}'\n"
        "open(path, 'w').write(f'{cluster.launcher} {cluster.node_rank} {cluster.num_nodes}')\n"
    )
    port = str(free_port())
    pods = []
    for rank in range(2):
        variables = {
            "WORLD_SIZE": "4",
            "RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": port,
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "2",
            "PET_NODE_RANK": str(rank),
        }
        code = f"from torch.distributed import run; run.main([{str(script)!r}])"
        log = tmp_path / f"pod{rank}"
        pods.append(forked.start(code, log, {**os.environ, **variables}))
    statuses, said = forked.wait_for_all(pods, 100)
    assert statuses == (0, 0), said
    places = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert places == ["torchrun 0 2", "torchrun 0 2", "torchrun 1 2", "torchrun 1 2"]


@pytest.mark.parametrize(
    "params, launcher, backend",
    [
        (SMDDP, "smddprun", "smddp"),
        ({"sagemaker_pytorch_ddp_enabled": True}, "mpirun", "nccl"),
        ({"sagemaker_pytorch_ddp_enabled": True, **SMDDP}, "mpirun", "nccl"),  # the toolkit's order
        ({"sagemaker_distributed_dataparallel_enabled": False}, "mpirun", "nccl"),
    ],
)
def test_only_a_job_with_smddp_runs_smddp(
    params: dict[str, bool], launcher: str, backend: str
) -> None:
    env = mpirun(9, 16, 8, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1")
    found = locate({**env, "SM_FRAMEWORK_PARAMS": json.dumps(params), "RANK": "9"}, GPUS)
    assert (found.launcher, found.backend, found.node_rank, found.device) == (
        launcher,
        backend,
        1,
        "cuda:1",
    )


WRONG = {
    "several hosts, no launcher": ({"SM_HOSTS": TWO}, "2 hosts.*torch_distributed"),
    "missing": (
        {"RANK": "0", "WORLD_SIZE": "2"},
        "LOCAL_RANK is unset, and the environment has RANK, WORLD_SIZE;.* unset RANK, WORLD_SIZE",
    ),
    "alone": ({"RANK": "3"}, "WORLD_SIZE is unset, and the environment has RANK;.* unset RANK$"),
    "without ranks": ({"TORCHELASTIC_RUN_ID": "1"}, "the environment has TORCHELASTIC_RUN_ID"),
    "missing in mpirun": ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is unset"),
    "not a number": (torchrun(0, 2, 2) | {"RANK": "zero"}, "RANK is zero"),
    "negative": (torchrun(0, 2, 2) | {"RANK": "-1"}, "rank -1 of 2"),
    "too large": (torchrun(0, 2, 2) | {"RANK": "2"}, "rank 2 of 2"),
    "local out of range": (torchrun(1, 2, 1) | {"LOCAL_RANK": "1"}, "local rank 1 of 1"),
    "not hosts × local": (torchrun(0, 3, 1, SM_HOSTS=TWO), "3 processes; .* 2 hosts"),
    "MPI of SDK v3": (
        mpirun(0, 2, 2, SM_HOSTS=TWO, SM_DISTRIBUTED_CONFIG="{}"),
        r'2 processes; expected 4.*mpi_additional_options=\["-np", "4"\]',
    ),
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, "PMI_SIZE is 2: .*MPICH"),
    "MVAPICH2": ({"MV2_COMM_WORLD_SIZE": "4"}, "MV2_COMM_WORLD_SIZE is 4.*torchrun"),
    "uneven": (torchrun(0, 5, 2), "5 processes"),
    "ranks in turn": (mpirun(1, 4, 2) | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "rank 1 is process 0"),
    "no port": (torchrun(0, 2, 2, MASTER_PORT="x"), "MASTER_PORT is 'x'"),
    "too high a port": (torchrun(0, 2, 2, MASTER_PORT="99999"), "MASTER_PORT is '99999'"),
    "hosts in no list": ({"SM_HOSTS": "algo-1"}, "SM_HOSTS is 'algo-1'"),
    "hosts in an object": ({"SM_HOSTS": '{"algo-1": 1}'}, "SM_HOSTS"),
    "no parameters": (mpirun(0, 1, 1, SM_FRAMEWORK_PARAMS="[]"), "SM_FRAMEWORK_PARAMS"),
    "no address": (mpirun(0, 2, 1), "MASTER_ADDR"),
    "empty address": (mpirun(0, 2, 1, MASTER_ADDR=""), "MASTER_ADDR"),
    "no driver for the GPUs": ({"SM_NUM_GPUS": "8"}, "SM_NUM_GPUS=8.*2.13.0"),
    "no driver, torchrun": (torchrun(0, 2, 2, SM_NUM_GPUS="2"), "SM_NUM_GPUS=2"),
}


@pytest.mark.parametrize("env, words", WRONG.values(), ids=WRONG)
def test_a_wrong_launch_is_an_error(env: dict[str, str], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        locate(env, CPU)


@pytest.mark.parametrize("env", [{"PMI_SIZE": "1"}, torchrun(0, 2, 2) | {"PMI_SIZE": "2"}])
def test_variables_of_another_mpi_next_to_a_launchers_are_no_error(env: dict[str, str]) -> None:
    assert locate(env, CPU).rank == 0


def test_hidden_or_absent_gpus_are_no_error() -> None:
    assert locate({"SM_NUM_GPUS": "8", "CUDA_VISIBLE_DEVICES": ""}, CPU).device == "cpu"
    assert locate({"SM_NUM_GPUS": "0"}, CPU).device == "cpu"


def test_more_processes_than_gpus_are_an_error() -> None:
    with pytest.raises(ClusterError) as refusal:
        locate(torchrun(0, 2, 2), Machine(gpus=1, has_nccl=True))
    assert "2 processes" in refusal.value.problem and "1 visible GPU" in refusal.value.problem


@pytest.fixture
def rank_3_of_4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in torchrun(3, 4, 2).items():
        monkeypatch.setenv(name, value)
    session.current_cluster.cache_clear()
    yield
    session.current_cluster.cache_clear()


def test_the_strategy_keeps_its_place_after_teardown(
    rank_3_of_4: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, devices, num_nodes = dist.get_initialization_info()
    assert (devices, num_nodes, dist.get_global_rank(), dist.get_local_rank()) == (2, 2, 3, 1)
    environment: Any = strategy.cluster_environment  # type: ignore[attr-defined]
    environment.teardown()
    monkeypatch.delenv("WORLD_SIZE")  # what Lightning's own environment does at the end of `fit`
    assert (environment.node_rank(), environment.global_rank(), environment.world_size()) == (
        1,
        3,
        4,
    )
    assert dist.get_global_rank() == 3
    with pytest.raises(ClusterError) as refusal:
        environment.set_world_size(2)
    assert {"2", "4"} <= set(refusal.value.problem.split())


def test_smddp_gets_a_strategy_of_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = locate(mpirun(0, 2, 2, SM_FRAMEWORK_PARAMS=json.dumps(SMDDP)), Machine())
    monkeypatch.setattr(dist, "current_cluster", lambda: cluster)
    strategy, devices, num_nodes = dist.get_initialization_info()
    assert isinstance(strategy, strategies.ClusterStrategy) and (devices, num_nodes) == (2, 1)


@pytest.mark.parametrize(
    "error, env, named",
    [
        (
            ValueError("too hot\nand dry"),
            {},
            r"rank 0 on host localhost failed: test_location.py:\d+ test_\w+: ValueError: too hot",
        ),
        (UserError("no data", "bring some"), {}, "no data; bring some"),
        (ValueError(), {"RANK": "zero"}, "RANK is zero"),
    ],
)
def test_the_cause_is_in_the_failure_file(
    error: Exception,
    env: dict[str, str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"SM_OUTPUT_DIR": str(tmp_path), **env}.items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises((ValueError, UserError)), dist.session():
            raise error
    finally:
        signal.signal(signal.SIGTERM, handler)
        session.current_cluster.cache_clear()
    left = (tmp_path / "failure").read_text()
    assert re.match(named, left) and "\n" not in left
