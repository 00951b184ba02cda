"""Neither training steps nor batches of an evaluation wait for a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import data
import model
from smlightning.data import text
from waits import Waits


@pytest.mark.parametrize("kind", ["bytecnn", "tiny_bert"])
def test_no_step_waits_for_the_device(kind: str, request: pytest.FixtureRequest) -> None:
    name = kind if kind == "bytecnn" else request.getfixturevalue(kind)
    module = model.Model(model_name=name)
    trainer: Any = SimpleNamespace(
        datamodule=SimpleNamespace(labels=["a", "b", "c"]),
        precision="32-true",
        estimated_stepping_batches=9,
    )
    module.trainer = trainer
    module.configure_model()
    optimizer = module.configure_optimizers()["optimizer"]
    batch: dict[str, Any] = text.batch(["abcd", "αβ", "abc"], data.tokenizer(name), 99)
    batch |= {"label": torch.tensor([0, 1, 2]), "weight": torch.tensor([1.0, 1.0, 0.0])}
    batch["scale"] = 0.5
    with Waits() as waits:
        for step in range(2):
            module.training_step(batch, step).backward()
            module.configure_gradient_clipping(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            module.validation_step(batch, step)
            module.test_step(batch, step)
    assert waits.names == []
