#!/usr/bin/env bash
# Expected: with_epoch(n) makes epochs of n rows, and the next epoch goes on where the last one ended.
# True:     WebLoader.with_epoch(10) begins at the first row in each epoch: of 32 rows, 22 are never seen.
#           WebDataset.with_epoch(16) counts in each worker: four workers give 64 rows of 32.
# Source:   webdataset 1.0.2 with torch 2.13.0, pipeline.py (with_epoch), shardshuffle=False.
. "$(dirname "$0")/lib/environment.sh"
packages webdataset==1.0.2 torch==2.13.0 numpy
seen "epoch 0: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" "epoch 1: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" \
  "1 workers: 16 rows" "4 workers: 64 rows" <<'PY'
import webdataset as wds
from torch.utils.data import DataLoader

for shard in range(4):
    with wds.TarWriter(f"shard-{shard}.tar") as tar:
        for row in range(8 * shard, 8 * shard + 8):
            tar.write({"__key__": str(row), "row.txt": str(row)})


def rows():
    return wds.WebDataset("shard-{0..3}.tar", shardshuffle=False).decode()


loader = wds.WebLoader(rows(), batch_size=None, num_workers=0).with_epoch(10)
for epoch in range(2):
    print(f"epoch {epoch}:", [int(row["row.txt"]) for row in loader])
for workers in (1, 4):
    loader = DataLoader(rows().with_epoch(16), batch_size=None, num_workers=workers)
    print(f"{workers} workers:", len(list(loader)), "rows")
PY
