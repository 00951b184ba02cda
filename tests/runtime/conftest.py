"""Fixtures of the runtime's tests."""

from collections.abc import Iterator

import pytest
from torch.utils.data import BatchSampler, DataLoader

from shared_fixtures import *  # noqa: F403


@pytest.fixture(autouse=True)
def plain_loaders() -> Iterator[None]:
    """Undo what Lightning 2.6.6 leaves behind if a hook of the data raises an error.

    While it calls ``train_dataloader`` it replaces methods of DataLoader and BatchSampler, and it
    puts them back only if no error is raised (lightning_fabric: ``_replace_dunder_methods``).
    """
    kinds = (DataLoader, BatchSampler)
    before = [dict(vars(kind)) for kind in kinds]
    yield
    for kind, methods in zip(kinds, before, strict=True):
        for name in ("__init__", "__setattr__", "__delattr__"):
            if name in methods:
                setattr(kind, name, methods[name])
            elif name in vars(kind):
                delattr(kind, name)
