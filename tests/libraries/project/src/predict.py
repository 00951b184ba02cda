"""The library's answer to the first batch of the test: `python src/predict.py --sample`."""

import json
import sys
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning import predictions
from smlightning.errors import run_command


def model_fn(model_dir: str | Path) -> Any:
    import model

    return model.load(Path(model_dir))


def main() -> int:
    arguments = predictions.parser(__doc__, "text", SAMPLE).parse_args()

    def answer() -> None:
        import parts
        import torch

        with torch.inference_mode():
            print(json.dumps(parts.answer(model_fn(arguments.model_dir))))

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
