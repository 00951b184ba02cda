"""Measures how long training waits for a checkpoint: train.py against Lightning's ModelCheckpoint.

    python benchmarks/checkpoints.py --width 2304 --rounds 6   # a state of 1 GB
    python benchmarks/checkpoints.py --against ../older        # and another checkout's

All train a BERT of this width, and take turns (common.py): some steps and a
checkpoint of one, then of the next. The wait is in seconds of a clock and of its thread. A turn
ends when train.py's thread has written its checkpoint.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import common
from common import HERE, Run

from smlightning_sagemaker.testing.checkpoints import write_bert

OPTIONS = {
    "batch_size": 1, "epochs": 100, "num_workers": 0,
    "checkpoint_steps": 3, "hang_seconds": 3600, "resume": "never",
}  # fmt: skip


def start(project: Path, program: list[str], name: str, model: str) -> Run:
    options: dict[str, Any] = {**OPTIONS, "model_name": model, "output_dir": f"outputs-{name}"}
    return Run(project, [*program, *common.words(options)], turns=True)


def main() -> int:
    parser = common.parser_of(__doc__, compares=True)
    parser.add_argument("--width", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.small:
        arguments.width, arguments.rounds = 16, 2
    with common.folder() as folder:
        projects = common.projects(folder, arguments.against)
        model = write_bert(folder / "bert", common.LETTERS, hidden=arguments.width)
        programs = {name: [common.WATCH, "stalls"] for name in projects}
        projects["Lightning"] = projects["train.py"]
        programs["Lightning"] = [str(HERE / "loops.py"), "saving"]
        starts = {
            name: partial(start, project, programs[name], name, model)
            for name, project in projects.items()
        }
        # The first turn that is kept takes new memory and writes the best weights, as each run's.
        measured = common.take_turns(starts, arguments.rounds + 1, 0)
        for name, project in projects.items():
            files = [*project.glob(f"outputs-{name}/**/*.ckpt")]
            print(f"{name:12} writes {max(path.stat().st_size for path in files):,} bytes")
    found = common.compare({name: turns[1:] for name, turns in measured.items()})
    common.write(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
