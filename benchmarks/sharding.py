"""Whether sharded training has DDP's numbers, on real data, in both tasks.

    OMP_NUM_THREADS=1 python benchmarks/sharding.py --steps 50 --ranks 2 4
    OMP_NUM_THREADS=1 python benchmarks/sharding.py --steps 8 --ranks 2 --tasks language-model
    OMP_NUM_THREADS=1 python benchmarks/sharding.py --tasks language-model --double --most 1e-7

Each task trains with DDP and with FSDP on as many ranks, the same samples and dropout; on four or more
ranks also in two replicas (`--shard_size`). Of every logged step the loss is compared, and of the last
checkpoint every weight. Further options are train.py's. The status is 1 if a difference is above --most.

With --double all of it is computed in float64: a difference of rounding alone, as of the order in which
ranks' numbers are added, is far smaller than in float32, and any other stays what it is.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cookiecutter.main import cookiecutter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(next(ROOT.glob("{{*}}/vendor/smlightning"))))
TASKS = ("text-classification", "language-model")


def train(project: Path, name: str, ranks: int, options: list[str]) -> Path:
    """Run train.py on so many ranks of this machine; its folder of results."""
    output = project / name
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {**os.environ, "PYTHONPATH": str(project / "vendor" / "smlightning")}
    ended = subprocess.run(
        [sys.executable, *launch, "src/train.py", *options, "--output_dir", str(output)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        sys.exit(ended.stdout + ended.stderr)
    return output


def losses(output: Path) -> dict[int, float]:
    """The training loss of each step that was logged."""
    with (output / "curves.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    return {int(row["step"]): float(row["train/loss"]) for row in rows}


def weights(output: Path) -> dict:
    """Of the last checkpoint; each whole."""
    from smlightning.checkpoints import files, reader

    path = files.newest(output / "checkpoints")
    assert path, output
    return reader.read_here(path)["state_dict"]


def compute_in_double(project: Path) -> None:
    """Have a generated project's train.py build networks of float64.

    Lightning's ``64-true`` is not for its ModelParallelStrategy.
    """
    path = project / "src" / "train.py"
    text = path.read_text()
    assert text.count("\ndef train(") == 1
    lines = "import torch\n\ntorch.set_default_dtype(torch.float64)\n\n\n"
    path.write_text(text.replace("\ndef train(", f"\n{lines}def train("))


def compare(one: Path, other: Path) -> tuple[int, float, float, str]:
    """The number of steps, the largest difference of a loss and of a weight, and that weight's name."""
    first, second = losses(one), losses(other)
    assert first.keys() == second.keys() and first
    loss = max(abs(first[step] - second[step]) for step in first)
    first_weights, second_weights = weights(one), weights(other)
    assert first_weights.keys() == second_weights.keys()
    gaps = {
        name: (first_weights[name] - second_weights[name]).abs().max().item()
        for name in first_weights
    }
    worst = max(gaps, key=gaps.__getitem__)
    return len(first), loss, gaps[worst], worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--most", type=float, default=1e-5)
    parser.add_argument("--double", action="store_true", help="compute in float64")
    arguments, more = parser.parse_known_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="sharding-") as folder:
        for task in arguments.tasks:
            answers = {"task": task, "project_slug": task}
            project = Path(
                cookiecutter(str(ROOT), no_input=True, output_dir=folder, extra_context=answers)
            )
            if arguments.double:
                compute_in_double(project)
            for ranks in arguments.ranks:
                steps = ["--max_steps", str(arguments.steps), "--log_every", "1", "--epochs", "99"]
                options = [*steps, "--batch_size", str(32 // ranks), *more]
                ddp = train(project, f"ddp{ranks}", ranks, options)
                ways = {"fsdp": ["--strategy", "fsdp"]}
                if ranks >= 4:
                    replica = str(ranks // 2)
                    ways["two replicas"] = ["--strategy", "fsdp", "--shard_size", replica]
                for way, strategy in ways.items():
                    output = train(project, f"{way}{ranks}", ranks, [*options, *strategy])
                    count, loss, weight, name = compare(ddp, output)
                    is_near = max(loss, weight) <= arguments.most and count == arguments.steps
                    good = good and is_near
                    print(
                        f"{'ok' if is_near else 'FAILED'} {task}, {ranks} ranks, {way}: {count} steps, "
                        f"largest difference of a loss {loss:.2e}, of a weight {weight:.2e} ({name})",
                        flush=True,
                    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
