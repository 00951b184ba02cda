"""What clipping by a norm in float64 costs, against torch's clip_grad_norm_, and how far off that one is.

    OMP_NUM_THREADS=1 python benchmarks/clipping.py --rounds 30

In turns, on gradients of the shapes of both tasks' own networks; milliseconds of processor time a step.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(next(ROOT.glob("{{*}}/vendor/smlightning"))))
import torch  # noqa: E402

from smlightning.training.optimizers import clip_gradients, gradient_norm  # noqa: E402

# name: the largest embedding, and how often a matrix and a vector of that width
SHAPES = {
    "text classification": ((32750, 32), 12, 128),
    "language model": ((65522, 96), 12, 384),
}


def parameters(embedding: tuple[int, int], count: int, width: int) -> list[torch.nn.Parameter]:
    shapes = [embedding, *[(width, 96)] * count, *[(width,)] * count]
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    ways = {"torch": torch.nn.utils.clip_grad_norm_, "ours": clip_gradients}
    for name, shapes in SHAPES.items():
        given = parameters(*shapes)
        gradients = [parameter.grad for parameter in given if parameter.grad is not None]
        exact, theirs = gradient_norm(gradients), torch.nn.utils.get_total_norm(gradients)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(arguments.rounds + 1):
            for way, clip in ways.items():
                started = time.process_time()
                clip(given, 1e9)
                spent[way].append(1e3 * (time.process_time() - started))
        middle = {way: statistics.median(seconds[1:]) for way, seconds in spent.items()}
        print(
            f"{name}, {sum(g.numel() for g in gradients) / 1e6:.1f} M numbers: torch {middle['torch']:.2f} ms, "
            f"ours {middle['ours']:.2f} ms; torch's norm is off by {abs(theirs / exact - 1).item():.1e}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
