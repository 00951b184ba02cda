#!/usr/bin/env bash
# Expected: two ranks read the 101 rows of a folder once, as one rank does, or one row twice.
# True:     each of two ranks reads 48 of its rows: drop_last is on by default when training is distributed, and drops
#           whole batches of 4 at the end of each rank. One rank reads all 101.
# Source:   litdata 0.2.76 with torch 2.13.0, streaming/dataset.py and dataloader.py (drop_last).
. "$(dirname "$0")/lib/environment.sh"
packages litdata==0.2.76 torch==2.13.0 numpy
cat > write.py <<'PY'
import litdata


def record(row):
    return {"row": row}


if __name__ == "__main__":
    litdata.optimize(fn=record, inputs=list(range(101)), output_dir="rows", num_workers=1, chunk_size=10)
PY
python write.py > log 2>&1 || { tail -n 5 log; exit 2; }
cat > read.py <<'PY'
import litdata
import torch.distributed as dist

dist.init_process_group("gloo")
rows = litdata.StreamingDataset("rows", shuffle=False)
loader = litdata.StreamingDataLoader(rows, batch_size=4, num_workers=0)
number = sum(len(batch["row"]) for batch in loader)
numbers = [None] * dist.get_world_size()
dist.all_gather_object(numbers, number)
if dist.get_rank() == 0:
    print("rows of each rank:", numbers)
dist.destroy_process_group()
PY
RUN="python -m torch.distributed.run --standalone --nproc-per-node 1" seen "rows of each rank: [101]" < read.py
RUN="python -m torch.distributed.run --standalone --nproc-per-node 2" seen "rows of each rank: [48, 48]" < read.py
