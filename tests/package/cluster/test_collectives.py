"""What is sent between ranks is what NCCL takes: without gaps, in types that it knows."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from marked_tensors import NCCL_TYPES

from smlightning.cluster import collectives, fsdp2

TENSORS = {
    "turned": torch.arange(6.0).view(2, 3).T,
    "expanded": torch.ones(1, 3).expand(4, 3),
    "int16": torch.tensor([-(2**15), 2**15 - 1], dtype=torch.int16),
    "uint16": torch.tensor([0, 2**16 - 1], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "one": torch.tensor(7),
    "none": torch.zeros(0, 3),
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """What is given to a group of one rank."""
    seen: list[torch.Tensor] = []
    for name in ("all_reduce", "broadcast"):
        given = getattr(dist, name)

        def sends(tensor: torch.Tensor, *args: Any, given: Any = given) -> None:
            seen.append(tensor)
            given(tensor, *args)

        monkeypatch.setattr(dist, name, sends)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield seen
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("send", ["sum", "from_rank_0"])
def test_a_tensor_is_sent_as_nccl_takes_it(send: str, kind: str, sent: list[torch.Tensor]) -> None:
    tensor = TENSORS[kind]
    before = tensor.clone()
    if send == "sum":
        result = collectives.all_sum(tensor)
    else:
        result = fsdp2._from_rank_0(tensor, torch.device("cpu"))
    assert torch.equal(result, before) and result.dtype == before.dtype
    assert all(one.is_contiguous() and one.dtype in NCCL_TYPES for one in sent) and len(sent) == 1


def test_an_outline_gets_rank_0s_shape(sent: list[torch.Tensor]) -> None:
    outline = torch.empty(2, 3, device="meta").T
    assert fsdp2._from_rank_0(outline, torch.device("cpu")).is_contiguous()
    assert sent[0].numel() == 24
