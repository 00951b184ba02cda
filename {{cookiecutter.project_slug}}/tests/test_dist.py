"""Each launcher's variables make the cluster they describe; contradictory ones make one sentence."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dist
from runtime import cluster, metrics, precision, ranks, seeds
from runtime.cluster import ClusterError, Machine, locate
from runtime.report import UserError

CPU = Machine(torch_version="2.13.0+cpu")
GPUS = Machine(gpus=8, has_nccl=True, has_smddp=True, torch_version="2.5.1+cu124")
TWO = json.dumps(["algo-1", "algo-2"])
SMDDP = {"sagemaker_distributed_dataparallel_enabled": True}
P4D = "ml.p4d.24xlarge"


def torchrun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    """What torchrun sets in a script."""
    counts = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
    env = {name: str(value) for name, value in counts.items()}
    return {**env, "GROUP_RANK": str(rank // local), "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "algo-1", **more}


def mpirun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    """What Open MPI sets, on SageMaker beside the leader's SM_CURRENT_HOST."""
    counts = {"RANK": rank, "SIZE": world, "LOCAL_RANK": rank % local, "LOCAL_SIZE": local}
    return {**{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in counts.items()}, **more}


@given(st.integers(1, 9), st.integers(1, 8), st.data(), st.sampled_from([torchrun, mpirun]), st.booleans())
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
    assert (found.world_size, found.local_world_size, found.num_nodes) == (hosts * local, local, hosts)
    assert (found.launcher, found.main_address, found.main_port) == (launcher.__name__, "algo-0", 7777)
    assert found.backend == ("none" if hosts * local == 1 else "gloo") and found.device == "cpu"
    if sagemaker:
        assert found.hosts == tuple(names) and found.name(rank) == f"rank {rank} on host {names[rank // local]}"


def test_one_process_without_a_launcher() -> None:
    found = locate({}, CPU)
    assert (found.world_size, found.num_nodes, found.launcher, found.backend) == (1, 1, "none", "none")
    assert locate({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, CPU).hosts == ("algo-1",)


def test_two_nodes_of_one_gpu_are_distributed() -> None:
    found = locate(torchrun(1, 2, 1, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-2"), Machine(gpus=1, has_nccl=True))
    assert (found.world_size, found.node_rank, found.backend, found.device) == (2, 1, "nccl", "cuda:0")


@pytest.mark.parametrize(
    "params, launcher, backend",
    [
        (SMDDP, "smddprun", "smddp"),
        ({"sagemaker_pytorch_ddp_enabled": True}, "mpirun", "nccl"),
        ({"sagemaker_pytorch_ddp_enabled": True, **SMDDP}, "mpirun", "nccl"),  # the toolkit's order
        ({"sagemaker_distributed_dataparallel_enabled": False}, "mpirun", "nccl"),
    ],
)
def test_smddp_only_where_it_was_asked_for(params: dict[str, bool], launcher: str, backend: str) -> None:
    env = mpirun(9, 16, 8, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1", SM_CURRENT_INSTANCE_TYPE=P4D)
    found = locate({**env, "SM_FRAMEWORK_PARAMS": json.dumps(params), "RANK": "9"}, GPUS)
    assert (found.launcher, found.backend, found.node_rank, found.device) == (launcher, backend, 1, "cuda:1")


def test_copied_ways_to_count_hosts_are_wrong() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        int(TWO)
    assert len(TWO) != 2 == locate(torchrun(0, 2, 1, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1"), CPU).num_nodes


REFUSED = {
    "several hosts, no launcher": ({"SM_HOSTS": TWO}, ["SM_HOSTS", TWO, "torch_distributed"]),
    "length of a string": ({"SM_HOSTS": "2"}, ["SM_HOSTS=2", "JSON list"]),
    "malformed hosts": ({"SM_HOSTS": "algo-1,algo-2"}, ["SM_HOSTS=algo-1,algo-2", "JSON list"]),
    "no hosts": ({"SM_HOSTS": "[]"}, ["SM_HOSTS=[]"]),
    "same host twice": ({"SM_HOSTS": '["a", "a"]'}, ["twice"]),
    "stranger": ({"SM_HOSTS": TWO, "SM_CURRENT_HOST": "algo-3"}, ["SM_CURRENT_HOST=algo-3"]),
    "missing": ({"RANK": "0", "WORLD_SIZE": "2"}, ["LOCAL_WORLD_SIZE is unset", "RANK=0", "WORLD_SIZE=2"]),
    "missing in mpirun": ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_LOCAL_SIZE is unset"]),
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
    "host contradicts": (torchrun(1, 2, 1, SM_HOSTS=TWO, SM_CURRENT_HOST="algo-1"), ["SM_CURRENT_HOST=algo-1"]),
    "smddprun contradicts": (mpirun(1, 2, 2, RANK="0"), ["RANK=0", "OMPI_COMM_WORLD_RANK=1"]),
    "where to meet": (mpirun(0, 2, 1), ["MASTER_ADDR is unset"]),
    "where to meet, empty": (mpirun(0, 2, 1, MASTER_ADDR=""), ["MASTER_ADDR is unset"]),
    "port": (torchrun(0, 2, 2, MASTER_PORT="99999"), ["MASTER_PORT=99999", "65535"]),
    "params": (mpirun(0, 2, 2, SM_FRAMEWORK_PARAMS="[1]"), ["SM_FRAMEWORK_PARAMS=[1]"]),
    "no driver for the GPUs": ({"SM_NUM_GPUS": "8"}, ["SM_NUM_GPUS=8", "torch 2.13.0+cpu sees no GPU"]),
    "no driver, torchrun": (torchrun(0, 2, 2, SM_NUM_GPUS="2"), ["SM_NUM_GPUS=2", "CUDA_VISIBLE_DEVICES="]),
    "torch was replaced": ({"SM_DLC_TORCH_VERSION": "2.5.1+cu124"}, ["2.5.1+cu124", "2.13.0+cpu", "requirements.txt"]),
}


@pytest.mark.parametrize("env, words", REFUSED.values(), ids=REFUSED)
def test_what_contradicts_is_refused_in_one_sentence(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ClusterError) as error:
        locate(env, CPU)
    for word in words:
        assert word in str(error.value)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@given(
    st.dictionaries(
        st.sampled_from(sorted({*sum(cluster.VARIABLES.values(), ()), "SM_HOSTS", "GROUP_RANK"})), st.text()
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
        (Machine(gpus=8, has_nccl=True), P4D, ["no smdistributed.dataparallel", cluster.SMDDP_IMAGE]),
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
    with pytest.raises(ClusterError, match="LOCAL_WORLD_SIZE=2, but 1 GPUs"):
        locate(torchrun(0, 2, 2), Machine(gpus=1, has_nccl=True))


def test_images_torch_is_compared_with_its_build() -> None:
    assert locate({"SM_DLC_TORCH_VERSION": "2.13.0"}, CPU).rank == 0
    with pytest.raises(ClusterError):
        locate({"SM_DLC_TORCH_VERSION": "2.13.0+cu130"}, CPU)


def test_launch_and_src_name_the_same_instances_and_image() -> None:
    profiles = pytest.importorskip("launch.profiles", reason="the project has no launch/")
    assert cluster.SMDDP_INSTANCES == profiles.SMDDP_INSTANCES
    assert profiles.PROFILES["smddp"].gpu == cluster.SMDDP_IMAGE


@pytest.fixture
def rank_3_of_4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in torchrun(3, 4, 2).items():
        monkeypatch.setenv(name, value)
    dist.cluster.cache_clear()
    yield
    dist.cluster.cache_clear()


def test_strategy_knows_the_node_and_survives_teardown(rank_3_of_4: None, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, devices, num_nodes = dist.get_initialization_info()
    assert (devices, num_nodes, dist.get_global_rank(), dist.get_local_rank()) == (2, 2, 3, 1)
    environment: Any = strategy.cluster_environment  # type: ignore[attr-defined]
    environment.teardown()
    monkeypatch.delenv("WORLD_SIZE")  # what Lightning's own environment does at the end of `fit`
    assert (environment.node_rank(), environment.global_rank(), environment.world_size()) == (1, 3, 4)
    assert dist.get_global_rank() == 3
    with pytest.raises(ClusterError, match="2 processes, but 4 were started"):
        environment.set_world_size(2)


@pytest.mark.parametrize(
    "variables, compression, words",
    [
        (
            {"SM_FRAMEWORK_PARAMS": json.dumps(SMDDP), "SM_CURRENT_INSTANCE_TYPE": P4D},
            "fp16",
            "not documented for SMDDP",
        ),
        ({}, "bf16", "compression=bf16 needs NCCL"),
    ],
)
def test_a_compression_that_the_backend_lacks(
    variables: dict[str, str], compression: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in mpirun(0, 2, 2, **variables).items():
        monkeypatch.setenv(name, value)
    dist.cluster.cache_clear()
    monkeypatch.setattr(ranks, "cluster", lambda: locate(os.environ, Machine(has_smddp=True)))
    monkeypatch.setattr(dist, "cluster", ranks.cluster)
    with pytest.raises(ClusterError, match=words):
        dist.get_initialization_info(compression)


class Unordered(torch.nn.Module):
    """Its parameters are registered in another order than the one in which the forward pass needs them."""

    def __init__(self, buffer: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(600, 600, bias=False) for _ in range(4))  # 1.4 MB each
        self.buffer = buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in (2, 0, 3, 1):
            x = self.layers[i](x)
        return self.buffer(x)


class Counter(torch.nn.Module):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.step
        return x


@pytest.mark.parametrize(("bf16", "chosen"), [(True, "bf16-mixed"), (False, "16-mixed")])
def test_precision_follows_the_gpu(bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert precision.trainer_precision("auto", "gpu") == chosen
    assert [precision.trainer_precision(p, "cpu") for p in ("auto", "tf32", "32-true")] == ["32-true"] * 3
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32


def test_a_mean_has_weights_and_keeps_nan() -> None:
    mean = metrics.WeightedMean()
    mean.update(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]))
    mean.update(torch.tensor([3.0]), torch.tensor([1.0]))
    assert mean.compute().item() == 1.5
    mean.update(torch.tensor([float("nan")]), torch.tensor([1.0]))
    assert mean.compute().isnan()


@pytest.fixture
def group_of_one() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def train_two_steps(buffer: torch.nn.Module, callback: seeds.StepSeed) -> Any:
    """Two steps under DDP; each one's buckets, as numbers of parameters; whether it broadcasts buffers in each step."""
    net: Any = Unordered(buffer)
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
    ddp.device_ids, ddp.device_type = [0], "cpu"  # on GPUs DDP looks at what it is called with
    strategy = SimpleNamespace(model=ddp, root_device=torch.device("cpu"))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=0, batch_idx=-1))
    trainer: Any = SimpleNamespace(strategy=strategy, global_rank=0, fit_loop=loop)
    buckets: list[list[list[int]]] = []
    numbers = {parameter: i for i, parameter in enumerate(net.parameters())}

    def record(_: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buckets[-1].append([numbers[parameter] for parameter in bucket.parameters()])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, record)
    buckets.append([])
    callback.on_train_start(trainer, net)
    for i in range(2):
        callback.on_train_batch_start(trainer, net, None, i)
        buckets.append([])
        ddp(torch.ones(2, 600)).sum().backward()
    return buckets[-2:], ddp.broadcast_buffers


def test_buckets_are_arranged_as_gradients_are_finished_and_so_again_at_a_resume(group_of_one: None) -> None:
    first, again = seeds.StepSeed(0), seeds.StepSeed(0)
    (before, arranged), _ = train_two_steps(torch.nn.Identity(), first)
    assert first.order == [1, 3, 0, 2], "last of the forward pass first"
    assert arranged == [[i] for i in first.order] != before
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert train_two_steps(torch.nn.Identity(), again)[0] == [arranged, arranged], "from the first step on"


@pytest.mark.parametrize(
    "buffer, broadcast",
    [(torch.nn.Identity(), False), (Counter(0), False), (Counter(1), True), (torch.nn.BatchNorm1d(600), True)],
)
def test_buffers_are_broadcast_only_if_they_change(
    buffer: torch.nn.Module, broadcast: bool, group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert train_two_steps(buffer, seeds.StepSeed(0))[1] is broadcast


def test_one_process_needs_no_group() -> None:
    tensor = torch.tensor([1.5])
    assert ranks.all_sum(tensor) is tensor
    assert ranks.any_rank(True) and not ranks.any_rank(False)
    assert ranks.from_rank_0("key", lambda: "said") == "said"


@pytest.mark.parametrize(
    "error, env, text",
    [
        (ValueError("too hot\nand dry"), {}, "rank 0 on host localhost failed: ValueError: too hot"),
        (UserError("no data; bring some"), {}, "no data; bring some"),
        (ValueError(), {"SM_HOSTS": "2"}, "SM_HOSTS=2 is no JSON list"),
    ],
)
def test_the_cause_is_left_where_sagemaker_looks(
    error: Exception, env: dict[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SM_OUTPUT_DIR": str(tmp_path), **env}.items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises((ValueError, UserError)), dist.session():
            raise error
    finally:
        signal.signal(signal.SIGTERM, handler)
        dist.cluster.cache_clear()
    left = (tmp_path / "failure").read_text()
    assert left.startswith(text) and "\n" not in left
