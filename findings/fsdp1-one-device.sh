#!/usr/bin/env bash
# Expected: HYBRID_SHARD shards within a host and averages gradients between hosts, as its docstring says. With one
#           device a host nothing is left to shard, so the hosts train as with DistributedDataParallel.
# True:     each host trains alone: the group becomes NO_SHARD in a world of one rank, and gradients are not averaged.
# Source:   torch 2.13.0, torch.distributed.fsdp.ShardingStrategy, _init_utils.py (_init_core_state). A CPU host has one
#           device (torch.cpu.device_count), so two processes are two such hosts. Lightning and litgpt name the strategy.
. "$(dirname "$0")/lib/environment.sh"
packages torch==2.13.0 numpy
RUN="python -m torch.distributed.run --standalone --nproc-per-node 2"
seen "devices of a host: 1" "FULL_SHARD: weights of both ranks equal: True" \
  "NO_SHARD: weights of both ranks equal: True" "HYBRID_SHARD: weights of both ranks equal: False" <<'PY'
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("gloo")
rank = dist.get_rank()
lines = [f"devices of a host: {torch.cpu.device_count()}"]
for name in ("FULL_SHARD", "NO_SHARD", "HYBRID_SHARD"):
    torch.manual_seed(0)
    strategy = ShardingStrategy[name]
    net = FullyShardedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.full((2, 4), 1.0 + rank)).sum().backward()
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(net):
        weight = torch.cat([each.flatten() for each in net.parameters()]).detach().clone()
    every = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(every, weight)
    lines.append(f"{name}: weights of both ranks equal: {torch.equal(*every)}")
if rank == 0:
    print(*lines, sep="\n")
dist.destroy_process_group()
PY
