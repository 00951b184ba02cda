"""Runs with other loops, optimizers and intervals resume exactly as well."""

from typing import Any

import pytest

from small_training import (
    Alone,
    Fit,
    InOrder,
    Line,
    Manual,
    Plateau,
    Resumable,
    assert_same,
)


class Workers(Resumable):
    """Without random numbers in the workers, which are no function of numbers."""

    workers = 1
    jitter = 0.0


CASES: dict[str, tuple[type, type, dict[str, Any], dict[str, Any], tuple[str, int]]] = {
    "accumulation": (
        Line, Resumable, {}, {"accumulate_grad_batches": 2, "seed": 2**32 - 1},
        ("on_train_batch_end", 11),
    ),
    "accumulation that divides no epoch, at its last batch": (
        Line, InOrder, {}, {"accumulate_grad_batches": 3}, ("on_train_batch_end", 8),
    ),
    "accumulation that divides no epoch, in the second": (
        Line, InOrder, {}, {"accumulate_grad_batches": 3}, ("on_train_batch_end", 11),
    ),
    "max_steps": (Line, Resumable, {}, {"max_steps": 13}, ("on_train_batch_end", 10)),
    "max_steps at the last step": (
        Line, Resumable, {}, {"max_steps": 11, "log_every": 3}, ("on_train_batch_end", 11),
    ),
    "loader workers": (Line, Workers, {}, {}, ("on_train_batch_end", 11)),
    "loader workers, an epoch's last batch": (Line, Workers, {}, {}, ("on_train_batch_end", 8)),
    "two optimizers": (
        Manual, Resumable, {}, {"gradient_clip_val": 0.0}, ("on_train_batch_end", 13),
    ),
    "two optimizers, an epoch's end": (
        Manual, Resumable, {}, {"gradient_clip_val": 0.0}, ("before_epoch", 2),
    ),
    "plateau": (Plateau, Resumable, {}, {"epochs": 3}, ("on_train_batch_end", 11)),
    "plateau, an epoch's last batch": (
        Plateau, Resumable, {}, {"epochs": 3}, ("on_train_batch_end", 16),
    ),
    "plateau, an epoch's end": (
        Plateau, Resumable, {}, {"epochs": 3, "checkpoint_steps": 0}, ("before_epoch", 2),
    ),
    "plateau, another epoch's end": (
        Plateau, Resumable, {}, {"epochs": 3, "checkpoint_steps": 0}, ("before_epoch", 3),
    ),
    "val_check_interval, before a validation": (
        Line, Resumable, {"val_check_interval": 3}, {}, ("on_train_batch_end", 3),
    ),
    "val_check_interval, within a validation": (
        Line, Resumable, {"val_check_interval": 3}, {}, ("on_validation_batch_end", 5),
    ),
    "val_check_steps, before a validation": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_train_batch_end", 3),
    ),
    "val_check_steps, after a validation": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_train_batch_end", 4),
    ),
    "val_check_steps, at an epoch's last batch": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_train_batch_end", 8),
    ),
    "val_check_steps, in the validation before training": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_validation_batch_end", 2),
    ),
    "val_check_steps, within the first validation": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_validation_batch_end", 3),
    ),
    "val_check_steps, within the epoch's last validation": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_validation_batch_end", 6),
    ),
    "val_check_steps, at its end": (
        Line, Resumable, {}, {"val_check_steps": 3}, ("on_validation_batch_end", 7),
    ),
    "val_check_steps and accumulation": (
        Plateau, Resumable, {}, {"val_check_steps": 3, "accumulate_grad_batches": 2},
        ("on_train_batch_end", 10),
    ),
    "validation every second epoch": (
        Line, Resumable, {"check_val_every_n_epoch": 2}, {"log_every": 3},
        ("on_train_batch_end", 8),
    ),
}  # fmt: skip


LONG = {  # others of the same loop show nearly as much
    "accumulation that divides no epoch, at its last batch",
    "loader workers, an epoch's last batch",
    "plateau, an epoch's last batch",
    "plateau, another epoch's end",
    "two optimizers, an epoch's end",
    "val_check_interval, within a validation",
    "val_check_steps, after a validation",
    "val_check_steps, at its end",
    "val_check_steps, before a validation",
}
assert not LONG - CASES.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in CASES]
)
def test_every_loop_resumes_exactly(name: str, fit: Fit, alone: Alone) -> None:
    model, data, arguments, options, crash = CASES[name]
    options = {"checkpoint_steps": 1, **options}
    whole, steps = alone(model, data, trainer=arguments, **options)
    fit(model, data, trainer=arguments, output_dir="resumed", crash=crash, **options)
    again = fit(model, data, trainer=arguments, output_dir="resumed", **options)
    assert again.global_step == steps
    assert_same(whole, "resumed", name)
