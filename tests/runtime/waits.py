"""Find operations for which the host would wait for a GPU, without a GPU."""

from typing import Any

import torch
from marked_tensors import WAITING
from torch.utils._python_dispatch import TorchDispatchMode


class Waits(TorchDispatchMode):
    """Names of the operations in the body whose result or shape the host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        by_mask = name.startswith(("index", "_index")) and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for part in args
            if isinstance(part, list | tuple)
            for index in part
        )
        if name in WAITING or by_mask:
            self.names.append(name)
        return func(*args, **(kwargs or {}))
