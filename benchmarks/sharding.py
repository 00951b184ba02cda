"""Compares the numbers of FSDP with those of DDP, on real data.

    OMP_NUM_THREADS=1 python benchmarks/sharding.py --steps 50 --ranks 2 4
    OMP_NUM_THREADS=1 python benchmarks/sharding.py --double --most 1e-7

The project trains with DDP and FSDP on the same ranks, samples and dropout; on four or more ranks
also in two replicas (`--shard_size`). Compares the loss of every logged step, and every weight of
the last checkpoint. Further options are train.py's. The status is 1 for a difference above --most.

--double computes in float64: differences by rounding become far smaller, others stay.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import common
from common import Run


def train(project: Path, name: str, ranks: int, hosts: bool, options: list[str]) -> Path:
    """Run train.py on ranks of this machine; its folder of results."""
    output = project / name
    program = ["src/train.py", *options, "--output_dir", str(output)]
    Run(project, program, ranks, hosts).succeed()
    return output


def losses(output: Path) -> dict[int, float]:
    """The training loss of each step that was logged."""
    with (output / "curves.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    return {int(row["step"]): float(row["train/loss"]) for row in rows}


def compute_in_double(project: Path) -> None:
    """Have a generated project's train.py build networks of float64.

    Lightning's ModelParallelStrategy does not take ``64-true``.
    """
    path = project / "src" / "train.py"
    text = path.read_text()
    assert text.count("\ndef train(") == 1
    lines = "import torch\n\ntorch.set_default_dtype(torch.float64)\n\n\n"
    path.write_text(text.replace("\ndef train(", f"\n{lines}def train("))


def compare(one: Path, other: Path) -> tuple[int, float, float, str]:
    """The number of steps, the largest difference of a loss and a weight, and the weight's name."""
    first, second = losses(one), losses(other)
    assert first.keys() == second.keys() and first
    weights, others = (common.checkpoint(each)["state_dict"] for each in (one, other))
    assert weights.keys() == others.keys()
    gaps = {name: common.difference(weights[name], others[name]) for name in weights}
    worst = max(gaps, key=gaps.__getitem__)
    return len(first), common.difference(first, second), gaps[worst], worst


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--most", type=float, default=1e-5)
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--hosts", action="store_true", help="each rank a host: all share one GPU")
    arguments, more = parser.parse_known_args()
    if arguments.small:
        arguments.steps, arguments.ranks = 3, [2]
    found: list[dict[str, Any]] = []
    with common.folder() as folder:
        project = common.generate(folder)
        if arguments.double:
            compute_in_double(project)
        for ranks in arguments.ranks:
            steps = ["--max_steps", str(arguments.steps), "--log_every", "1", "--epochs", "99"]
            options = [*steps, "--batch_size", str(32 // ranks), *more]
            ddp = train(project, f"ddp{ranks}", ranks, arguments.hosts, options)
            ways = {"fsdp": ["--strategy", "fsdp"]}
            if ranks >= 4:
                replica = str(ranks // 2)
                ways["two replicas"] = ["--strategy", "fsdp", "--shard_size", replica]
            for way, strategy in ways.items():
                chosen = [*options, *strategy]
                output = train(project, f"{way}{ranks}", ranks, arguments.hosts, chosen)
                count, loss, weight, name = compare(ddp, output)
                is_near = max(loss, weight) <= arguments.most and count == arguments.steps
                title = f"{ranks} ranks, {way}"
                found.append({"run": title, "near": is_near, "loss": loss, "weight": weight})
                print(
                    f"{'ok' if is_near else 'FAILED'} {title}: {count} steps, largest "
                    f"difference of a loss {loss:.2e}, of a weight {weight:.2e} ({name})",
                    flush=True,
                )
    common.write(arguments.json, found)
    return int(not all(each["near"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
