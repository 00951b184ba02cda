"""Errors that the user can correct, as a problem and its hint."""

import contextlib
import errno
import math
import os
import re
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from smlightning.terminal import one_line, printable_output

PAGE = 4096  # bytes: the smallest file in /dev/shm
RESUME = "start the command again with --resume auto"
MORE_MEMORY = (
    "lower batch_size and raise accumulate_grad_batches, which keeps the global batch; "
    "or try gradient_checkpointing, fewer num_workers, or an instance with more memory"
)
LESS_SHARED_MEMORY = (
    "lower num_workers, or what a worker's batch holds; SageMaker's /dev/shm cannot be enlarged"
)
PACKAGE = str(Path(__file__).parent)
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]

# torch's words for CUDA's error (c10/cuda/CUDAException.cpp), for those of cuBLAS and others
# (ATen/cuda/Exceptions.h) and NCCL's (src/include/checks.h: Cuda failure 2 'out of memory').
CUDA_OUT_OF_MEMORY = (
    r"CUDA error: out of memory|CU[A-Z]+_STATUS_ALLOC_FAILED|Cuda failure.*'out of memory'"
)

LONG = 300  # characters of a cause

# Parts of torch's messages about mistakes in data and model, and the hint for each.
EXPLAINED = (
    (
        r"not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs|'_cuda_setDevice'"
        r"|type \(torch\.cuda\.(\w+)\) and \w+ type \(torch\.\1\)"
        r"|type \(torch\.(\w+)\) and \w+ type \(torch\.cuda\.\2\)"
        r"|CUDA generator without|tensors to be on the same device|not on the expected device",
        "leave devices to Lightning: write no .cuda(), make tensors with device=self.device, and "
        "keep constants by self.register_buffer",
    ),
    (
        r"got:? (float !=|Float and) [Dd]ouble|[Ff]loat\S*\) and \w+ type \(\S*[Dd]ouble"
        r"|type Float but found Double|\(torch\.float32\) does not match|expect parameter to have",
        "the second operand, mostly the layer, is float64: make it float32 with .float(), without "
        ".double() and dtype=torch.float64",
    ),
    (
        r"same d(ata)?type|Input type .*should be the same|expected scalar type|Found dtype"
        r"|does not match weight dtype|Type promoting",
        "give the model float32: torch.as_tensor(values, dtype=torch.float32) in your data, since "
        "numpy and pandas make float64, and x.float() for whole numbers",
    ),
    (
        r"expected target dtype to be Long|can't be cast to the desired output type Long",
        "cross_entropy takes classes as label.long(), and losses of one output take label.float()",
    ),
    (
        r": Target -?\d+ is out of bounds|target out of range|Class values must be"
        r"|device-side assert|index out of range in self|Index \d+ of input takes value",
        "count labels and ids from 0, and give the layer as many classes, or the embedding as many "
        "rows, as the data has",
    ),
    (
        r"shapes cannot be multiplied|expected input.* to have \d+ channels"
        r"|must be equal to input_size|Given normalized_shape|running_mean should contain",
        "give the layer as many input features, or channels, as its input has",
    ),
    (
        r"Expected more than 1 value per channel",
        "a batch norm cannot train on one sample: drop_last=True in the training DataLoader",
    ),
    (
        r"backward through the graph a second time",
        "training_step returns the loss and calls no backward(); detach() what later steps use",
    ),
    (
        r"SyncBatchNorm layers only work with GPU",
        'on CPUs, as in a rehearsal, leave it out: sync_batchnorm=cluster.accelerator == "gpu"',
    ),
    (
        r"mutable default <class '(list|dict)'>",
        'declare it by option, as shares: list[float] = option([0.1, 0.9], "what they are")',
    ),
    (r"before Module\.__init__\(\) call", "begin __init__ with super().__init__()"),
    (
        r"grad can be implicitly created only for scalar outputs",
        "return one number from training_step, as losses.mean()",
    ),
    (
        r"element 0 of tensors does not require grad",
        "compute the loss from trained weights, without detach(), item() or no_grad() on the way; "
        "if a test step needs gradients, pass inference_mode=False to the Trainer of src/train.py",
    ),
)


class UserError(Exception):
    """An error that the user can correct.

    Attributes:
        problem: what was found, and what was expected; no full stop at its end.
        hint: what to do; no full stop at its end.
    """

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem, hint)
        self.problem = one_line(problem)
        self.hint = one_line(hint)

    def _render_traceback_(self) -> list[str]:
        """The text that a notebook shows instead of a stack trace (IPython's custom rendering)."""
        return [f"error: {line}" for line in str(self).splitlines()]

    def __str__(self) -> str:
        """Problem and hint in one sentence."""
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


def as_user_error(error: BaseException) -> UserError | None:
    """The error as one that the user can correct; None if it needs a stack trace."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, BrokenPipeError):
        return UserError("the program that reads standard output has ended", RESUME)
    if _is_raised_in(error, "_prepare_dataloader"):  # of Lightning's data connector
        reason = root_cause(error)
        hint = (
            "let its sampler give each rank its own part, by dist.get_global_rank(), and pass "
            "Trainer(use_distributed_sampler=False) in src/train.py"
        )
        if "multiple values for argument" in reason:
            hint = (
                "write data = run.resumable(Data(...)) in src/train.py; or pass shuffle and "
                "sampler by name, not as positional arguments, or make the loader in setup()"
            )
        return UserError(
            f"Lightning cannot divide your loader among the ranks ({reason[:120]}…)", hint
        )
    if isinstance(error, AttributeError) and _is_of_logger(type(error.obj)):
        return UserError(
            f"{described(error)}: self.logger is the first logger of the Trainer",
            "in src/train.py put yours first, logger=[YourLogger(...), *run.loggers()], or take it "
            "from self.loggers by its class",
        )
    is_lightnings = type(error).__name__ == "MisconfigurationException"  # which is not imported
    if is_lightnings or _is_raised_in(error, "_validate_condition_metric"):  # of EarlyStopping
        hint = "change the Trainer's arguments, or your methods"
        return UserError(str(error).rstrip("."), hint)
    if is_shared_memory_full(error):
        return UserError(
            f"the shared memory /dev/shm was full ({root_cause(error)})",
            LESS_SHARED_MEMORY,
        )
    if is_disk_full(error):
        return UserError(_line_of_disk_full(error), f"free some space and {RESUME}")
    if is_out_of_memory(error):
        return UserError(
            f"not enough memory on {_whose_memory(error)} ({root_cause(error)})",
            MORE_MEMORY,
        )
    lost = isinstance(error, ConnectionError | EOFError)
    if lost and _is_raised_in(error, "_try_get_data"):  # of torch's DataLoader
        return UserError(
            f"a loader's worker ended without an error message ({root_cause(error)})",
            "if the system ended it for its memory, lower num_workers, or what a worker's batch "
            "holds; with num_workers 0 the process of training does its work",
        )
    if "Cannot copy out of meta tensor" in str(error):
        return UserError(
            "a tensor of the model is on the meta device, without values",
            "give it values before training, by loading weights or by to_empty() and initialising",
        )
    if re.match(r"(Data|Model)\.__init__\(\) got an unexpected keyword", str(error)):
        return UserError(str(error), "it gets every option: def __init__(self, **options)")
    if "pickle" in str(error) and _is_raised_in(error, "dump"):  # multiprocessing.reduction's
        return UserError(
            f"a loader's workers get what it holds by pickle: {error}",
            "write it as a function or class at the top of its file, or set num_workers to 0",
        )
    if "Error(s) in loading state_dict" in str(error) and _is_raised_in(error, "restore_model"):
        hint = "restore the old architecture to resume, or train from the start with --resume never"
        return UserError(str(error), hint)
    line = described(error)
    hints = (hint for words, hint in EXPLAINED if re.search(words, line))
    return next((UserError(line, hint) for hint in hints), None)


def _is_of_logger(kind: type) -> bool:
    """Whether it is a class of Lightning's loggers, of this package's, or TensorBoard's writer."""
    lightning = ("pytorch_lightning.loggers.", "lightning.pytorch.loggers.")
    modules = (*lightning, "smlightning.reports.", "torch.utils.tensorboard.")
    return kind.__module__.startswith(modules)


def before_cleanup(error: BaseException) -> BaseException:
    """The error that ended training, if Lightning's clean-up after it raised another one.

    Lightning calls ``on_exception`` of callbacks and ``finalize`` of loggers in ``_interrupt``.
    """
    while error.__context__ and any(
        _is_raised_in(error, name) for name in ("_interrupt", "_teardown")
    ):
        error = error.__context__
    return error


def _is_raised_in(error: BaseException, function: str) -> bool:
    """Whether a function of this name raised the error, or what it called."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == function for frame, _ in frames)


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk, or an exhausted quota, is the cause.

    torch's writer raises a RuntimeError with the system's text, or, if it opened the file itself,
    one about its position; TensorBoard's logger raises an error of its own from the system's.
    """
    return any(_says_disk_full(cause) for cause in error_chain(error))


def _says_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    words = r"No space left on device|Disk quota exceeded|inline_container.*unexpected pos"
    return bool(re.search(words, str(error)))


def _line_of_disk_full(error: BaseException) -> str:
    cause = next(cause for cause in error_chain(error) if _says_disk_full(cause))
    return f"{type(cause).__name__}: {str(cause).splitlines()[0]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of a GPU or of the host was too small."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    # torch's words; and those about a loader's worker that SIGKILL ended, as Linux does when memory
    # is short (torch/utils/data/_utils/signal_handling.py).
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
    """Whether a loader's worker could not pass a batch on through /dev/shm.

    The kernel kills such a worker with SIGBUS, which torch reports (torch/utils/data/_utils/
    signal_handling.py); a file that cannot be created there is an OSError of torch's storage.
    """
    words = r"[Bb]us error|insufficient shared memory|unable to (mmap|open|allocate) shared memory"
    if any(re.search(words, str(cause)) for cause in error_chain(error)):
        return True
    # An error about a semaphore, which is a file there, has no file name.
    return is_disk_full(error) and free_shared_memory() < PAGE


def free_shared_memory() -> float:
    """Free bytes in /dev/shm; infinite if the system has none."""
    try:
        return shutil.disk_usage("/dev/shm").free  # noqa: S108
    except OSError:
        return math.inf


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, the innermost last."""
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
    return first if len(first) <= LONG else f"{first[:LONG]}…"


def nccl_reason(error: BaseException) -> str:
    """NCCL's last error, in one line; "" if the error has none.

    torch's general words stand before it and C++ frames after it (torch 2.13: NCCLUtils.cpp,
    ``getNcclErrorDetailStr``).
    """
    end = r"\nException raised from|\nframe #|\Z"
    found = re.search(rf"Last error:\s*(.*?)\s*(?:{end})", str(error), re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def described(error: BaseException) -> str:
    """The error in one line, with the line of the user's code that it came from.

    An error in a loader's worker holds the worker's stack trace in its text, and its cause in the
    last line.
    """
    trace = "".join(traceback.format_exception(error))
    places = re.findall(r'File "(.+)", line (\d+), in (.+)', trace)
    own = [place for place in places if is_users_file(place[0])]
    file, line, function = own[-1] if own else ("", "", "")
    first, *more = [*str(error).strip().splitlines(), ""]
    cause = more[-2] if "Original Traceback" in trace and more[1:] else first
    if cause == first:
        cause = f"{type(error).__name__}: {first}"
    return one_line(f"{Path(file).name}:{line} {function}: {cause}" if own else cause)


def is_users_file(file: str) -> bool:
    """Whether code is the project's own, not Python's, a library's, the package's or generated."""
    installed = re.search(r"[\\/](site|dist)-packages[\\/]", file)
    return not installed and not file.startswith((PACKAGE, STANDARD_LIBRARY, "<"))


@contextlib.contextmanager
def warn_on_failure(task: str) -> Iterator[None]:
    """Print a warning if the body fails: no picture is worth a trained model."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {root_cause(error)}"
        print(f"warning: {task} failed ({reason}); nothing else is affected", file=sys.stderr)


def discard_stdout() -> None:
    """Discard standard output once its reader is gone; else Python complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_command(body: Callable[[], None]) -> int:
    """Run the body of a command like predict.py, and return the process's status.

    It is 0, 1 for an error that the user can correct, which is printed, and 130 after Ctrl-C.
    """
    try:
        with printable_output():
            body()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough
        discard_stdout()
    except Exception as error:
        user_error = error if isinstance(error, UserError) else None
        if is_out_of_memory(error):
            user_error = UserError(
                f"not enough memory ({root_cause(error)})",
                "give fewer or shorter texts at a time, or use a machine with more memory",
            )
        if user_error is None:
            raise
        print(f"error: {user_error}", file=sys.stderr)
        return 1
    return 0
