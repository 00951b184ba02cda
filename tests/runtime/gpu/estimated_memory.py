"""Memory of one rank in a step with FSDP2, which torch counts in a single process."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from smlightning.cluster import fsdp2
from smlightning.outline import outline
from smlightning_sagemaker.estimate import counting, sizes

# So few that weights and gradients are nearly all of the memory.
BATCH, LENGTH = 1, 8
SHAPES = {  # of Llamas, most of whose weights lie in the vocabulary, or in the layers
    "vocabulary": {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816},
    "layers": {"vocab_size": 1000, "hidden_size": 2048, "intermediate_size": 5632},
}
CONFIG = {
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "tie_word_embeddings": False,
}


def compare(
    write: Callable[[dict[str, Any]], Any], name: str, world_size: int, shard_size: int
) -> None:
    """Record the bytes at the peak of a step, as FSDPMemTracker counts and the estimate has them.

    Both are without the optimizer's, which the tracker does not count right.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import LlamaConfig, LlamaForCausalLM

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    mesh = dist.init_device_mesh("cpu", (world_size,))
    if shard_size != world_size:
        groups = world_size // shard_size, shard_size
        mesh = dist.init_device_mesh("cpu", groups, mesh_dim_names=("replicas", "parts"))
    config: dict[str, Any] = {**CONFIG, **SHAPES[name]}
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = LlamaForCausalLM(LlamaConfig(**config)).train()
        fsdp2.shard(torch.nn.ModuleList([network]), mesh, torch.device("cpu"), bf16=True)
        counted = count_step(network)
    with outline():
        whole = torch.nn.ModuleList([LlamaForCausalLM(LlamaConfig(**config)).train()])
    with counting.without_numbers(whole), counting.fused_attentions():
        steps = [count_activations(whole, rows) for rows in (1, 2)]
    activations, temporary = (counting.line(1, *at) for at in zip(*steps, strict=True))
    found = counting.sizes_of(whole, 0, activations, temporary)
    memory = sizes.memory(found, sizes.Run(BATCH, world_size, shard_size, mixed=True))
    write({"counted": counted, "estimated": sizes.total(memory)})


def count_activations(networks: Any, rows: int) -> tuple[int, int]:
    """Bytes of activations and at the peak, as the estimate counts them."""
    (network,) = networks
    ids = torch.zeros(rows, LENGTH, dtype=torch.long)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return network(input_ids=ids, use_cache=False).logits.float().sum()

    gradients = []
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return counting.step(loss, [*network.parameters(), *network.buffers(), *gradients, ids])


def count_step(network: Any) -> int:
    """Bytes at the peak of a step's forward and backward pass."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    tracker = FSDPMemTracker(network)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    tracker.track_inputs((ids,))
    with tracker:
        for step in range(2):  # in the second all is there that the first one makes
            network(input_ids=ids, use_cache=False).logits.float().sum().backward()
            if step == 0:
                network.zero_grad()
                tracker.reset_mod_stats()
    (kinds,) = tracker.get_tracker_snapshot("peak").values()
    return int(kinds["Total"])
