"""Rate windows: `python src/predict.py FILE.npy ...`, each an array (N, 128); high is faulty.

SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`: a request is
a JSON list of windows, each a list of 128 numbers.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from options import SAMPLE
from smlightning import predictions
from smlightning.errors import UserError, root_cause, run_command


def model_fn(model_dir: str | Path) -> Any:
    import model

    (net,) = model.load(Path(model_dir))
    return net


def input_fn(body: bytes | str, content_type: str) -> np.ndarray:
    return checked("the request", json.loads(body))


def predict_fn(windows: np.ndarray, trained: Any) -> list[float]:
    import torch

    with torch.inference_mode():
        return trained(torch.from_numpy(windows)).tolist()


def output_fn(errors: list[float], accept: str) -> str:
    return json.dumps(errors)


def checked(name: str, values: Any) -> np.ndarray:
    """(N, 128) float32."""
    try:
        windows: Any = np.asarray(values, np.float32)
    except ValueError:
        windows = np.zeros(0)
    if windows.ndim != 2 or windows.shape[1] != 128:
        raise UserError(f"{name} is not an array of numbers (N, 128)", "give windows of 128")
    return windows


def read(arguments: Any) -> dict[str, np.ndarray]:
    """The windows of each file, and the sample's: a tone of so many turns."""
    given = {}
    for name in arguments.given:
        try:
            given[name] = checked(name, np.load(name, allow_pickle=False))
        except (OSError, ValueError) as error:
            problem = f"{name} could not be read ({root_cause(error)})"
            raise UserError(problem, "give a file of numpy.save") from None
    if arguments.sample:
        tone = np.sin(2 * np.pi * float(arguments.sample) * np.arange(128) / 128)
        given["sample"] = checked("sample", [tone])
    return given


def main() -> int:
    arguments = predictions.parser(__doc__, "file", SAMPLE).parse_args()

    def answer() -> None:
        trained = model_fn(arguments.model_dir)
        for name, windows in read(arguments).items():
            for error in predict_fn(windows, trained):
                print(name, f"{error:.4f}", sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
