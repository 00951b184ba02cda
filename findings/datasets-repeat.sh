#!/usr/bin/env bash
# Expected: a shuffled stream that repeats twice gives its rows in two orders, as two epochs of a loader do.
# True:     both repetitions have the same order: repeat() iterates the stream again and does not raise its epoch.
# Source:   datasets 5.2.0, iterable_dataset.py (RepeatExamplesIterable).
. "$(dirname "$0")/lib/environment.sh"
packages datasets==5.2.0
export HF_HUB_OFFLINE=1
seen "all rows: True" "the same order: True" "set_epoch(1), another order: True" <<'PY'
from datasets import Dataset

stream = Dataset.from_dict({"row": list(range(24))}).to_iterable_dataset(num_shards=4)
shuffled = stream.shuffle(seed=0, buffer_size=8)
rows = [record["row"] for record in shuffled.repeat(2)]
print("all rows:", sorted(rows[:24]) == list(range(24)))
print("the same order:", rows[:24] == rows[24:])
shuffled.set_epoch(1)
print("set_epoch(1), another order:", [record["row"] for record in shuffled] != rows[:24])
PY
