"""A rank of the contract's tests on a workstation with one GPU."""

import os
from collections.abc import Callable
from typing import Any

import torch

from smlightning.cluster import session
from smlightning.testing import recording

Write = Callable[[dict[str, Any]], Any]


def iterate(write: Write, options: dict[str, Any]) -> None:
    """Go through the loaders as the contract does; records the device that the rank has chosen."""
    torch.cuda.device_count = visible_gpus
    recording.iterate(lambda seen: None, options, seed=0)
    write({"device": session.current_cluster().device})


def visible_gpus() -> int:
    """As CUDA counts a single GPU: none where the variable is set to nothing."""
    return 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else 1
