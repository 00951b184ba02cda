#!/usr/bin/env bash
# Expected: gloo reduces integers of every size, or of none but 32 and 64 bits; and AVG needs NCCL, as torch writes:
#           "AVG is only available with the NCCL backend" (torch.distributed.ReduceOp).
# True:     int8 and uint8 work and wrap around without a word, int16 is an "Invalid scalar type"; AVG works.
# Source:   torch 2.13.0, torch.distributed.ReduceOp's docstring; two processes on one host.
. "$(dirname "$0")/lib/environment.sh"
packages torch==2.13.0 numpy
RUN="python -m torch.distributed.run --standalone --nproc-per-node 2"
seen "uint8 SUM of 200: 144" "int8 SUM of 100: -56" "int16 SUM of 100: Invalid scalar type" \
  "int32 SUM of 100: 200" "float32 AVG of 1 and 2: 1.5" <<'PY'
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
lines = []
for dtype, value in (("uint8", 200), ("int8", 100), ("int16", 100), ("int32", 100)):
    tensor = torch.tensor([value], dtype=getattr(torch, dtype))
    try:
        dist.all_reduce(tensor)
        result = tensor.item()
    except RuntimeError as error:
        result = str(error).splitlines()[0]
    lines.append(f"{dtype} SUM of {value}: {result}")
tensor = torch.tensor([1.0 + rank])
dist.all_reduce(tensor, dist.ReduceOp.AVG)
lines.append(f"float32 AVG of 1 and 2: {tensor.item()}")
if rank == 0:
    print(*lines, sep="\n")
dist.destroy_process_group()
PY
