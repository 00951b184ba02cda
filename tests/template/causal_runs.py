"""The code of a rank in a test of causal models: several trainings, one after the other.

They share a process, which imports transformers once.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the trainings of the argument: a JSON list of name, port of rank 0, options.

    `resume` is a pattern, since the name of a checkpoint holds its checksum.
    """
    import train
    from smlightning.reports import curves
    from smlightning_sagemaker.testing.recording import close_unseen

    curves.save_figure = close_unseen
    trainings: list[tuple[str, int, dict[str, Any]]] = json.loads(sys.argv[1])
    for name, port, options in trainings:
        os.environ["MASTER_PORT"] = str(port)
        print(f"run of {name}", flush=True)
        if "resume" in options:
            (options["resume"],) = map(str, Path().glob(options["resume"]))
        train.train(train.Options(**options, output_dir=name))
