#!/usr/bin/env bash
# Expected: WebDataset(shardshuffle=100) reads the shards in another order in each epoch.
# True:     the order is the same in all epochs of a data set: each one begins with the same seed. detshuffle=True adds
#           the number of the pass, which begins at 0 again in the new loader workers of each epoch.
# Source:   webdataset 1.0.2 with torch 2.13.0, compat.py (WebDataset), filters.py (shuffle, detshuffle).
. "$(dirname "$0")/lib/environment.sh"
packages webdataset==1.0.2 torch==2.13.0 numpy
seen "shardshuffle: 1 order in 5 epochs" "with detshuffle: several orders True" "all rows: True" <<'PY'
import webdataset as wds

for shard in range(8):
    with wds.TarWriter(f"shard-{shard}.tar") as tar:
        for row in range(4 * shard, 4 * shard + 4):
            tar.write({"__key__": str(row), "row.txt": str(row)})


def orders(**options):
    rows = wds.WebDataset("shard-{0..7}.tar", shardshuffle=100, **options).decode()
    return [tuple(int(row["row.txt"]) for row in rows) for _ in range(5)]


print("shardshuffle:", len(set(orders())), "order in 5 epochs")
shuffled = orders(detshuffle=True)
print("with detshuffle: several orders", len(set(shuffled)) > 1)
print("all rows:", all(sorted(order) == list(range(32)) for order in shuffled))
PY
