"""A resumed run has the gradient buckets of the run before from its first step on."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from smlightning.training.buckets import BucketOrder


class Unordered(torch.nn.Module):
    """Registers its parameters in another order than the forward pass uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(600, 600, bias=False) for _ in range(4)
        )  # 1.4 MB each

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in (2, 0, 3, 1):
            x = self.layers[i](x)
        return x


@pytest.fixture
def group_of_one() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def train_two_steps(callback: BucketOrder) -> list[list[list[int]]]:
    """Two steps under DDP; each one's buckets, as numbers of parameters."""
    net: Any = Unordered()
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
    ddp.device_ids, ddp.device_type = [0], "cpu"  # on GPUs DDP looks at what it is called with
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(model=ddp))
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
    return buckets[-2:]


def test_buckets_are_arranged_as_gradients_are_finished_and_so_again_at_a_resume(
    group_of_one: None,
) -> None:
    first, again = BucketOrder(), BucketOrder()
    before, arranged = train_two_steps(first)
    assert first.order == [1, 3, 0, 2], "last of the forward pass first"
    assert arranged == [[i] for i in first.order] != before
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert train_two_steps(again) == [arranged, arranged], "from the first step on"
