"""Classify images: `python src/predict.py IMAGE.npy`."""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import model
from options import SAMPLE
from smlightning.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python src/predict.py", description=__doc__)
    parser.add_argument("image", nargs="*", type=Path, help="npy files, each (H, W) of uint8")
    parser.add_argument("--model_dir", type=Path, default=Path("outputs/model"))
    parser.add_argument("--sample", action="store_true", help="classify a drawn cross")
    args = parser.parse_args()
    images = {str(path): np.load(path) for path in args.image}
    if args.sample:
        images["cross"] = np.array([[255 * (pixel == "#") for pixel in line] for line in SAMPLE])
    try:
        net, *_ = model.load(args.model_dir)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with torch.inference_mode():
        for name, image in images.items():
            probabilities = net(torch.tensor(image, dtype=torch.float32)[None, None] / 255).softmax(
                1
            )[0]
            print(
                name, f"class {int(probabilities.argmax())}", f"{probabilities.max():.3f}", sep="\t"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
