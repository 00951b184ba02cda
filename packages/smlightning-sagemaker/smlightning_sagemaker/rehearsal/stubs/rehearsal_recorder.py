"""A callback that every Trainer of a rehearsal gets: facts that only Lightning's Trainer knows.

Lightning finds it by an entry point on the rehearsal's PYTHONPATH, so the rehearsed code needs no
change: ``pytorch_lightning.callbacks_factory``, or ``lightning.pytorch.callbacks_factory`` of the
package ``lightning``, whose classes are others. The names of the facts are those of evidence.Rank;
rehearsal_process.py notes the others.
"""

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rehearsal_process import (
    carry_out_fault,
    digest,
    facts,
    main_address,
    note_batch,
    save,
)

if TYPE_CHECKING:  # a script may import the other package, and each takes seconds
    from pytorch_lightning import LightningModule, Trainer

# The first epoch of the first fit; -1 in a later one. A resuming run restores plain attributes of
# callbacks, so it is none.
first_epoch: list[int] = []


class Recorder:
    """Notes rank, data, metrics, weights and calls of ``prepare_data``.

    Args:
        library: the package of the script's Trainer, whose Callback it also is.
    """

    def __init__(self, library: Any) -> None:
        self.weights: dict[str, str] = {}
        facts["lightning"] = True
        facts.setdefault("prepare_data", [])
        facts.setdefault("metrics", {})
        facts["package"] = getattr(sys.modules.get("smlightning"), "__file__", None) or ""
        for kind in subclasses(library.LightningDataModule) | subclasses(library.LightningModule):
            if "prepare_data" in vars(kind):
                watch_prepare_data(kind, facts["prepare_data"])

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        batches = int(os.environ["REHEARSAL_BATCHES"])
        if batches:
            shorten(trainer, batches)
        facts.update(
            rank=trainer.global_rank,
            local_rank=trainer.local_rank,
            node_rank=trainer.node_rank,
            world_size=trainer.world_size,
            current_host=os.environ.get("SM_CURRENT_HOST", ""),
            main_address=main_address(),
        )
        save()

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        facts["first_step"] = trainer.global_step
        first_epoch[:] = [-1] if "batches" in facts else []
        facts.setdefault("batches", [])
        facts.setdefault("samples", [])

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        """Note digests of the batch and its samples.

        A run that resumes at an epoch's end begins with the next one: the epoch is known only now.
        """
        if not first_epoch:
            first_epoch.append(trainer.current_epoch)
        if trainer.current_epoch == first_epoch[0]:
            note_batch(facts["batches"], facts["samples"], batch)

    def on_train_batch_end(self, trainer: "Trainer", *_: Any) -> None:
        carry_out_fault(trainer.global_step, trainer.global_rank)

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Note metrics of validation and test; those of training may differ between ranks."""
        for name, value in trainer.callback_metrics.items():
            if not name.startswith("train"):
                facts["metrics"][name] = float(value)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Note only the trained parameters.

        BatchNorm's statistics differ between ranks until all load the best weights of rank 0.
        """
        self.note_weights("trained", dict(pl_module.named_parameters()))

    def on_test_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self.on_validation_end(trainer, pl_module)
        self.note_weights("tested", pl_module.state_dict())

    def note_weights(self, when: str, state: Mapping[str, Any]) -> None:
        """Keep the digests of trained and tested weights: all ranks may test the weights of one."""
        self.weights[when] = digest(sorted(state.items()))
        texts = [f"{content} {when}" for when, content in self.weights.items()]
        facts["weights"] = ", ".join(texts)
        save()


@functools.cache
def recorder(package: str = "pytorch_lightning") -> Recorder:
    """The recorder of all Trainers of a package in this process."""
    library = importlib.import_module(package)
    kind = type("Recorder", (Recorder, library.Callback), {})
    return kind(library)


def recorder_of_lightning() -> Recorder:
    return recorder("lightning.pytorch")


def shorten(trainer: "Trainer", batches: int) -> None:
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


def subclasses(kind: type) -> set[type]:
    """All subclasses, of any depth."""
    kinds = set()
    for child in kind.__subclasses__():
        kinds |= {child, *subclasses(child)}
    return kinds
