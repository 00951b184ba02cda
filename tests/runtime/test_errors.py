"""An error that the user can correct is a problem and a hint; others keep their stack trace."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.data import _replace_dunder_methods
from lightning_fabric.utilities.exceptions import (
    MisconfigurationException as MisconfigurationError,
)
from pytorch_lightning.trainer.connectors.data_connector import _DataConnector
from pytorch_lightning.trainer.states import RunningStage, TrainerFn
from torch import distributed
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler

from smlightning import errors
from smlightning.cluster import ending
from smlightning.errors import UserError, as_user_error, is_disk_full


class MisconfigurationException(Exception):
    """Has the name of Lightning's exception."""


def wrapped(inner: Exception) -> Exception:
    """An error that was raised from another, as TensorBoard's logger raises it."""
    try:
        try:
            raise inner
        except type(inner) as error:
            raise ValueError("you tried to log 0.5") from error
    except ValueError as outer:
        return outer


def provoked(action: Callable[[], Any]) -> Exception:
    """The error that a library itself raises."""
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        return error
    raise AssertionError("no error")


WORKER = "DataLoader worker (pid 7) is killed by signal: "
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

NO_GPU_MEMORY = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUSOLVER_STATUS_ALLOC_FAILED when calling `cusolverDnCreate(handle)`",
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error, "
    "NCCL version 2.29.7\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 2 'out of memory'\nException raised from create at NCCLUtils.cpp:94 (most",
)


@pytest.mark.parametrize(
    ("error", "problem", "hint"),
    [
        (UserError("no data", "bring some"), "no data", "bring some"),
        (FULL, "No space left", "free some space"),
        (wrapped(FULL), "OSError", "free some space"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "quota", "free some space"),
        (RuntimeError("write failed: No space left on device\nat 7"), "RuntimeError", "free some"),
        (provoked(lambda: torch.empty(2**50)), "memory on this host", "batch_size"),
        (provoked(lambda: np.empty(2**50, dtype=np.uint8)), "memory on this host", "batch_size"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "memory on the GPU", "batch_size"),
        (RuntimeError(f"{WORKER}Killed. "), "memory on this host", "num_workers"),
        (RuntimeError(f"{WORKER}Bus error. It is possible that"), "shared memory", "num_workers"),
        (RuntimeError("unable to allocate shared memory(shm) for"), "shared memory", "num_workers"),
        (OSError(28, "unable to write to file: No space left on device"), "OSError", "free some"),
        (BrokenPipeError(), "standard output", "--resume auto"),
        (MisconfigurationException("No `training_step()`."), "No `training_step()`", "change"),
    ],
)
def test_an_error_that_the_user_can_correct_is_a_problem_and_a_hint(
    error: Exception, problem: str, hint: str
) -> None:
    found = as_user_error(error)
    assert found is not None and problem in found.problem and hint in found.hint
    assert "\n" not in str(found) and not str(found).endswith(".")


@pytest.mark.parametrize("text", NO_GPU_MEMORY)
@pytest.mark.parametrize("kind", [RuntimeError, torch.distributed.DistBackendError])
def test_memory_errors_of_cuda_are_sentences_and_no_lost_rank(
    kind: type[RuntimeError], text: str
) -> None:
    error = kind(text)
    found = as_user_error(error)
    assert found and "GPU" in found.problem and "batch_size" in found.hint
    assert "\n" not in found.problem
    assert not ending.lost_a_rank(error)
    if "NCCL" in text:
        assert "Cuda failure 2 'out of memory'" in found.problem


NCCL_SETUP = (
    "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
    "store by key '0', but store->get('0') got error: "
)
CLOSED = "Connection was likely closed. Did the remote server shutdown or crash?"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (DistNetworkError("Connection was likely closed"), True),
        (DistStoreError("wait timeout after 1000ms"), True),
        (
            DistBackendError("NCCL error\nLast error:\nConnect to 10.0.2.5 failed : timed out"),
            False,
        ),
        (DistBackendError("ncclInvalidUsage: This usually reflects invalid usage"), False),
        (DistBackendError("NCCL: remote process exited or there was a network error"), True),
        (DistBackendError("ncclRemoteError: A call failed possibly due to a network error"), True),
        (DistBackendError("Last error:\nsocketProgress: Connection closed by remote peer a"), True),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (DistBackendError(f"{NCCL_SETUP}Failed to recv, got 0 bytes. {CLOSED}"), True),
        (DistBackendError(f"{NCCL_SETUP}wait timeout after 600000ms, keys: /default_pg/0"), True),
        (DistBackendError(f"{NCCL_SETUP}Broken pipe"), True),
        (DistBackendError(f"{NCCL_SETUP}Socket Timeout"), True),
        (DistBackendError("NCCL communicator was aborted on rank 1."), True),
        (RuntimeError("NCCL error: unhandled cuda error"), False),
        (ValueError("Connection reset by peer"), False),
    ],
)
def test_only_an_error_of_the_other_side_is_a_lost_rank(error: Exception, is_lost: bool) -> None:
    assert ending.lost_a_rank(error) == is_lost


def test_the_reason_that_nccl_gives_is_one_line() -> None:
    middle = "first\nLast error:\nConnect to a failed\n of b\nException raised from x\nframe #0: y"
    assert errors.nccl_reason(RuntimeError(middle)) == "Connect to a failed of b"
    assert errors.nccl_reason(RuntimeError("first\nLast error:\nat the end")) == "at the end"
    assert errors.nccl_reason(RuntimeError("first\nLast error:\n")) == ""
    assert errors.nccl_reason(ValueError("first\nsecond")) == ""


def test_an_error_is_one_line_whatever_a_file_is_called() -> None:
    error = UserError("\x1b[2Jno data in a\n  b.csv\x85", "rename\tit")
    assert str(error) == "\\x1b[2Jno data in a b.csv\\x85; rename\\tit"


def test_other_errors_are_described_with_the_users_line() -> None:
    """An error in a loader's worker, too, whose trace is in its text."""
    with pytest.raises(RuntimeError) as caught:
        wrong()
    assert errors.described(caught.value).startswith("test_errors.py:")
    assert errors.described(caught.value).endswith(" wrong: RuntimeError: 2 sizes")
    worker = (
        "Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
        'last):\n  File "/home/x/src/data.py", line 7, in __getitem__\nIndexError: 9 of 4\n'
    )
    assert errors.described(IndexError(worker)) == "data.py:7 __getitem__: IndexError: 9 of 4"
    assert errors.described(KeyError("x")) == "KeyError: 'x'"


def wrong() -> None:
    torch.nn.init.constant_(torch.empty(1), 0)
    raise RuntimeError("2 sizes\nof tensors")


DOUBLE = torch.ones(4, 3, dtype=torch.float64)
SINGLE = torch.ones(4, 3)
CLASSES = torch.tensor([0, 1, 2, 3])


class WithoutSuper(torch.nn.Module):
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(1, 1)


def backward_twice() -> None:
    loss = torch.nn.Linear(3, 1)(SINGLE).square().mean()
    loss.backward()
    loss.backward()


def sync_norm() -> Any:
    with one_rank():
        return DistributedDataParallel(torch.nn.SyncBatchNorm(1))


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def in_double(layer: torch.nn.Module) -> Any:
    return layer.double()(SINGLE)


def double_target() -> None:
    probability = torch.full((4,), 0.5, requires_grad=True)
    functional.binary_cross_entropy(probability, DOUBLE[:, 0]).backward()


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: torch.nn.Linear(3, 2)(DOUBLE), "float32"),
    (lambda: torch.nn.Linear(3, 2, bias=False)(DOUBLE), "float32"),
    (lambda: torch.nn.Conv1d(4, 2, 1)(DOUBLE), "float32"),
    (lambda: torch.nn.Conv1d(4, 2, 1, bias=False)(DOUBLE), "float32"),
    (lambda: torch.nn.LSTM(3, 2)(DOUBLE), "float32"),
    (lambda: torch.nn.LayerNorm(3)(DOUBLE), "float32"),
    (double_target, "float32"),
    (lambda: torch.nn.Linear(3, 2)(DOUBLE.long()), "float()"),
    (lambda: functional.cross_entropy(DOUBLE, torch.ones(4)), "label.long()"),
    (lambda: functional.cross_entropy(DOUBLE, CLASSES), "count labels and ids from 0"),
    (lambda: functional.cross_entropy(DOUBLE, CLASSES - 1), "count labels and ids from 0"),
    (lambda: functional.one_hot(CLASSES, 3), "count labels and ids from 0"),
    (lambda: torch.nn.Embedding(3, 2)(CLASSES), "count labels and ids from 0"),
    (lambda: torch.nn.EmbeddingBag(3, 2)(CLASSES[None]), "count labels and ids from 0"),
    (lambda: torch.ones(4, requires_grad=True).backward(), "losses.mean()"),
    (lambda: torch.ones(()).backward(), "detach()"),
    (lambda: in_double(torch.nn.Linear(3, 2)), "without .double()"),
    (lambda: in_double(torch.nn.Linear(3, 2, bias=False)), "without .double()"),
    (lambda: in_double(torch.nn.Conv1d(4, 2, 1)), "without .double()"),
    (lambda: in_double(torch.nn.Conv1d(4, 2, 1, bias=False)), "without .double()"),
    (lambda: in_double(torch.nn.LSTM(3, 2)), "without .double()"),
    (lambda: in_double(torch.nn.LayerNorm(3)), "without .double()"),
    (lambda: SINGLE @ DOUBLE.T, "the second operand, mostly the layer, is float64"),
    (lambda: torch.nn.Linear(5, 2)(SINGLE), "input features"),
    (lambda: torch.nn.Conv1d(5, 2, 1)(SINGLE), "input features, or channels"),
    (lambda: torch.nn.LSTM(5, 2)(SINGLE), "input features"),
    (lambda: torch.nn.LayerNorm(5)(SINGLE), "input features"),
    (lambda: torch.nn.BatchNorm1d(5)(SINGLE), "input features"),
    (lambda: torch.nn.BatchNorm1d(3)(SINGLE[:1]), "drop_last=True"),
    (backward_twice, "calls no backward()"),
    (WithoutSuper, "super().__init__()"),
    (sync_norm, "sync_batchnorm=cluster.accelerator"),
]


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_what_torch_says_of_a_mistake_in_data_or_model_has_a_hint(
    mistake: Callable[[], Any], hint: str
) -> None:
    with pytest.raises(Exception) as caught:
        mistake()
    error = as_user_error(caught.value)
    assert error and hint in error.hint
    assert error.problem.startswith("test_errors.py:"), "the user's line"


@pytest.mark.skipif(torch.cuda.is_available(), reason="it works with a GPU")
@pytest.mark.parametrize("move", [torch.ones(1).cuda, lambda: torch.ones(1, device="cuda:0")])
def test_a_device_in_a_model_has_a_hint(move: Callable[[], Any]) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        move()
    error = as_user_error(caught.value)
    assert error and "leave devices to Lightning" in error.hint


@pytest.mark.parametrize(
    "types",
    [
        "torch.cuda.FloatTensor) and weight type (torch.FloatTensor",
        "torch.FloatTensor) and weight type (torch.cuda.FloatTensor",
        "torch.cuda.HalfTensor) and bias type (torch.HalfTensor",
    ],
)
def test_layer_and_input_on_two_devices_have_the_hint_of_devices(types: str) -> None:
    """torch names a device in the words of a type (2.13: ATen/native/Convolution.cpp)."""
    error = as_user_error(RuntimeError(f"Input type ({types}) should be the same"))
    assert error and "leave devices to Lightning" in error.hint


def test_types_on_a_gpu_have_the_hint_of_types() -> None:
    types = "torch.cuda.FloatTensor) and weight type (torch.cuda.DoubleTensor"
    error = as_user_error(RuntimeError(f"Input type ({types}) should be the same"))
    assert error and "without .double()" in error.hint


def test_a_label_out_of_range_on_a_gpu_has_a_hint() -> None:
    error = as_user_error(RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel"))
    assert error and "count labels" in error.hint


def test_a_lost_connection_to_a_loaders_worker_is_a_sentence() -> None:
    """It comes before torch notices that the worker was killed."""

    def _try_get_data() -> None:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    with pytest.raises(ConnectionResetError) as error:
        _try_get_data()
    told = as_user_error(error.value)
    assert told and "a loader's worker ended" in told.problem and "num_workers" in told.hint


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


def test_a_failed_picture_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with errors.warn_on_failure("drawing"):
        raise wrapped(KeyError("inner"))
    assert "warning: drawing failed (ValueError: 'inner')" in capsys.readouterr().err


class PairsOfLengths(BatchSampler):
    """A batch sampler whose class takes no sampler."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(SequentialSampler(lengths), 2, False)


class Unsized(Sampler):
    def __iter__(self) -> Iterator[int]:
        yield 0


def divided(make: Callable[[], DataLoader]) -> None:
    """Does what Lightning does on two ranks with a loader that a hook makes."""
    ranks = {"num_replicas": 2, "rank": 0}
    accelerators = SimpleNamespace(use_distributed_sampler=True, is_distributed=True)
    trainer: Any = SimpleNamespace(
        _accelerator_connector=accelerators, distributed_sampler_kwargs=ranks, overfit_batches=0,
        state=SimpleNamespace(fn=TrainerFn.FITTING),
    )  # fmt: skip
    with _replace_dunder_methods(DataLoader, "dataset"):
        loader = make()
    _DataConnector(trainer)._prepare_dataloader(loader, True, RunningStage.TRAINING)


ROWS: Any = range(8)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (
            lambda: DataLoader(ROWS, batch_sampler=PairsOfLengths([1, 2])),
            "use_distributed_sampler=False",
        ),
        (lambda: DataLoader(ROWS, batch_sampler=[[0, 1], [2]]), "use_distributed_sampler=False"),
        (lambda: DataLoader(ROWS, sampler=Unsized()), "use_distributed_sampler=False"),
        (lambda: DataLoader(ROWS, 2, True), "not as positional arguments, or make the loader in"),
        (lambda: DataLoader(ROWS, 2, False, SequentialSampler(ROWS)), "run.resumable"),
    ],
)
def test_a_loader_that_lightning_cannot_divide_is_a_sentence(
    make: Callable[[], DataLoader], hint: str
) -> None:
    with pytest.raises((TypeError, MisconfigurationError)) as raised:
        divided(make)
    error = as_user_error(raised.value)
    assert error and hint in error.hint
