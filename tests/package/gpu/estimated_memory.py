"""What FSDP2 holds in a step of one rank of many, counted by torch in one process."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from smlightning.cluster import sharding
from smlightning.launch.estimate import sizes, transformers

LENGTH, BATCH = 512, 1
CONFIG = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "tie_word_embeddings": False,
    "max_position_embeddings": LENGTH,
}


def compare(write: Callable[[dict[str, Any]], Any], world_size: int, shard_size: int) -> None:
    """Record the bytes of a step as FSDPMemTracker counts them, and as the estimate has them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import LlamaConfig, LlamaForCausalLM

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    replicas = world_size // shard_size
    mesh = dist.init_device_mesh("cpu", (replicas, shard_size) if replicas > 1 else (shard_size,))
    config = LlamaConfig(**{name: v for name, v in CONFIG.items() if name != "model_type"})
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = LlamaForCausalLM(config).train()
        holder = torch.nn.ModuleList([network])
        sharding.shard(holder, mesh, torch.device("cpu"), bf16=True)
        counted = count_step(network)
    write({"counted": counted, "estimated": estimate(world_size, shard_size)})


def count_step(network: Any) -> dict[str, int]:
    """Bytes at the peak of a step, by kind; the second step, in which all gradients are there."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    tracker = FSDPMemTracker(network)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    tracker.track_inputs((ids,))
    with tracker:
        for step in range(2):
            network(input_ids=ids, use_cache=False).logits.float().sum().backward()
            if step == 0:
                network.zero_grad()
                tracker.reset_mod_stats()
    (device,) = tracker.get_tracker_snapshot("peak").values()
    return {str(kind): size for kind, size in device.items() if size}


def estimate(world_size: int, shard_size: int) -> dict[str, int]:
    shape = transformers.shape(CONFIG)
    assert shape is not None
    use = transformers.Use(length=LENGTH, mixed=True)
    run = sizes.Run(BATCH, world_size, shard_size, mixed=True)
    return vars(sizes.memory(transformers.sizes(shape, use), run))
