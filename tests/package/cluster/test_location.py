"""Each launcher's variables give the cluster they describe; contradictory ones are refused."""

import json
import signal
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dist
from smlightning.cluster import collectives, location, session, strategies
from smlightning.cluster.location import ClusterError, Machine, locate
from smlightning.errors import UserError

CPU = Machine(torch_version="2.13.0+cpu")
GPUS = Machine(gpus=8, has_nccl=True, has_smddp=True, torch_version="2.5.1+cu124")
TWO = json.dumps(["algo-1", "algo-2"])
SMDDP = {"sagemaker_distributed_dataparallel_enabled": True}
P4D = "ml.p4d.24xlarge"
VARIABLES = {"SM_HOSTS", "GROUP_RANK"}.union(*map(astuple, location.LAUNCHERS.values()))


def torchrun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    """What torchrun sets in a script."""
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
    """What Open MPI sets, on SageMaker beside the leader's SM_CURRENT_HOST."""
    counts = {"RANK": rank, "SIZE": world, "LOCAL_RANK": rank % local, "LOCAL_SIZE": local}
    return {**{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in counts.items()}, **more}


@given(
    st.integers(1, 9),
    st.integers(1, 8),
    st.data(),
    st.sampled_from([torchrun, mpirun]),
    st.booleans(),
)
def test_every_rank_of_every_cluster_knows_its_place(
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


def test_one_process_without_a_launcher() -> None:
    found = locate({}, CPU)
    assert (found.world_size, found.num_nodes, found.launcher, found.backend) == (
        1,
        1,
        "none",
        "none",
    )
    assert locate({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, CPU).hosts == ("algo-1",)


def test_two_nodes_of_one_gpu_are_distributed() -> None:
    found = locate(
        torchrun(1, 2, 1, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-2"), Machine(gpus=1, has_nccl=True)
    )
    assert (found.world_size, found.node_rank, found.backend, found.device) == (
        2,
        1,
        "nccl",
        "cuda:0",
    )


@pytest.mark.parametrize(
    "params, launcher, backend",
    [
        (SMDDP, "smddprun", "smddp"),
        ({"sagemaker_pytorch_ddp_enabled": True}, "mpirun", "nccl"),
        ({"sagemaker_pytorch_ddp_enabled": True, **SMDDP}, "mpirun", "nccl"),  # the toolkit's order
        ({"sagemaker_distributed_dataparallel_enabled": False}, "mpirun", "nccl"),
    ],
)
def test_smddp_only_where_it_was_asked_for(
    params: dict[str, bool], launcher: str, backend: str
) -> None:
    env = mpirun(9, 16, 8, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1", SM_CURRENT_INSTANCE_TYPE=P4D)
    found = locate({**env, "SM_FRAMEWORK_PARAMS": json.dumps(params), "RANK": "9"}, GPUS)
    assert (found.launcher, found.backend, found.node_rank, found.device) == (
        launcher,
        backend,
        1,
        "cuda:1",
    )


def test_copied_ways_to_count_hosts_are_wrong() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        int(TWO)
    assert (
        len(TWO)
        != 2
        == locate(torchrun(0, 2, 1, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1"), CPU).num_nodes
    )


REFUSED = {
    "several hosts, no launcher": ({"SM_HOSTS": TWO}, ["SM_HOSTS", TWO, "torch_distributed"]),
    "length of a string": ({"SM_HOSTS": "2"}, ["SM_HOSTS=2", "JSON list"]),
    "malformed hosts": ({"SM_HOSTS": "algo-1,algo-2"}, ["SM_HOSTS=algo-1,algo-2", "JSON list"]),
    "no hosts": ({"SM_HOSTS": "[]"}, ["SM_HOSTS=[]"]),
    "same host twice": ({"SM_HOSTS": '["a", "a"]'}, ["twice"]),
    "stranger": ({"SM_HOSTS": TWO, "SM_CURRENT_HOST": "algo-3"}, ["SM_CURRENT_HOST=algo-3"]),
    "missing": (
        {"RANK": "0", "WORLD_SIZE": "2"},
        ["LOCAL_WORLD_SIZE", "RANK=0", "WORLD_SIZE=2"],
    ),
    "missing in mpirun": ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_LOCAL_SIZE"]),
    "not a number": (torchrun(0, 2, 2) | {"RANK": "zero"}, ["RANK=zero", "from 0 to 1"]),
    "underscores are no digits": (torchrun(0, 2, 2) | {"WORLD_SIZE": "2_0"}, ["WORLD_SIZE=2_0"]),
    "negative": (torchrun(0, 2, 2) | {"RANK": "-1"}, ["RANK=-1", "from 0 to 1"]),
    "too large": (torchrun(0, 2, 2) | {"RANK": "2"}, ["RANK=2"]),
    "local out of range": (torchrun(1, 2, 1) | {"LOCAL_RANK": "1"}, ["LOCAL_RANK=1"]),
    "no world": (torchrun(0, 2, 2) | {"WORLD_SIZE": "0"}, ["WORLD_SIZE=0"]),
    "not hosts × local": (torchrun(0, 3, 1, SM_HOSTS=TWO), ["WORLD_SIZE=3", "2 × 1"]),
    "uneven": (torchrun(0, 5, 2), ["WORLD_SIZE=5", "2 × 2"]),
    "node contradicts": (torchrun(1, 2, 1) | {"GROUP_RANK": "0"}, ["GROUP_RANK=0", "RANK=1"]),
    "local contradicts": (torchrun(1, 4, 2) | {"LOCAL_RANK": "0"}, ["LOCAL_RANK=0", "RANK=1"]),
    "host contradicts": (
        torchrun(1, 2, 1, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1"),
        ["SM_CURRENT_HOST=algo-1"],
    ),
    "smddprun contradicts": (mpirun(1, 2, 2, RANK="0"), ["RANK=0", "OMPI_COMM_WORLD_RANK=1"]),
    "where to meet": (mpirun(0, 2, 1), ["MASTER_ADDR"]),
    "where to meet, empty": (mpirun(0, 2, 1, MASTER_ADDR=""), ["MASTER_ADDR"]),
    "port": (torchrun(0, 2, 2, MASTER_PORT="99999"), ["MASTER_PORT=99999", "65535"]),
    "params": (mpirun(0, 2, 2, SM_FRAMEWORK_PARAMS="[1]"), ["SM_FRAMEWORK_PARAMS=[1]"]),
    "no driver for the GPUs": (
        {"SM_NUM_GPUS": "8"},
        ["SM_NUM_GPUS=8", "torch 2.13.0+cpu"],
    ),
    "no driver, torchrun": (
        torchrun(0, 2, 2, SM_NUM_GPUS="2"),
        ["SM_NUM_GPUS=2", "CUDA_VISIBLE_DEVICES="],
    ),
    "torch was replaced": (
        {"SM_DLC_TORCH_VERSION": "2.5.1+cu124"},
        ["2.5.1+cu124", "2.13.0+cpu", "requirements.txt"],
    ),
}


@pytest.mark.parametrize("env, words", REFUSED.values(), ids=REFUSED)
def test_what_contradicts_is_refused_in_one_sentence(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ClusterError) as error:
        locate(env, CPU)
    for word in words:
        assert word in str(error.value)
    assert error.value.problem and error.value.cure
    assert not error.value.problem.endswith(".") and not error.value.cure.endswith(".")
    assert "\n" not in str(error.value)


@given(
    st.dictionaries(
        st.sampled_from(sorted(VARIABLES)),
        st.text(),
    )
)
def test_any_values_make_a_cluster_or_a_sentence(env: dict[str, str]) -> None:
    try:
        found = locate(env, CPU)
    except ClusterError:
        return
    assert 0 <= found.rank < found.world_size == found.num_nodes * found.local_world_size


@pytest.mark.parametrize(
    "machine, instance, words",
    [
        (GPUS, "ml.g5.12xlarge", ["SM_CURRENT_INSTANCE_TYPE=ml.g5.12xlarge", P4D]),
        (
            Machine(gpus=8, has_nccl=True),
            P4D,
            ["smdistributed.dataparallel", 'image = "smddp"'],
        ),
    ],
)
def test_smddp_where_it_cannot_run(machine: Machine, instance: str, words: list[str]) -> None:
    env = mpirun(0, 8, 8, SM_CURRENT_INSTANCE_TYPE=instance, SM_FRAMEWORK_PARAMS=json.dumps(SMDDP))
    with pytest.raises(ClusterError) as error:
        locate(env, machine)
    assert all(word in str(error.value) for word in [*words, "torch_distributed"])


def test_gpus_that_are_hidden_on_purpose_or_not_there_are_no_mistake() -> None:
    assert locate({"SM_NUM_GPUS": "8", "CUDA_VISIBLE_DEVICES": ""}, CPU).device == "cpu"
    assert locate({"SM_NUM_GPUS": "0"}, CPU).device == "cpu"


def test_more_processes_than_gpus() -> None:
    with pytest.raises(ClusterError) as refusal:
        locate(torchrun(0, 2, 2), Machine(gpus=1, has_nccl=True))
    assert "LOCAL_WORLD_SIZE=2" in refusal.value.problem and "1 GPU" in refusal.value.problem


def test_images_torch_is_compared_with_its_build() -> None:
    assert locate({"SM_DLC_TORCH_VERSION": "2.13.0"}, CPU).rank == 0
    with pytest.raises(ClusterError):
        locate({"SM_DLC_TORCH_VERSION": "2.13.0+cu130"}, CPU)


@pytest.fixture
def rank_3_of_4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in torchrun(3, 4, 2).items():
        monkeypatch.setenv(name, value)
    session.current_cluster.cache_clear()
    yield
    session.current_cluster.cache_clear()


def test_strategy_knows_the_node_and_survives_teardown(
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


@pytest.mark.parametrize(
    "variables, compression, named",
    [
        (
            {"SM_FRAMEWORK_PARAMS": json.dumps(SMDDP), "SM_CURRENT_INSTANCE_TYPE": P4D},
            "fp16",
            "SMDDP",
        ),
        ({}, "bf16", "gloo"),
    ],
)
def test_a_compression_that_the_backend_lacks(
    variables: dict[str, str], compression: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = mpirun(0, 2, 2, **variables)
    cluster = locate(env, Machine(has_smddp=True))
    monkeypatch.setattr(dist, "current_cluster", lambda: cluster)
    with pytest.raises(ClusterError) as refusal:
        dist.get_initialization_info(compression)
    assert f"compression={compression}" in refusal.value.problem
    assert named in refusal.value.problem
    strategy, devices, num_nodes = dist.get_initialization_info()
    assert isinstance(strategy, strategies.ClusterStrategy) and (devices, num_nodes) == (2, 1)


def test_one_process_needs_no_group() -> None:
    tensor = torch.tensor([1.5])
    assert collectives.all_sum(tensor) is tensor
    assert collectives.any_rank(True) and not collectives.any_rank(False)
    assert session.from_rank_0("key", lambda: "said") == "said"


@pytest.mark.parametrize(
    "error, env, named",
    [
        (
            ValueError("too hot\nand dry"),
            {},
            "rank 0 on host localhost failed: ValueError: too hot",
        ),
        (UserError("no data", "bring some"), {}, "no data; bring some"),
        (ValueError(), {"SM_HOSTS": "2"}, "SM_HOSTS=2"),
    ],
)
def test_the_cause_is_left_where_sagemaker_looks(
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
    assert left.startswith(named) and "\n" not in left
