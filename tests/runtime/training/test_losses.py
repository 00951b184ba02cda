"""A token's loss is cross_entropy's, however many there are, and needs little memory."""

import pytest
import torch
from torch.nn import functional as F

from smlightning.training import losses
from smlightning_sagemaker.estimate.counting import Storages


@pytest.mark.parametrize("numbers", [1, 60, 2**25])
def test_losses_and_gradients_are_those_of_cross_entropy(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "NUMBERS", numbers)
    logits, labels = torch.randn(3, 7, 11), torch.randint(0, 11, (3, 7))
    labels[0, 2:5] = -100
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    mine = losses.token_losses(ours, labels)
    expected = F.cross_entropy(theirs.transpose(1, 2), labels, reduction="none")
    torch.testing.assert_close(mine, expected)
    mine.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    with torch.no_grad():
        torch.testing.assert_close(losses.token_losses(logits, labels), expected)


def test_losses_of_many_tokens_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "NUMBERS", 100_000)
    logits = torch.randn(4, 100, 1000, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 1000, (4, 100))
    size = logits.nbytes
    with Storages([logits, labels]) as storages:
        mean = losses.token_losses(logits, labels).mean()
        assert storages.alive < 0.05 * size, "the logits are kept once"
        mean.backward()
    assert storages.peak < 3.5 * size, "of 7: the gradient, its parts, and a part in float32"
