"""Measures how fast data is prepared, and how fast batches come.

    python benchmarks/preparation.py --rows 3000000 --rounds 5
    python benchmarks/preparation.py --against ../older     # and another checkout's

A project's Data prepares rows in a new process each time: seconds, peak memory above the imports,
bytes on disk. The memory is the process's own: the pages of mapped files are the system's. Its
loader then yields EPOCHS of the example's batches. For comparison, numpy gathers the same batches
from arrays in memory, and `datasets` pads them with a collator. Each uses one core.
"""

import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import common
from common import Facts, Run

WORDS, CLASSES = 16, 10


def write_csv(path: Path, rows: int) -> None:
    """Rows of WORDS words of 3 to 8 letters, and one of CLASSES labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    words = np.array(["".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(5000)])
    with path.open("w") as file:
        file.write("text,label\n")
        for at in range(0, rows, 100_000):
            many = min(100_000, rows - at)
            chosen = words[rng.integers(len(words), size=(many, WORDS))].tolist()
            labels = rng.integers(CLASSES, size=many).tolist()
            pairs = zip(chosen, labels, strict=True)
            file.writelines(f"{' '.join(row)},class {label}\n" for row, label in pairs)


PREPARE = """
import json, os, sys, threading, time
def own():  # MiB
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
import data, datasets
made = data.Data(sys.argv[1], data_dir=sys.argv[2])
before, seen, done = own(), [0.0], threading.Event()
def watch():
    while not done.wait(0.005):
        seen.append(own() - before)
watching = threading.Thread(target=watch)
watching.start()
began, spent = time.perf_counter(), time.process_time()
made.prepare_data()
facts = {"seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
done.set()
watching.join()
facts["MiB"] = max(seen)
places = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[2]) for name in names]
print(json.dumps(facts | {"MB": sum(map(os.path.getsize, places)) / 1e6}))
"""
EPOCHS = 10
LOAD = (
    f"EPOCHS = {EPOCHS}"
    + """
import json, sys, time
import data
made = data.Data(batch_size=int(sys.argv[2]), num_workers=0)
made.prepare_data()
made.setup()
loader = made.train_dataloader()
if sys.argv[1] == "numpy":
    import numpy as np
    import torch
    from smlightning.data import batches
    rows = made.splits["train"].with_format("numpy")[:]
    lengths = np.array([len(ids) for ids in rows["input_ids"]])
    starts = lengths.cumsum() - lengths
    flat, labels = np.concatenate(rows["input_ids"]), rows["label"]
    class Gather(list):
        def __iter__(self):
            for at in super().__iter__():
                ids, mask = batches.pad(flat, starts[at], lengths[at], 0)
                label = torch.from_numpy(labels[at])
                yield {"input_ids": ids, "attention_mask": mask, "label": label}
    loader = Gather([batch.rows for batch in loader.sampler])
if sys.argv[1] == "datasets":
    import torch
    def collate(samples):
        ids = [torch.tensor(sample["input_ids"]) for sample in samples]
        ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        label = torch.tensor([sample["label"] for sample in samples])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "label": label}
    rows = made.splits["train"]
    loader = torch.utils.data.DataLoader(rows, int(sys.argv[2]), shuffle=True, collate_fn=collate)
began, spent = time.perf_counter(), time.process_time()
samples = sum(len(batch["label"]) for epoch in range(EPOCHS) for batch in loader)
facts = {"seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
print(json.dumps(facts | {"samples": samples}))
"""
)


def asked(project: Path, script: str, *words: str) -> Facts:
    """The facts in the last line of a script's output."""
    run = Run(project, ["-c", script, *words]).succeed()
    return json.loads(run.text().splitlines()[-1])


def main() -> int:
    parser = common.parser_of(__doc__, compares=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch_size", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.small:
        arguments.rows, arguments.rounds = 1000, 1
    with common.folder() as folder:
        projects = common.projects(folder, arguments.against)
        path, place = folder / "rows.csv", folder / "prepared"
        write_csv(path, arguments.rows)
        prepared: dict[str, list[Facts]] = defaultdict(list)
        loaded: dict[str, list[Facts]] = defaultdict(list)
        for _ in range(arguments.rounds):
            for name, project in projects.items():
                prepared[name].append(asked(project, PREPARE, str(path), str(place)))
                shutil.rmtree(place)
            ours = projects["train.py"]
            for name, project in {**projects, "datasets": ours, "numpy": ours}.items():
                loaded[name].append(asked(project, LOAD, name, str(arguments.batch_size)))
        print(f"{arguments.rows:,} rows, {path.stat().st_size / 1e6:.0f} MB of csv; seconds")
        found = common.compare(prepared)
        memory = max(each["MiB"] for each in prepared["train.py"])
        disk = prepared["train.py"][0]["MB"]
        print(f"train.py: {memory:.0f} MiB above the imports, {disk:.1f} MB on disk")
        samples = loaded["train.py"][0]["samples"]
        print(f"{EPOCHS} epochs in batches of {arguments.batch_size}, {samples:,} samples; seconds")
        common.write(arguments.json, [found, common.compare(loaded)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
