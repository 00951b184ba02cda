"""Compares the steps of train.py with the same training by other means.

    python benchmarks/steps_per_second.py --rounds 7 --steps 200
    python benchmarks/steps_per_second.py --ranks 2 --against ../older   # and another checkout's

loops.py has the other means. All train the network of `make demo` in global batches of 64, five
steps at a time in turn (common.py), in processes with one thread. Further options are train.py's.
The ratio of processor seconds is less disturbed by other programs than that of the clock.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import common
from common import HERE, Facts, Run

OTHERS = ("by hand", "bare Trainer")
GLOBAL_BATCH = 64


def start(name: str, project: Path, ranks: int, options: dict[str, Any], number: int) -> Run:
    """Start a way to train in a round, which waits for its first turn."""
    program = [str(HERE / "loops.py"), name]
    if name not in OTHERS:
        program = [common.WATCH, "turns"]
    output = {"output_dir": f"outputs-{name.replace(' ', '-')}-{number}"}
    words = common.words({**options, **output})
    return Run(project, [*program, *words], ranks, turns=True)


def main() -> int:
    parser = common.parser_of(__doc__, compares=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200, help="steps in a round")
    parser.add_argument("--variants", nargs="+", choices=OTHERS, default=OTHERS)
    arguments, more = parser.parse_known_args()
    if arguments.small:
        arguments.rounds, arguments.steps = 1, 10
    options: dict[str, Any] = {"epochs": 100, "num_workers": 0, "hang_seconds": 3600}
    options["batch_size"] = GLOBAL_BATCH // arguments.ranks
    given = zip(more[::2], more[1::2], strict=True)
    options |= {name.removeprefix("--"): value for name, value in given}
    options["resume"] = "never"
    with common.folder() as folder:
        projects = common.projects(folder, arguments.against)
        ways = {**projects, **dict.fromkeys(arguments.variants, projects["train.py"])}
        for name, project in projects.items():  # prepare the data, and read all files once
            run = start(name, project, arguments.ranks, options, -1)
            run.reported()
            run.kill()
        measured: dict[str, list[Facts]] = {name: [] for name in ways}
        for number in range(arguments.rounds):
            starts = {
                name: partial(start, name, project, arguments.ranks, options, number)
                for name, project in ways.items()
            }
            turns = common.take_turns(starts, max(2, arguments.steps // common.TURN), number)
            for name in ways:
                measured[name] += turns[name]
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    ranks = f"{arguments.ranks} rank{'s' * (arguments.ranks > 1)}"
    title = f"{ranks}, {arguments.rounds} × {arguments.steps} steps, in turn"
    print(f"{title}; milliseconds of a step")
    found = common.compare(measured, common.TURN / 1000)
    common.write(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
