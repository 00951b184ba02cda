"""Measures how fast data is prepared, and how fast batches come.

    python benchmarks/preparation.py --rows 3000000 --rounds 5
    python benchmarks/preparation.py --against ../older     # and another checkout's

A project's Data prepares rows in a new process each time: seconds, peak memory above the imports,
bytes on disk. Its loader then yields an epoch of the example's batches. Each uses one core.
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
import json, os, sys, time
def peak():  # only of this process: ru_maxrss starts with its parent's
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
import data, datasets
made = data.Data(sys.argv[1], data_dir=sys.argv[2])
before, began, spent = peak(), time.perf_counter(), time.process_time()
made.prepare_data()
facts = {"seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
facts["MiB"] = (peak() - before) / 1024
places = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[2]) for name in names]
print(json.dumps(facts | {"MB": sum(map(os.path.getsize, places)) / 1e6}))
"""
LOAD = """
import json, sys, time
import data
made = data.Data(batch_size=int(sys.argv[1]), num_workers=0)
made.prepare_data()
made.setup()
loader = made.train_dataloader()
began, spent = time.perf_counter(), time.process_time()
samples = sum(len(batch["label"]) for batch in loader)
facts = {"seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
print(json.dumps(facts | {"samples": samples}))
"""


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
                loaded[name].append(asked(project, LOAD, str(arguments.batch_size)))
        print(f"{arguments.rows:,} rows, {path.stat().st_size / 1e6:.0f} MB of csv; seconds")
        found = common.compare(prepared)
        memory = max(each["MiB"] for each in prepared["train.py"])
        disk = prepared["train.py"][0]["MB"]
        print(f"train.py: {memory:.0f} MiB above the imports, {disk:.1f} MB on disk")
        samples = loaded["train.py"][0]["samples"]
        print(f"an epoch in batches of {arguments.batch_size}, {samples:,} samples; seconds")
        common.write(arguments.json, [found, common.compare(loaded)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
