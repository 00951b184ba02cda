"""The modules of a network that FSDP2 gathers one by one."""

from collections.abc import Iterator

from torch import nn


def networks(module: nn.Module) -> Iterator[nn.Module]:
    """The modules in ``module`` that have parameters; instead of a list or dictionary its items."""
    for child in module.children():
        if not any(True for _ in child.parameters()):
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from networks(child)
        else:
            yield child


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The items of the outermost lists of equal layers, such as a Transformer's."""
    for child in network.children():
        items = list(child.children())
        kinds = {type(item) for item in items}
        is_list = isinstance(child, nn.ModuleList | nn.Sequential)
        is_list = is_list and len(items) > 1 and len(kinds) == 1
        if is_list and any(True for _ in child.parameters()):
            yield from items
        else:
            yield from blocks(child)
