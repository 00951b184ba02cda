"""`--strategy fsdp` rejects wrong groups of ranks and backends."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import dist
from smlightning.cluster.location import Cluster, ClusterError, Machine, locate
from smlightning.cluster.sharding import ShardedStrategy

SIX = locate(
    {"RANK": "0", "WORLD_SIZE": "6", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "6"}, Machine()
)


def strategy(cluster: Cluster = SIX, name: str = "fsdp", **options: Any) -> Any:
    return dist.choose_strategy(cluster, name, **options)


@pytest.mark.parametrize("name", ["none", "ddp", "fsdp"])
def test_weights_are_initialized_on_the_cpu_with_any_device(name: str) -> None:
    """On a GPU the same seed gives other weights. Here another device stands in for it."""
    chosen = strategy(locate({}, Machine()), "ddp") if name == "none" else strategy(SIX, name)
    device = torch.device("meta")
    if name == "none":
        chosen._root_device = device
    else:
        chosen.parallel_devices = [device] * 6
    assert chosen.root_device == device
    with chosen.tensor_init_context():
        weight = nn.Linear(2, 2).weight
    assert weight.device.type == "cpu"


@pytest.mark.parametrize(("shard_size", "said"), [(0, 6), (2, 2), (3, 3), (6, 6)])
def test_shard_size_sets_the_groups_of_ranks(shard_size: int, said: int) -> None:
    chosen = strategy(shard_size=shard_size)
    assert isinstance(chosen, ShardedStrategy) and chosen.shard_size == said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shard_size": 4}, "2, 3, 6"),
        ({"shard_size": 12}, "2, 3, 6"),
        ({"shard_size": 1}, "ddp"),
        ({"cluster": replace(SIX, backend="smddp")}, "torch_distributed"),
    ],
)
def test_wrong_groups_and_backends_are_errors(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ClusterError) as refused:
        strategy(**options)
    assert named in refused.value.hint


def test_sharding_needs_a_torch_with_fsdp2(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image with SMDDP has torch 2.5.1, whose FSDP2 has no public names."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(ClusterError) as rejected:
        strategy()
    assert "2.6" in rejected.value.problem and "2.5.1" in rejected.value.problem
    monkeypatch.setattr(torch, "__version__", "2.10.0a0+git1")
    assert isinstance(strategy(), ShardedStrategy)
