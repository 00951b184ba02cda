"""Continue a text: `python src/predict.py "to be or "`."""

import argparse
import sys
from pathlib import Path

import torch

import model
from options import SAMPLE
from smlightning.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python src/predict.py", description=__doc__)
    parser.add_argument("text", nargs="*", help="texts to continue")
    parser.add_argument("--model_dir", type=Path, default=Path("outputs/model"))
    parser.add_argument("--sample", action="store_true", help=f"continue {SAMPLE!r}")
    parser.add_argument("--length", type=int, default=20, help="bytes to add")
    args = parser.parse_args()
    try:
        net, *_ = model.load(args.model_dir)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for text in args.text + [SAMPLE] * args.sample:
        known = list(text.encode())
        with torch.inference_mode():
            for _ in range(args.length):
                known.append(int(net(torch.tensor([known]))[0, -1].argmax()))
        print(repr(bytes(known).decode(errors="replace")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
