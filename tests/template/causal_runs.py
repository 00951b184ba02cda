"""What a rank does in the test of a causal model's trainings: all of them, one after the other.

A process that has imported transformers once does it for all.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """The argument: a list of (name, port to meet at, options), as JSON.

    A checkpoint to resume from is a pattern there, since its name holds its checksum.
    """
    import train
    from smlightning.reports import curves
    from smlightning.testing.recording import close_unseen

    curves.save_figure = close_unseen
    trainings: list[tuple[str, int, dict[str, Any]]] = json.loads(sys.argv[1])
    for name, port, options in trainings:
        os.environ["MASTER_PORT"] = str(port)
        print(f"run of {name}", flush=True)
        if "resume" in options:
            (options["resume"],) = map(str, Path().glob(options["resume"]))
        train.train(train.Options(**options, output_dir=name))
