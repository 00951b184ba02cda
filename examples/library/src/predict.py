"""Predict the number of each molecule: `python src/predict.py CCO "C1=CC=CC=C1"`.

SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`: a request is
a JSON list of SMILES, and the answer a list of numbers.
"""

import json
import sys
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning import predictions
from smlightning.errors import UserError, run_command


def model_fn(model_dir: str | Path) -> Any:
    import model

    return model.load(Path(model_dir))


def input_fn(body: str | bytes, content_type: str) -> list[str]:
    found = json.loads(body)
    return [str(smiles) for smiles in (found if isinstance(found, list) else [found])]


def predict_fn(molecules: list[str], trained: Any) -> list[float]:
    """A number for each SMILES.

    Raises:
        UserError: one of them is no molecule.
    """
    import torch
    from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader

    from data import molecule

    try:
        points = [MoleculeDatapoint.from_smi(molecule(smiles)) for smiles in molecules]
    except ValueError as error:
        raise UserError(str(error), "give SMILES, as in CCO") from None
    loader = build_dataloader(MoleculeDataset(points), shuffle=False, drop_last=False)
    with torch.inference_mode():
        return [number for batch in loader for number in trained(batch.bmg).flatten().tolist()]


def output_fn(numbers: list[float], accept: str) -> str:
    return json.dumps(numbers)


def main() -> int:
    arguments = predictions.parser(__doc__, "SMILES", SAMPLE).parse_args()

    def answer() -> None:
        molecules = [*predictions.texts(arguments)]
        numbers = predict_fn(molecules, model_fn(arguments.model_dir))
        for smiles, number in zip(molecules, numbers, strict=True):
            print(smiles, f"{number:.4f}", sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
