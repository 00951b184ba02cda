"""A network's outline: its modules, whose parameters have a shape and no memory."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

_is_built = ContextVar("outline", default=False)  # whether this code runs in `outline`


@contextlib.contextmanager
def outline() -> Iterator[None]:
    """Put every parameter that a module registers in the body on torch's meta device.

    Unlike with ``torch.device("meta")``, buffers and metrics keep their values, and an
    ``__init__`` may read a tensor's values.
    """
    # Its documentation allows a return value; its annotation does not.
    hook = register_module_parameter_registration_hook(_without_memory)  # type: ignore[arg-type]
    building = _is_built.set(True)
    try:
        yield
    finally:
        _is_built.reset(building)
        hook.remove()


def builds_outline() -> bool:
    """Whether this code runs in `outline`, where weights need not be read."""
    return _is_built.get()


def _without_memory(
    module: nn.Module, name: str, parameter: nn.Parameter | None
) -> nn.Parameter | None:
    """The meta parameter to register instead; the same one if it is registered again."""
    if parameter is None or parameter.is_meta:
        return parameter
    known = vars(parameter).get("outline")
    if known is None:
        shape = torch.empty_like(parameter, device="meta")
        known = nn.Parameter(shape, requires_grad=parameter.requires_grad)
        parameter.outline = known  # type: ignore[attr-defined]
    return known
