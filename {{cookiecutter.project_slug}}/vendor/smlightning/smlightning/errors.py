"""Errors that the user can mend, as a problem and its cure; and SageMaker's failure file."""

import contextlib
import errno
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from smlightning.terminal import one_line, printable_output

RESUME = "start the command again with --resume auto"
MORE_MEMORY = (
    "lower batch_size and raise accumulate_grad_batches, which keeps the global batch; "
    "or try gradient_checkpointing, fewer num_workers, or an instance with more memory"
)
PAGE = 4096  # bytes: the smallest file in /dev/shm
# What torch passes on from CUDA (c10/cuda/CUDAException.cpp), from cuBLAS and its like
# (ATen/cuda/Exceptions.h) and from NCCL (src/include/checks.h: Cuda failure 2 'out of memory').
CUDA_OUT_OF_MEMORY = (
    r"CUDA error: out of memory|CU[A-Z]+_STATUS_ALLOC_FAILED|Cuda failure.*'out of memory'"
)

# Mistakes that torch, Lightning or Python name in an error of a general kind: its type, what its
# text holds, what to say in its place ("": the text itself), and the cure.
MISTAKES: tuple[tuple[type[Exception], str, str, str], ...] = (
    (
        RuntimeError,
        "element 0 of tensors does not require grad",
        "the loss that training_step returned depends on no parameter that is trained",
        "return it as it was computed, without detach() or item(), and leave requires_grad on",
    ),
    (
        RuntimeError,
        "grad can be implicitly created only for scalar outputs",
        "the loss that training_step returned is not a single number",
        "return its mean, or its sum times batch['scale'] with smlightning.data.batches.loader",
    ),
    (
        RuntimeError,
        "Training with multiple optimizers is only supported with manual optimization",
        "configure_optimizers gives several optimizers",
        "set self.automatic_optimization = False in the model and step each in training_step, or "
        "return one",
    ),
    (
        RuntimeError,
        "Skipping the `training_step` by returning None in distributed training",
        "training_step returned None on several ranks, and each step takes all ranks",
        "return the loss; for a batch that is to be left out, return the loss times 0",
    ),
    (
        TypeError,
        r"inject a (\(distributed\)|modified) sampler into (your|the) batch sampler",
        "Lightning cannot divide this batch sampler among the ranks",
        "make it a subclass of torch's BatchSampler with sampler, batch_size and drop_last as "
        "arguments, made within train_dataloader; or divide it yourself and set "
        "Trainer(use_distributed_sampler=False) in src/train.py",
    ),
    (
        RuntimeError,
        "DDP expects same model across all ranks|appears not to match sizes of the same param",
        "the model has other parameters, or trains others, on one rank than on another",
        "build it from the same options, labels and files on every rank",
    ),
    (
        TypeError,
        r"^(Data|Model)\.__init__\(\) (got an unexpected|missing \d+ required|takes )",
        "",
        "let it take every field of its class in src/options.py as a keyword with a default, as "
        "def __init__(self, **options) does",
    ),
    (
        AttributeError,
        r"before Module\.__init__\(\) call",
        "",
        "begin its __init__ with super().__init__()",
    ),
    (
        ValueError,
        r"^`Trainer\(barebones=True",
        "Trainer(barebones=True) takes no loggers, callbacks or checkpoints, and train.py has them",
        "leave it out: smlightning.reports.profiler.NoProfiler and fewer callbacks cost as little",
    ),
    (
        ValueError,
        "ModelParallelStrategy` does not support .*precision",
        "--strategy fsdp does not scale losses, as precision 16-mixed needs",
        "set --precision to bf16-mixed or 32-true, or --strategy to ddp",
    ),
    (
        RuntimeError,
        r"You provided multiple `\w+`, but no `dataloader_idx`",
        "",
        "write it def validation_step(self, batch, batch_idx, dataloader_idx=0), or test_step so; "
        "for the metric that is MONITOR see self.log(..., add_dataloader_idx=False)",
    ),
    (
        RuntimeError,
        r"Error\(s\) in loading state_dict for",
        "",
        "restore the old architecture to resume, or train from the start with --resume never",
    ),
    (
        TypeError,
        "required to override the `configure_model",
        "",
        "build the network in configure_model, which --strategy fsdp needs",
    ),
    (
        TypeError,
        "You seem to have configured a sampler in your DataLoader which does not provide",
        "a sampler without a length cannot be divided among the ranks",
        "give it __len__, or divide it yourself and set Trainer(use_distributed_sampler=False)",
    ),
)


class UserError(Exception):
    """Something that the person running this can mend.

    Attributes:
        problem: what was found, and what was expected; no full stop at its end.
        cure: what to do; no full stop at its end.
    """

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem, cure)
        self.problem = one_line(problem)
        self.cure = one_line(cure)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a stack trace (IPython's custom rendering)."""
        return [f"error: {self}"]

    def __str__(self) -> str:
        """Both in one sentence, as they are printed."""
        return f"{self.problem}; {self.cure}" if self.cure else self.problem


def as_user_error(error: BaseException) -> UserError | None:
    """What to say in place of a stack trace; None where the error is no mistake of the user's."""
    if isinstance(error, UserError):
        return error
    text = str(error)
    if isinstance(error, BrokenPipeError):
        return UserError("nothing reads standard output any more", RESUME)
    if text.startswith("Early stopping conditioned on"):  # Lightning's, a RuntimeError
        return UserError(
            text.rstrip("."),
            "where training may end before that is logged, use EarlyStopping(..., strict=False)",
        )
    # Lightning says it with "the", torch without.
    if re.search("parameters that were not used in producing (the )?loss", text):
        return UserError(
            "on several ranks every parameter has to take part in the loss of every step, "
            "and some do not",
            "freeze them by requires_grad_(False), or set find_unused_parameters to True "
            "in src/dist.py",
        )
    for kind, pattern, problem, cure in MISTAKES:
        if isinstance(error, kind) and re.search(pattern, text):
            return UserError(problem or " ".join(text.split()).rstrip("."), cure)
    if type(error).__name__ == "MisconfigurationException":  # Lightning's, which is not imported
        return UserError(
            text.rstrip("."), "change what it names: the Trainer's arguments, or your methods"
        )
    if is_disk_full(error) and not is_shared_memory_full(error):
        return UserError(_line_of_disk_full(error), f"free some space and {RESUME}")
    if is_shared_memory_full(error):
        return UserError(
            f"the shared memory /dev/shm was full ({root_cause(error)})",
            "lower num_workers, or what a worker's batch holds; SageMaker's /dev/shm cannot be "
            "enlarged",
        )
    if is_out_of_memory(error):
        return UserError(
            f"not enough memory on {_whose_memory(error)} ({root_cause(error)})",
            MORE_MEMORY,
        )
    return None


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk, or a used quota, is the cause.

    torch's writer says it in a RuntimeError's text, and TensorBoard's logger in an error of its own
    that was raised from the system's.
    """
    return any(_says_disk_full(cause) for cause in error_chain(error))


def _says_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return bool(re.search("No space left on device|Disk quota exceeded", str(error)))


def _line_of_disk_full(error: BaseException) -> str:
    cause = next(cause for cause in error_chain(error) if _says_disk_full(cause))
    return f"{type(cause).__name__}: {str(cause).splitlines()[0]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's memory, or the machine's, did not suffice."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    # torch's words; and those on a loader's worker that SIGKILL ended, as Linux does for want of
    # memory (torch/utils/data/_utils/signal_handling.py).
    words = r"can't allocate memory|DataLoader worker .* is killed by signal: Killed"
    found = re.search(f"{words}|{CUDA_OUT_OF_MEMORY}", str(error))
    return isinstance(error, RuntimeError) and bool(found)


def _whose_memory(error: BaseException) -> str:
    if type(error).__name__ == "OutOfMemoryError":
        return "the GPU"
    if re.search(CUDA_OUT_OF_MEMORY, str(error)):
        return "the GPU, or for its page-locked memory on this host"
    return "this host"


def is_shared_memory_full(error: BaseException) -> bool:
    """Whether a loader's worker could not hand a batch over through /dev/shm.

    The kernel kills such a worker with SIGBUS, which torch says (torch/utils/data/_utils/
    signal_handling.py); a file that cannot be made there is an OSError of torch's storage.
    """
    words = r"[Bb]us error|insufficient shared memory|unable to (mmap|open|allocate) shared memory"
    if any(re.search(words, str(cause)) for cause in error_chain(error)):
        return True
    # Of a semaphore, a file there, the error names no file; a worker is started with several.
    return is_disk_full(error) and free_shared_memory() < PAGE


def free_shared_memory() -> float:
    """Bytes that are free in /dev/shm; infinite where the system has none."""
    try:
        return shutil.disk_usage("/dev/shm").free  # noqa: S108
    except OSError:
        return math.inf


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, the innermost last."""
    while error:
        yield error
        if error.__cause__ or error.__suppress_context__:
            error = error.__cause__
        else:
            error = error.__context__


def root_cause(error: BaseException) -> str:
    """The innermost cause in one line: libraries wrap it in layers that say less."""
    *_, innermost = error_chain(error)
    text = str(innermost).strip() or type(innermost).__name__
    if nccl_reason(innermost):
        text = f"NCCL: {nccl_reason(innermost)}"
    first, *more = text.splitlines()
    if first.endswith(":"):  # a list follows
        first = " ".join([first, *map(str.strip, more)])
    return first[:200]


def nccl_reason(error: BaseException) -> str:
    """What NCCL gives as its last error, in one line; "" where it gives none.

    It is in the middle of the error's text: before it are torch's general words, after it C++
    frames (torch 2.13: NCCLUtils.cpp, ``getNcclErrorDetailStr``).
    """
    end = r"\nException raised from|\nframe #|\Z"
    found = re.search(rf"Last error:\s*(.*?)\s*(?:{end})", str(error), re.DOTALL)
    return " ".join(found[1].split()) if found else ""


@contextlib.contextmanager
def warn_on_failure(task: str) -> Iterator[None]:
    """Print a warning where the body fails: no picture is worth a trained model."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {root_cause(error)}"
        print(f"warning: {task} failed ({reason}); nothing else is affected", file=sys.stderr)


def discard_stdout() -> None:
    """Send standard output nowhere, once its reader is gone; else Python complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_command(body: Callable[[], None]) -> int:
    """What a command like predict.py does; its status: 0, 1 for a mistake, which is printed as a
    sentence, 130 where Ctrl-C ended it.
    """
    try:
        with printable_output():
            body()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough
        discard_stdout()
    except Exception as error:
        refused: UserError | None = error if isinstance(error, UserError) else None
        if is_out_of_memory(error):
            refused = UserError(
                f"not enough memory ({root_cause(error)})",
                "give fewer or shorter texts at a time, or take a machine with more memory",
            )
        if refused is None:
            raise
        print(f"error: {refused}", file=sys.stderr)
        return 1
    return 0


def write_failure(text: str) -> None:
    """Leave ``text`` in SageMaker's file output/failure, if nothing is there yet.

    Its first 1024 characters become the job's FailureReason. The toolkit writes the file only where
    there is none, and then with what it caught of standard error from the first line that names a
    Python exception: often not the cause.
    """
    folder = os.environ.get("SM_OUTPUT_DIR")
    if folder is None:
        return
    file = Path(folder) / "failure"
    # FileExistsError, too: the first text stays.
    with contextlib.suppress(OSError), file.open("x", encoding="utf-8") as stream:
        stream.write(text)
