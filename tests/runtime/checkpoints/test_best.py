"""The best of several validations."""

import math

import pytest

from smlightning.checkpoints.best import Best
from smlightning.checkpoints.position import Position
from smlightning.errors import UserError


@pytest.mark.parametrize(("mode", "better", "worse"), [("max", 0.9, 0.1), ("min", 0.1, 0.9)])
def test_the_mode_says_which_value_is_better(mode: str, better: float, worse: float) -> None:
    best = Best("val/x", mode)  # type: ignore[arg-type]
    for value in (math.nan, math.inf, -math.inf):
        assert best.after(value, Position()) is best
    best = best.after(0.5, Position(step=7, epoch=1))
    assert (best.score, best.step, best.epoch) == (0.5, 7, 2)
    assert best.after(better, Position()).score == better
    for value in (worse, 0.5):
        assert best.after(value, Position()) is best


@pytest.mark.parametrize(
    ("monitor", "mode", "is_wrong"),
    [
        ("val/loss", "max", True),
        ("val/macro_f1", "min", True),
        ("val/loss", "min", False),
        ("val/negative_loss", "max", False),
        ("lossless", "max", False),
    ],
)
def test_a_mode_that_contradicts_the_metric_is_an_error(
    monitor: str, mode: str, is_wrong: bool
) -> None:
    if is_wrong:
        with pytest.raises(UserError):
            Best(monitor, mode)  # type: ignore[arg-type]
    else:
        Best(monitor, mode)  # type: ignore[arg-type]
