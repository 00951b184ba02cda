"""DDP's buckets are those of the run before; buffers are broadcast where they change."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from smlightning.training.buckets import BucketOrder


class Unordered(torch.nn.Module):
    """Its parameters are registered in another order than the one in which the forward pass needs
    them.
    """

    def __init__(self, buffer: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(600, 600, bias=False) for _ in range(4)
        )  # 1.4 MB each
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


@pytest.fixture
def group_of_one() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def train_two_steps(buffer: torch.nn.Module, callback: BucketOrder) -> Any:
    """Two steps under DDP; each one's buckets, as numbers of parameters; whether it broadcasts
    buffers in each step.
    """
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


def test_buckets_are_arranged_as_gradients_are_finished_and_so_again_at_a_resume(
    group_of_one: None,
) -> None:
    first, again = BucketOrder(), BucketOrder()
    (before, arranged), _ = train_two_steps(torch.nn.Identity(), first)
    assert first.order == [1, 3, 0, 2], "last of the forward pass first"
    assert arranged == [[i] for i in first.order] != before
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert train_two_steps(torch.nn.Identity(), again)[0] == [arranged, arranged], (
        "from the first step on"
    )


@pytest.mark.parametrize(
    "buffer, broadcast",
    [
        (torch.nn.Identity(), False),
        (Counter(0), False),
        (Counter(1), True),
        (torch.nn.BatchNorm1d(600), True),
    ],
)
def test_buffers_are_broadcast_only_if_they_change(
    buffer: torch.nn.Module, broadcast: bool, group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert train_two_steps(buffer, BucketOrder())[1] is broadcast
