"""Predict a number: `python src/predict.py 0.5,-1.0,0.25,2.0`."""

import argparse
import sys
from pathlib import Path

import torch

import model
from options import SAMPLE
from smlightning.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python src/predict.py", description=__doc__)
    parser.add_argument("row", nargs="*", help="features of one row, separated by commas")
    parser.add_argument("--model_dir", type=Path, default=Path("outputs/model"))
    parser.add_argument("--sample", action="store_true", help=f"predict {SAMPLE}")
    args = parser.parse_args()
    rows = args.row + [SAMPLE] * args.sample
    try:
        net, *_ = model.load(args.model_dir)
        with torch.inference_mode():
            for row in rows:
                print(row, net(torch.tensor([float(x) for x in row.split(",")])).item(), sep="\t")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
