"""A callback that every Trainer of a rehearsal gets, and that notes the rank's facts.

Lightning finds it by its entry point (``pytorch_lightning.callbacks_factory``) on the rehearsal's
PYTHONPATH, so the rehearsed code needs no change. It also carries out ``--fail-rank`` and
``--kill-rank``. The names of the facts are those of evidence.Rank.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

FAULT_STEP = 2  # late enough that every rank is in the middle of training
BATCHES = 500  # of the first epoch: ranks that share data do so from the beginning
SAMPLES = 20_000
DEPTH = 10  # levels of nesting in a batch


class Recorder(Callback):
    """Notes rank, data, metrics, weights, calls of ``prepare_data`` and files written."""

    def __init__(self) -> None:
        host = int(os.environ["REHEARSAL_HOST"])
        folder = Path(os.environ["REHEARSAL_EVIDENCE"])
        self.path = folder / f"rank-{host}-{os.getpid()}.json"
        self.weights: dict[str, str] = {}
        self.first_epoch: int | None = None  # None before the first fit, -1 in a later one
        self.facts: dict[str, Any] = {
            "host": host,
            "prepare_data": [],
            "metrics": {},
            "files": [],
            "package": getattr(sys.modules.get("smlightning"), "__file__", None) or "",
        }
        watch_files(os.environ["REHEARSAL_BASE"], self.facts["files"])
        for kind in subclasses(LightningDataModule) | subclasses(LightningModule):
            if "prepare_data" in vars(kind):
                watch_prepare_data(kind, self.facts["prepare_data"])
        atexit.register(self.save)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        batches = int(os.environ["REHEARSAL_BATCHES"])
        if batches:
            shorten(trainer, batches)
        self.facts |= {
            "rank": trainer.global_rank,
            "local_rank": trainer.local_rank,
            "node_rank": trainer.node_rank,
            "world_size": trainer.world_size,
            "current_host": os.environ.get("SM_CURRENT_HOST", ""),
        }
        self.save()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.facts["first_step"] = trainer.global_step
        self.first_epoch = -1 if "batches" in self.facts else None
        self.facts.setdefault("batches", [])
        self.facts.setdefault("samples", [])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note digests of the batch and its samples.

        A run that resumes at an epoch's end begins with the next one: the epoch is known only now.
        """
        if self.first_epoch is None:
            self.first_epoch = trainer.current_epoch
        batches, samples = self.facts["batches"], self.facts["samples"]
        if trainer.current_epoch != self.first_epoch or len(batches) == BATCHES:
            return
        columns = sample_columns(batch)
        size = len(columns[0]) if columns else 0
        batches.append([digest(leaves(batch)), size])
        if len(samples) + size <= SAMPLES:
            samples += [digest(column[i] for column in columns) for i in range(size)]

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step != FAULT_STEP:
            return
        # The rehearsal may now stop or kill the host.
        (self.path.parent / f"in-training-{self.facts['host']}").touch()
        kind, _, target = os.environ["REHEARSAL_FAULT"].partition(" ")
        if kind not in ("fail-rank", "kill-rank") or int(target) != trainer.global_rank:
            return
        self.facts["fault_at"] = time.time()
        self.save()
        if kind == "kill-rank":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(f"rank {target} fails because --fail-rank asks for it")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note metrics of validation and test; those of training may differ between ranks."""
        for name, value in trainer.callback_metrics.items():
            if not name.startswith("train"):
                self.facts["metrics"][name] = float(value)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note only the trained parameters.

        BatchNorm's statistics differ between ranks until all load the best weights of rank 0.
        """
        self.note_weights("trained", dict(pl_module.named_parameters()))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_validation_end(trainer, pl_module)
        self.note_weights("tested", pl_module.state_dict())

    def note_weights(self, when: str, state: Mapping[str, Any]) -> None:
        """Keep the digests of trained and tested weights: all ranks may test the weights of one."""
        self.weights[when] = digest(part for item in sorted(state.items()) for part in leaves(item))
        texts = [f"{content} {when}" for when, content in self.weights.items()]
        self.facts["weights"] = ", ".join(texts)
        self.save()

    def save(self) -> None:
        self.path.write_text(json.dumps(self.facts))


@functools.cache
def recorder() -> Recorder:
    """The recorder of all Trainers of a process."""
    return Recorder()


def shorten(trainer: Trainer, batches: int) -> None:
    """Limit training to one epoch of so many steps, validation and test to as many batches.

    Trainer counts its batches later. A share of the data (a float below 1) stays.
    """
    steps = batches * trainer.accumulate_grad_batches
    for name, most in (("train", steps), ("val", batches), ("test", batches)):
        limit = getattr(trainer, f"limit_{name}_batches")
        too_many = limit > most if isinstance(limit, int) else limit == 1.0
        if too_many:
            setattr(trainer, f"limit_{name}_batches", most)
    trainer.fit_loop.max_epochs = 1


def watch_prepare_data(kind: type, calls: list[str]) -> None:
    """Note each call of the class's ``prepare_data``, with the run of Trainer."""
    original = vars(kind)["prepare_data"]

    @functools.wraps(original)
    def prepare_data(module: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = getattr(module, "trainer", None)
        run = trainer.state.fn.value if trainer and trainer.state.fn else "no run"
        nodes = "" if getattr(module, "prepare_data_per_node", True) else " for all nodes"
        calls.append(f"{type(module).__name__}.prepare_data in {run}{nodes}")
        return original(module, *args, **kwargs)

    kind.prepare_data = prepare_data  # type: ignore[attr-defined]


def watch_files(base: str, files: list[str]) -> None:
    """Note every file that is opened for writing or renamed in the folders of a job's results."""
    kept = tuple(f"{base}/{folder}/" for folder in ("model", "checkpoints", "output/data"))

    def note(path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  links stay links
        if name.startswith(kept):
            relative = os.path.relpath(name, base)
            if relative not in files:
                files.append(relative)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR):
            note(args[0])
        elif event == "os.rename":
            note(args[1])

    sys.addaudithook(audit)
    # Both write without an audit event: torch.save from C++, safetensors from Rust.
    torch.save = noting(note, torch.save, "f", 1)
    with contextlib.suppress(ImportError):
        import safetensors.torch as safetensors

        safetensors.serialize_file = noting(note, safetensors.serialize_file, "filename", 1)


def noting(
    note: Callable[[Any], None], function: Callable[..., Any], name: str, position: int
) -> Callable[..., Any]:
    """The function, which first notes its path: the argument of this name or position."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        by_position = args[position] if len(args) > position else None
        note(kwargs.get(name, by_position))
        return function(*args, **kwargs)

    return noted


def sample_columns(batch: Any) -> list[torch.Tensor]:
    """The batch's tensors with an item for each sample.

    The most frequent length of its tensors is the number of samples.
    """
    tensors = [item for item in leaves(batch) if isinstance(item, torch.Tensor) and item.dim()]
    lengths = Counter(len(tensor) for tensor in tensors).most_common(1)
    return [tensor for tensor in tensors if len(tensor) == lengths[0][0]]


def leaves(item: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors, numbers and texts of a batch; a sparse or nested tensor as its text.

    Sharded weights are gathered, on all ranks at once.
    """
    if isinstance(item, torch.Tensor):
        whole = item.full_tensor() if hasattr(item, "full_tensor") else item
        tensor = whole.detach().cpu()
        is_plain = tensor.layout == torch.strided and not tensor.is_nested
        yield tensor if is_plain else repr(tensor)
    elif isinstance(item, str | bytes | int | float):
        yield item
    elif depth < DEPTH:
        parts = item if isinstance(item, Mapping | list | tuple) else getattr(item, "__dict__", ())
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            yield from leaves(part, depth + 1)


def digest(parts: Iterable[Any]) -> str:
    """The digest of contents, dtypes and shapes."""
    content = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, torch.Tensor):
            content.update(f"{part.dtype} {tuple(part.shape)}".encode())
            content.update(part.contiguous().reshape(-1).view(torch.uint8).numpy())
        else:
            content.update(repr(part).encode())
    return content.hexdigest()


def subclasses(kind: type) -> set[type]:
    """All subclasses, of any depth."""
    kinds = set()
    for child in kind.__subclasses__():
        kinds |= {child, *subclasses(child)}
    return kinds
