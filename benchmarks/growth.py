"""Measures how time, memory and disk grow with rows, ranks, weights and resumes.

    python benchmarks/growth.py rows      # prepared from csv and parquet; killed in the middle
    python benchmarks/growth.py ranks     # started, checked, saved; then one is lost
    python benchmarks/growth.py weights   # four ranks, sharded, saved, killed; resumed on three
    python benchmarks/growth.py resumes   # of one run, each stopped after a step

Prints the figures of each size. The last line has the exponent with which each grows from the least
size to the largest: 1 is in proportion, 0 is not at all. The status is 1 if a run is not exact.
"""

import hashlib
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import common
import preparation
import stress
from common import Facts, Run
from start import FIRST_STEP, spent

from smlightning_sagemaker.testing.checkpoints import write_bert

LAYERS = 8


def rows(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Facts]]:
    """Prepare so many rows of text; the largest csv is killed in the middle, and prepared again."""
    project = common.generate(folder)
    path, place = folder / "rows.csv", folder / "prepared"
    for size in sizes:
        preparation.write_csv(path, size)
        facts: Facts = {"csv MB": path.stat().st_size / 1e6}
        for name in ("csv", "parquet"):
            source = path if name == "csv" else as_parquet(path)
            found = preparation.asked(project, preparation.PREPARE, str(source), str(place))
            facts[f"{name} s"] = found["seconds"]
            facts[f"{name} µs a row"] = found["seconds"] / size * 1e6
            facts[f"{name} MiB"] = found["MiB"]
            facts[f"{name} prepared MB"] = found["MB"]
            whole = digest(place)
            shutil.rmtree(place)
            if name == "csv" and size == max(sizes):
                run = Run(project, ["-c", preparation.PREPARE, str(source), str(place)])
                time.sleep(found["seconds"] / 2)
                run.kill()
                facts["killed, MB left"] = size_of(place) / 1e6
                preparation.asked(project, preparation.PREPARE, str(source), str(place))
                facts["again equal"] = digest(place) == whole
                shutil.rmtree(place)
        yield size, facts


def as_parquet(path: Path) -> Path:
    """The rows of a csv file in a parquet file, written by stretches."""
    import pyarrow.csv
    import pyarrow.parquet

    target = path.with_suffix(".parquet")
    with (
        pyarrow.csv.open_csv(path) as stretches,
        pyarrow.parquet.ParquetWriter(target, stretches.schema) as writer,
    ):
        for stretch in stretches:
            writer.write_batch(stretch)
    return target


def digest(folder: Path) -> str:
    """Hashes of a folder's data files. Their names contain the time, so they are left out."""
    found = []
    for path in sorted(folder.rglob("*.arrow")):
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return " ".join(sorted(found))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def checkpoint_size(output: Path) -> int:
    """Bytes of the newest checkpoint and its shards, without the best weights, if it has some."""
    paths = sorted((output / "checkpoints").glob("[0-9]*"))
    same = (path for path in paths if path.name[:6] == paths[-1].name[:6])
    return sum(path.stat().st_size for path in same if "-best-" not in path.name)


def ranks(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Facts]]:
    """Start so many ranks of the example on this machine; kill the last one after a checkpoint."""
    project = common.generate(folder)
    Run(project, ["src/train.py", "--max_steps", "3", "--resume", "never"]).succeed()
    options = {"max_steps": 100_000, "epochs": 1000, "log_every": 1, "checkpoint_steps": 5}
    for size in sizes:
        output = folder / f"outputs{size}"
        program = ["src/train.py", *common.words({**options, "output_dir": output})]
        began = time.monotonic()
        run = Run(project, program, size, DIST_CONNECT_SECONDS="300")
        run.wait_for(FIRST_STEP, seconds=900)
        facts = {"first step s": time.monotonic() - began}
        each = [spent(process.pid) for process in run.processes]
        facts["processor s a rank"] = statistics.mean(processor for processor, _ in each)
        facts["MiB a rank"] = max(memory for _, memory in each)
        run.wait_for("\ncheckpoint: ", seconds=900)
        facts["checkpoint s"] = time.monotonic() - began
        lost, began = run.processes[-1], time.monotonic()
        lost.kill()
        statuses = run.wait(300)
        facts["others ended s"] = time.monotonic() - began
        facts["all told"] = all(statuses) and f"rank {size - 1}" in run.text()
        again = Run(project, program, size, DIST_CONNECT_SECONDS="300")
        again.wait_for("\nresume: from ", seconds=900)
        again.kill()
        yield size, facts


def weights(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Facts]]:
    """Shard a BERT of so many MB on four ranks, save, kill; resume on three.

    AdamW has twice as many numbers, so a checkpoint has three times the weights' size.
    """
    project = common.generate(folder)
    common.write_words(folder / "words.csv", 40, 12, right=0.75)
    options = {"dataset": folder / "words.csv", "data_dir": folder / "data", "max_length": 8}
    options |= {"strategy": "fsdp", "batch_size": 3, "checkpoint_steps": 2, "log_every": 1}
    options |= {"max_steps": 1000, "epochs": 1000, "lr": 1e-5}
    for size in sizes:
        width = 16 * round(math.sqrt(size * 1e6 / 4 / (8 * LAYERS)) / 16)
        model, output = folder / f"bert{size}", folder / f"outputs{size}"
        write_bert(model, common.LETTERS, width, num_hidden_layers=LAYERS)
        program = ["src/train.py"]
        program += common.words({**options, "model_name": model, "output_dir": output})
        began = time.monotonic()
        run = Run(project, program, 4)
        run.wait_for(FIRST_STEP, seconds=900)
        facts = {"first step s": time.monotonic() - began}
        run.wait_for("\nstep=2 ", seconds=900)
        began = time.monotonic()
        run.wait_for("\ncheckpoint: ", seconds=900)
        facts["written s"] = time.monotonic() - began
        facts["MiB a rank"] = max(spent(process.pid)[1] for process in run.processes)
        run.processes[1].kill()
        run.wait(300)
        facts["checkpoint MB"] = checkpoint_size(output) / 1e6
        began = time.monotonic()
        again = Run(project, [*program, "--batch_size", "4"], 3)
        again.wait_for("\nresume: from ", seconds=900)
        again.wait_for("\nstep=", seconds=900)
        facts["resumed on 3, s"] = time.monotonic() - began
        again.kill()
        for path in (model, output):
            shutil.rmtree(path)
        yield size, facts


STOPPING = """
import model, os, signal
model.Model.on_train_batch_end = lambda *batch: os.kill(os.getpid(), signal.SIGTERM)
"""


def resumes(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Facts]]:
    """Stop a run after each step, so many times; the figures are of the ten starts before."""
    common.write_words(folder / "words.csv", 120, 12, right=0.75)
    options = {**stress.OPTIONS, "batch_size": 2, "epochs": 1 + max(sizes) // 100}
    _, whole = stress.Job(folder / "whole", 1, options).complete()
    place, seconds = folder / "stopped", []
    for number in range(1, max(sizes) + 1):
        job = stress.Job(place, 1, options, STOPPING)
        job.wait(300)
        assert job.statuses() == [143], job.text
        seconds.append(time.monotonic() - job.started)
        if number in sizes:
            facts = {"start to end s": statistics.median(seconds[-10:])}
            facts["checkpoint kB"] = checkpoint_size(place / "outputs") / 1e3
            if number == max(sizes):
                _, end = stress.Job(place, 1, options).complete()
                facts["equal"] = common.difference(whole, end) == 0.0
            yield number, facts


KINDS = {
    "rows": (rows, [5_000_000, 10_000_000, 20_000_000], [1000, 2000]),
    "ranks": (ranks, [4, 12, 24], [2, 3]),
    "weights": (weights, [500, 1000, 2000], [2, 4]),
    "resumes": (resumes, [50, 100, 200], [2, 4]),
}


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--sizes", type=int, nargs="+", help="rows, ranks, MB, resumes")
    arguments = parser.parse_args()
    measure, large, small = KINDS[arguments.kind]
    sizes = sorted(arguments.sizes or (small if arguments.small else large))
    found: dict[int, Facts] = {}
    with common.folder() as folder:
        for size, facts in measure(sizes, folder):
            found[size] = facts
            figures = (f"{name} {value:.4g}" for name, value in facts.items())
            print(f"{size:,} {arguments.kind}: {', '.join(figures)}", flush=True)
    least, largest = found[sizes[0]], found[sizes[-1]]
    growth = {
        name: math.log(largest[name] / value) / math.log(sizes[-1] / sizes[0])
        for name, value in least.items()
        if sizes[0] < sizes[-1] and value > 0 and largest.get(name, 0) > 0
    }
    figures = (f"{name} {value:.2f}" for name, value in growth.items())
    print(f"exponents: {', '.join(figures)}")
    common.write(arguments.json, json.loads(json.dumps(found)))
    exact = ("again equal", "all told", "equal")
    return int(not all(facts.get(name, True) for facts in found.values() for name in exact))


if __name__ == "__main__":
    sys.exit(main())
