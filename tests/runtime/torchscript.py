"""A checkpoint's place may hold a TorchScript archive, which torch.jit.load would run."""

import warnings
from pathlib import Path

import torch


def write_archive(path: Path) -> None:
    """Write the archive of a module that returns its input."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13: TorchScript is deprecated
        torch.jit.script(torch.nn.Identity()).save(str(path))
