"""Measures how long training waits for a checkpoint: train.py against Lightning's ModelCheckpoint.

    python benchmarks/checkpoints.py --width 1024 --rounds 6   # a state of 1 GB
    python benchmarks/checkpoints.py --against ../older        # and another checkout's

All train the language model with this width, and take turns (common.py): some steps and a
checkpoint of one, then of the next. The wait is in seconds of a clock and of its thread. A turn
ends when train.py's thread has written its checkpoint.
"""

import sys
from pathlib import Path

import common
from common import HERE, Run

EVERY = 3  # steps between two checkpoints


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=6, help="checkpoints of each")
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.width, arguments.rounds = 16, 2
    options = {
        "width": arguments.width, "layers": 1, "max_length": 32, "batch_size": 1, "epochs": 100,
        "num_workers": 0, "checkpoint_steps": EVERY, "hang_seconds": 3600, "resume": "never",
    }  # fmt: skip
    with common.folder() as folder:
        project = common.generate(folder, task="language-model")
        ours = [common.WATCH, "stalls"]
        ways: dict[str, tuple[Path, list[str]]] = {
            "train.py": (project, ours),
            "Lightning": (project, [str(HERE / "loops.py"), "saving"]),
        }
        if arguments.against:
            checkout = arguments.against.resolve()
            before = common.generate(folder / "before", checkout, task="language-model")
            ways["before"] = (before, ours)

        def start(name: str) -> Run:
            place, program = ways[name]
            words = common.words({**options, "output_dir": f"outputs-{name}"})
            return Run(place, [*program, *words], turns=True)

        starts = {name: lambda name=name: start(name) for name in ways}  # type: ignore[misc]
        # The first turn that is kept takes new memory and writes the best weights, as each run's.
        measured = common.take_turns(starts, arguments.rounds + 1, 0)
        sizes = {}
        for name, (place, _) in ways.items():
            files = place.glob(f"outputs-{name}/**/*.ckpt")
            sizes[name] = max((path.stat().st_size for path in files), default=0)
    found = {}
    for name, turns in measured.items():
        stalls = [each["stall"] for each in turns[1:]]
        mine = measured["train.py"][1:]
        ratio = common.ratio([each["stall"] for each in mine], stalls)
        spent = common.ratio(
            [each["stall of a processor"] for each in mine],
            [each["stall of a processor"] for each in turns[1:]],
        )
        found[name] = {"seconds": stalls, "ratio": ratio, "processor": spent, "bytes": sizes[name]}
        print(
            f"{name:10} waits {common.spread(stalls, 3)} s for {sizes[name]:,} bytes; train.py is "
            f"at {common.shown(ratio)}, of a processor {common.shown(spent)}",
            flush=True,
        )
    common.write(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
