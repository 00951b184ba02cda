"""Measures how fast data is prepared, and how fast batches come.

    python benchmarks/preparation.py --rows 1000000 3000000 --rounds 5
    python benchmarks/preparation.py --against ../older     # and another checkout's

A project's Data prepares rows in a new process each time: seconds, peak memory above the imports,
bytes on disk. Loaders then yield an epoch of the example's batches: Data's loader, and `datasets`
with a collator that pads. Each uses one core.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import common
from common import Run

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


PEAK = """
def peak():  # only of this process: ru_maxrss starts with its parent's
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
PREPARE = (
    PEAK
    + """
import json, os, sys, time
import data, datasets
made = data.Data(sys.argv[1], data_dir=sys.argv[2])
before, began, spent = peak(), time.perf_counter(), time.process_time()
made.prepare_data()
facts = {"seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
facts["MiB"] = (peak() - before) / 1024
places = [os.path.join(at, name) for at, _, names in os.walk(made.path) for name in names]
print(json.dumps(facts | {"MB": sum(map(os.path.getsize, places)) / 1e6}))
"""
)
LOAD = """
import json, sys, time
sys.argv[1:1] = ["stock parts"]  # which loops.py reads
import loops
made = loops.Data(batch_size=int(sys.argv[3]), num_workers=0)
made.prepare_data()
made.setup()
loader = loops.stock_loader(made) if sys.argv[2] == "datasets" else made.train_dataloader()
began, spent = time.perf_counter(), time.process_time()
samples = sum(len(batch["label"]) for batch in loader)
facts = {"seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
print(json.dumps(facts | {"samples": samples}))
"""


def asked(project: Path, script: str, *words: str) -> dict[str, float]:
    """The facts in the last line of a script's output."""
    run = Run(project, ["-c", script, *words]).succeed()
    return json.loads(run.text().splitlines()[-1])


def compare(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Print the ratios of the first to the others, in seconds of a clock and of a processor."""
    names = [*found]
    kept: dict[str, Any] = {}
    for name in names[1:]:
        for key in ("seconds", "processor"):
            mine, theirs = ([each[key] for each in found[one]] for one in (names[0], name))
            kept[f"{key} {name}"] = common.ratio(mine, theirs)
        clock, spent = kept[f"seconds {name}"], kept[f"processor {name}"]
        print(
            f"         Data takes {common.shown(clock)} of the time of {name}, "
            f"{common.shown(spent)} of a processor's"
        )
    return kept


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.rows, arguments.rounds, arguments.batch_size = [1000], 1, [512]
    kept: dict[str, Any] = {}
    with common.folder() as folder:
        projects = {"Data": common.generate(folder)}
        if arguments.against:
            before = common.generate(folder / "before", arguments.against.resolve())
            projects["before"] = before
        for rows in arguments.rows:
            path = folder / "rows.csv"
            write_csv(path, rows)
            found: dict[str, list[dict[str, float]]] = {name: [] for name in projects}
            for _ in range(arguments.rounds):
                for name, project in projects.items():
                    place = folder / "prepared"
                    found[name].append(asked(project, PREPARE, str(path), str(place)))
                    shutil.rmtree(place)
            print(f"{rows:,} rows of {WORDS} words, {path.stat().st_size / 1e6:.0f} MB of csv")
            for name, facts in found.items():
                seconds = common.spread([each["seconds"] for each in facts])
                memory, disk = max(each["MiB"] for each in facts), facts[0]["MB"]
                print(
                    f"{name:8} {seconds} s, {memory:.0f} MiB above the imports, "
                    f"{disk:.1f} MB on disk"
                )
            kept[f"{rows} rows"] = {**found, "ratios": compare(found)}
        for batch_size in arguments.batch_size:
            ways = {"Data": projects["Data"], "datasets": projects["Data"], **projects}
            found = {name: [] for name in ways}
            for _ in range(arguments.rounds):
                for name, project in ways.items():
                    found[name].append(asked(project, LOAD, name, str(batch_size)))
            print(
                f"batches of {batch_size} of the example, {found['Data'][0]['samples']:,} samples"
            )
            for name, facts in found.items():
                speeds = [each["samples"] / each["seconds"] for each in facts]
                print(f"{name:8} {common.spread(speeds, 0)} samples/s")
            kept[f"batches of {batch_size}"] = {**found, "ratios": compare(found)}
    common.write(arguments.json, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
