"""What each rank saw, recorded from outside: a Lightning callback that every Trainer of a rehearsal gets.

Lightning finds it by its entry point (`pytorch_lightning.callbacks_factory`) on the rehearsal's PYTHONPATH, so the
rehearsed code needs no change. `--fail-rank` and `--kill-rank` are carried out here too.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

FAULT_STEP = 2  # late enough that every rank is in the middle of training
BATCHES = 500  # of the first epoch are noted: who shares data does so from the beginning
SAMPLES = 20_000  # likewise


class Recorder(Callback):
    """Notes ranks, batches, metrics, weights after training and test, calls of `prepare_data` and files written."""

    def __init__(self) -> None:
        self.path = Path(os.environ["REHEARSAL_EVIDENCE"]) / f"rank-{os.environ['REHEARSAL_HOST']}-{os.getpid()}.json"
        self.weights: dict[str, str] = {}
        self.seen: dict[str, Any] = {"host": int(os.environ["REHEARSAL_HOST"])}
        self.seen |= {"prepare_data": [], "metrics": {}, "files": []}
        self._watch_files()
        for kind in _subclasses(LightningDataModule) | _subclasses(LightningModule):
            if "prepare_data" in vars(kind):
                self._watch_prepare_data(kind)
        atexit.register(self.save)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if batches := int(os.environ["REHEARSAL_BATCHES"]):
            self._shorten(trainer, batches)
        self.seen |= {name: getattr(trainer, name) for name in ("local_rank", "node_rank", "world_size")}
        self.seen |= {"rank": trainer.global_rank, "current_host": os.environ.get("SM_CURRENT_HOST", "")}
        self.save()

    def _shorten(self, trainer: Trainer, batches: int) -> None:
        """One epoch of at most so many optimizer steps, and as many batches to validate and to test.

        Called before Trainer counts its own. A share of the data (a float below 1) stays what it is.
        """
        steps = batches * trainer.accumulate_grad_batches
        for name, most in (("train", steps), ("val", batches), ("test", batches)):
            limit = getattr(trainer, f"limit_{name}_batches")
            if limit > most if isinstance(limit, int) else limit == 1.0:
                setattr(trainer, f"limit_{name}_batches", most)
        trainer.fit_loop.max_epochs = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen["first_step"] = trainer.global_step
        self.first_epoch: int | None = -1 if "batches" in self.seen else None  # of the first fit alone
        self.seen.setdefault("batches", [])
        self.seen.setdefault("samples", [])

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note a digest of the batch with its number of samples, 0 where that cannot be told, and of each sample."""
        if self.first_epoch is None:  # only now: a run that resumes at an epoch's end begins with the next one
            self.first_epoch = trainer.current_epoch
        if trainer.current_epoch != self.first_epoch or len(self.seen["batches"]) == BATCHES:
            return
        tensors = [item for item in leaves(batch) if isinstance(item, torch.Tensor)]
        sizes = Counter(len(tensor) for tensor in tensors if tensor.dim())
        ((size, _),) = sizes.most_common(1) or [(0, 0)]
        columns = [tensor for tensor in tensors if tensor.dim() and len(tensor) == size]
        self.seen["batches"].append([digest(leaves(batch)), size])
        if len(self.seen["samples"]) + size <= SAMPLES:
            self.seen["samples"] += [digest(column[i] for column in columns) for i in range(size)]

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step != FAULT_STEP:
            return
        (self.path.parent / f"in-training-{self.seen['host']}").touch()  # hosts.py may now stop or kill the host
        rank, fault = trainer.global_rank, os.environ["REHEARSAL_FAULT"]
        if fault in (f"fail-rank {rank}", f"kill-rank {rank}"):
            self.seen["fault_at"] = time.time()
            self.save()
            if fault.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"rank {rank} fails because --fail-rank asks for it")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note validation's and test's metrics; a training metric may be a rank's own."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.seen["metrics"] |= {name: value for name, value in values.items() if not name.startswith("train")}

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Parameters alone: a BatchNorm's statistics are a rank's own until all load the best weights of rank 0.
        self._note_weights("trained", dict(pl_module.named_parameters()))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_validation_end(trainer, pl_module)
        self._note_weights("tested", pl_module.state_dict())

    def _note_weights(self, when: str, state: dict[str, Any]) -> None:
        """What was trained counts, too: all ranks may test the best weights of one."""
        self.weights[when] = digest(part for item in sorted(state.items()) for part in leaves(item))
        self.seen["weights"] = ", ".join(f"{content} {when}" for when, content in self.weights.items())
        self.save()

    def _watch_prepare_data(self, kind: type) -> None:
        original = vars(kind)["prepare_data"]

        @functools.wraps(original)
        def prepare_data(module: Any, *args: Any, **kwargs: Any) -> Any:
            trainer = getattr(module, "trainer", None)
            run = trainer.state.fn.value if trainer and trainer.state.fn else "no run"
            nodes = "" if getattr(module, "prepare_data_per_node", True) else " for all nodes"
            self.seen["prepare_data"].append(f"{type(module).__name__}.prepare_data in {run}{nodes}")
            return original(module, *args, **kwargs)

        kind.prepare_data = prepare_data  # type: ignore[attr-defined]

    def _watch_files(self) -> None:
        """Note every file opened for writing, or renamed, where SageMaker keeps what a job leaves behind."""
        base = os.environ["REHEARSAL_BASE"]
        kept = tuple(f"{base}/{folder}/" for folder in ("model", "checkpoints", "output/data"))

        def note(path: Any) -> None:
            if isinstance(path, str | bytes | os.PathLike):
                name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  links stay links
                if name.startswith(kept) and name not in self.seen["files"]:
                    self.seen["files"].append(os.path.relpath(name, base))

        def audit(event: str, args: tuple[Any, ...]) -> None:
            if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR):
                note(args[0])
            elif event == "os.rename":
                note(args[1])

        def noting(function: Any, name: str, position: int) -> Any:
            @functools.wraps(function)
            def noted(*args: Any, **kwargs: Any) -> Any:
                note(kwargs.get(name, args[position] if len(args) > position else None))
                return function(*args, **kwargs)

            return noted

        sys.addaudithook(audit)
        torch.save = noting(torch.save, "f", 1)  # writes from C++, which raises no audit event
        with contextlib.suppress(ImportError):
            import safetensors.torch as safetensors  # writes from Rust

            safetensors.serialize_file = noting(safetensors.serialize_file, "filename", 1)

    def save(self) -> None:
        self.path.write_text(json.dumps(self.seen))


@functools.cache
def recorder() -> Recorder:
    """One for all Trainers of a process."""
    return Recorder()


def leaves(item: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors, numbers and strings of a batch, up to ten levels deep; a sparse or nested tensor as it is printed."""
    if isinstance(item, torch.Tensor):
        tensor = item.detach().cpu()
        yield tensor if tensor.layout == torch.strided and not tensor.is_nested else repr(tensor)
    elif isinstance(item, str | bytes | int | float):
        yield item
    elif depth < 10:
        parts = item if isinstance(item, Mapping | list | tuple) else getattr(item, "__dict__", ())
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            yield from leaves(part, depth + 1)


def digest(parts: Iterable[Any]) -> str:
    content = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, torch.Tensor):
            content.update(f"{part.dtype} {tuple(part.shape)}".encode())
            content.update(part.contiguous().reshape(-1).view(torch.uint8).numpy())
        else:
            content.update(repr(part).encode())
    return content.hexdigest()


def _subclasses(kind: type) -> set[type]:
    return {below for child in kind.__subclasses__() for below in (child, *_subclasses(child))}
