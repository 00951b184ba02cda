"""Compares the steps of train.py with the same training by other means.

    python benchmarks/steps_per_second.py --rounds 7 --steps 200 --chart performance.png
    python benchmarks/steps_per_second.py --ranks 2 --against ../older   # and another checkout's
    python benchmarks/steps_per_second.py --variants train.py "by hand" --task language-model

loops.py has the other means. All train the network of `make demo` in global batches of 64, five
steps at a time in turn (common.py), in processes with one thread. Further options are train.py's.
The ratio of processor seconds is less disturbed by other programs than that of the clock.
"""

import os
import sys
from pathlib import Path
from typing import Any

import common
from common import HERE, ROOT, Facts, Run

OTHERS = ("stock parts", "by hand", "bare Trainer", "Lightning")
OURS = ("train.py", "before")
GLOBAL_BATCH = 64


def write_chart(path: Path, facts: dict[str, Any], title: str) -> None:
    """Draw train.py's step divided by the others', with intervals.

    Args:
        facts: those of `report`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    names = [name for name in facts if name != "step train.py"]
    values, low, high = zip(*(facts[name]["ratio"] for name in names), strict=True)
    bars = [
        [value - end for value, end in zip(values, low, strict=True)],
        [end - value for value, end in zip(values, high, strict=True)],
    ]
    axis.axvline(1, color="black", linewidth=1)
    labels = [name.removeprefix("step ") for name in names]
    axis.barh(labels, values, 0.7, xerr=bars, capsize=3, color="#31608f")
    for y, value in enumerate(values):
        axis.text(0.01, y, f"{value:.3f}", va="center", fontsize=9, color="white")
    axis.invert_yaxis()
    label = (
        "train.py's step divided by theirs, with its 95 % interval (below 1: train.py is faster)"
    )
    axis.set_xlabel(label, fontsize=9)
    axis.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)


class Comparison:
    """The trainings of one world size, and their measurements of all rounds."""

    def __init__(self, projects: dict[str, Path], ranks: int, options: dict[str, Any]) -> None:
        self.projects, self.ranks, self.options = projects, ranks, options
        self.turns: dict[str, list[Facts]] = {name: [] for name in projects}

    def prepare(self) -> None:
        """Let the data be prepared and all files be read once."""
        for name in set(OURS) & set(self.projects):
            run = self._start(name, -1)
            run.reported()
            run.kill()

    def run(self, turns: int, seed: int) -> None:
        """Run one round."""
        starts = {
            name: lambda name=name: self._start(name, seed)  # type: ignore[misc]
            for name in self.projects
        }
        measured = common.take_turns(starts, turns, seed)
        for name in self.projects:
            self.turns[name] += measured[name]

    def _start(self, name: str, seed: int) -> Run:
        program = [str(HERE / "loops.py"), name]
        if name in OURS:
            program = [common.WATCH, "turns"]
        output = {"output_dir": f"outputs-{name.replace(' ', '-')}-{self.ranks}-{seed}"}
        words = common.words({**self.options, **output})
        return Run(self.projects[name], [*program, *words], self.ranks, turns=True)

    def report(self) -> dict[str, Any]:
        """Print a line for each training; the facts for the JSON report."""
        facts: dict[str, Any] = {}
        mine = self.turns["train.py"]
        for name, turns in self.turns.items():
            milliseconds = 1000 * sum(each["seconds"] for each in turns) / len(turns) / common.TURN
            clock, processor = (
                common.ratio([each[kind] for each in mine], [each[kind] for each in turns])
                for kind in ("seconds", "processor")
            )
            facts[f"step {name}"] = {"ms": milliseconds, "ratio": clock, "processor": processor}
            print(
                f"step {name:12} {milliseconds:9.2f} ms   train.py divided by it: "
                f"{common.shown(clock)}, of a processor {common.shown(processor)}",
                flush=True,
            )
        return facts


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200, help="steps in a round")
    parser.add_argument("--variants", nargs="+", default=["train.py", *OTHERS])
    parser.add_argument("--task", default="text-classification")
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    parser.add_argument("--chart", type=Path, help="PNG or SVG to write")
    arguments, more = parser.parse_known_args()
    if arguments.small:
        arguments.ranks, arguments.rounds, arguments.steps = [1], 1, 10
    found: dict[str, Any] = {}
    with common.folder() as folder:
        project = common.generate(folder, task=arguments.task)
        projects = dict.fromkeys(arguments.variants, project)
        if arguments.against:
            checkout = arguments.against.resolve()
            projects["before"] = common.generate(folder / "before", checkout, task=arguments.task)
        for ranks in arguments.ranks:
            options: dict[str, Any] = {"epochs": 100, "num_workers": 0, "hang_seconds": 3600}
            if arguments.task == "text-classification":
                options["batch_size"] = GLOBAL_BATCH // ranks
            given = zip(more[::2], more[1::2], strict=True)
            options |= {name.removeprefix("--"): value for name, value in given}
            comparison = Comparison(projects, ranks, {**options, "resume": "never"})
            if not arguments.small:
                comparison.prepare()
            for number in range(arguments.rounds):
                comparison.run(max(2, arguments.steps // common.TURN), number)
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
            title = f"{ranks} rank{'s' * (ranks > 1)}"
            print(f"{title}, {arguments.rounds} rounds of {arguments.steps} steps")
            found[title] = comparison.report()
            common.write(arguments.json, found)
            if arguments.chart:
                rounds = f"{title}, {arguments.rounds} × {arguments.steps} steps, in turn"
                write_chart(arguments.chart, found[title], rounds)
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
