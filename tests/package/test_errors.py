"""What the user can mend is a problem and a cure; anything else keeps its stack trace."""

import errno
import os
from pathlib import Path

import pytest

from smlightning import errors
from smlightning.errors import UserError, as_user_error, is_disk_full, root_cause, write_failure


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


class MisconfigurationException(Exception):
    """As Lightning's is called."""


def wrapped(inner: Exception) -> Exception:
    """An error that was raised from another, as TensorBoard's logger raises it."""
    try:
        try:
            raise inner
        except type(inner) as error:
            raise ValueError("you tried to log 0.5") from error
    except ValueError as outer:
        return outer


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
UNUSED = "Expected to have finished reduction: parameters that were not used in producing loss"

SEVERAL = (
    "Training with multiple optimizers is only supported with manual optimization. Set "
    "`self.automatic_optimization = False`"
)
SKIPPED = "Skipping the `training_step` by returning None in distributed training is not supported."


@pytest.mark.parametrize(
    ("error", "problem", "cure"),
    [
        (UserError("no data", "bring some"), "no data", "bring some"),
        (FULL, "No space left", "free some space"),
        (wrapped(FULL), "OSError", "free some space"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "quota", "free some space"),
        (RuntimeError("write failed: No space left on device\nat 7"), "RuntimeError", "free some"),
        (OutOfMemoryError("CUDA out of memory. Tried"), "CUDA out of memory", "batch size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "allocate", "batch size"),
        (MemoryError(), "MemoryError", "batch size"),
        (BrokenPipeError(), "standard output", "--resume auto"),
        (RuntimeError("Early stopping conditioned on metric `x`."), "metric `x`", "strict=False"),
        (RuntimeError(UNUSED), "parameter", "find_unused_parameters=True"),
        (RuntimeError("element 0 of tensors does not require grad and"), "no parameter", "detach"),
        (RuntimeError("grad can be implicitly created only for scalar outputs"), "number", "mean"),
        (RuntimeError(SEVERAL), "several optimizers", "automatic_optimization = False"),
        (RuntimeError(SKIPPED), "returned None on several ranks", "times 0"),
        (
            TypeError(
                " Lightning can't inject a (distributed) sampler into your batch sampler, because"
            ),
            "divide",
            "BatchSampler",
        ),
        (
            TypeError("Trying to inject a modified sampler into the batch sampler; however"),
            "divide",
            "BatchSampler",
        ),
        (
            RuntimeError("DDP expects same model across all ranks, but Rank 1 has 4 params"),
            "other parameters",
            "same options",
        ),
        (
            TypeError("Data.__init__() got an unexpected keyword argument 'dataset'"),
            "'dataset'",
            "**options",
        ),
        (
            TypeError("Model.__init__() takes 1 positional argument but 2 were given"),
            "Model",
            "**options",
        ),
        (AttributeError("cannot assign module before Module.__init__() call"), "Module", "super()"),
        (
            ValueError("`Trainer(barebones=True, logger=[1])` was passed. Logging"),
            "barebones",
            "NoProfiler",
        ),
        (MisconfigurationException("No `training_step()`."), "No `training_step()`", "change"),
    ],
)
def test_what_the_user_can_mend(error: Exception, problem: str, cure: str) -> None:
    found = as_user_error(error)
    assert found is not None and problem in found.problem and cure in found.cure
    assert "\n" not in str(found) and not str(found).endswith(".")


def test_a_notebook_shows_the_sentence() -> None:
    assert UserError("no data", "bring some")._render_traceback_() == ["error: no data; bring some"]


def test_other_errors_keep_their_stack_trace() -> None:
    assert as_user_error(TypeError("f() got an unexpected keyword argument 'x'")) is None
    assert as_user_error(KeyError("x")) is None
    assert as_user_error(OSError(errno.EACCES, "Permission denied")) is None
    try:
        try:
            raise FULL
        except OSError:
            raise KeyError("of another kind") from None
    except KeyError as error:
        assert as_user_error(error) is None and not is_disk_full(error)


def test_the_innermost_cause_is_named() -> None:
    assert root_cause(wrapped(KeyError("inner"))) == "'inner'"
    assert root_cause(ValueError("")) == "ValueError"
    assert root_cause(ValueError("one\ntwo")) == "one"


def test_a_failed_picture_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with errors.warn_on_failure("drawing"):
        raise wrapped(KeyError("inner"))
    assert "warning: drawing failed (ValueError: 'inner')" in capsys.readouterr().err


def test_the_first_failure_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_failure("outside SageMaker nothing is written")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path))
    write_failure("first")
    write_failure("second")
    assert (tmp_path / "failure").read_text() == "first"
    monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path / "missing"))
    write_failure("a folder that is missing is no error of its own")
