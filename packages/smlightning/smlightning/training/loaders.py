"""Training loaders that start where training is; their part of a checkpoint."""

import copy
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.combined_loader import CombinedLoader

from smlightning import torch_files
from smlightning.cluster import collectives
from smlightning.data.batches import GlobalBatches
from smlightning.data.exact import (
    ExactBatches,
    RowLoader,
    Start,
    Stream,
    exact_loader,
    has_rows,
    keeps_state,
    length_of,
    sampler_of,
    start_of,
)
from smlightning.errors import UserError
from smlightning.training import loop

VISIBLE = 1000  # one repeated row of so many may change a metric's third digit
METHODS = ("setup", "train_dataloader", "val_dataloader", "test_dataloader")


def __getattr__(name: str) -> Any:
    """Tell an earlier train.py, which names `ExactLoaders`, what to write."""
    if name == "ExactLoaders":
        raise UserError(
            "smlightning.training.loaders has no ExactLoaders any more",
            "in src/train.py, delete it and its import, and write "
            "data = run.resumable(Data(**vars(options)))",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Loaders:
    """Makes the loaders of a data module start where training is.

    A DataLoader of rows becomes a `RowLoader` of the same data set, sampler, workers and
    ``collate_fn``, which divides the order of the sampler among the ranks and seeds the generators
    for each row. Any other training loader becomes a `Stream`. `batches.loader` stays as it is.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.orders: list[list[int]] = []  # of the last epoch that ended
        self.samples: list[int] = []  # of each stream, in the first epoch that was trained whole
        self.resumed: Mapping[str, Any] | None = None  # the result of `state` in the checkpoint
        self.data_state: Mapping[str, Any] = {}  # the data module's in it
        self.same_ranks = True  # as then
        self.printed: set[str] = set()  # warnings
        self.begins = 0, 0  # the epoch of the checkpoint, and a rank's batches of it that are done

    def resumable(self, data: pl.LightningDataModule) -> pl.LightningDataModule:
        """Let the methods of a data module return the loaders that Lightning iterates.

        Its ``setup`` gets the same random numbers on all ranks, for training and test. Who calls a
        method that returns loaders, as for statistics of all rows, gets the data module's own.
        """
        for name in METHODS:
            setattr(data, name, DataHook(data, name, getattr(self, f"_{name}")))
        return data

    def _setup(
        self, data: pl.LightningDataModule, setup: Callable[..., None], *args: Any, **options: Any
    ) -> None:
        pl.seed_everything(self.seed, verbose=False)
        setup(*args, **options)

    def _train_dataloader(self, data: pl.LightningDataModule, make: Callable[[], Any]) -> Any:
        trainer: Any = data.trainer
        if trainer is None:
            return make()
        with loop.at_epoch(trainer, made_in(trainer)):
            given = make()
        return self._each(data, given, training=True)

    def _val_dataloader(self, data: pl.LightningDataModule, make: Callable[[], Any]) -> Any:
        return self._each(data, make(), training=False)

    _test_dataloader = _val_dataloader

    def _each(self, data: pl.LightningDataModule, given: Any, training: bool) -> Any:
        """The collection of loaders, of which each is replaced."""
        trainer: Any = data.trainer
        if trainer is None:
            return given
        combined = given if isinstance(given, CombinedLoader) else CombinedLoader(given)
        made: list[Any] = []
        for loader in combined.flattened:
            made.append(self._loader(trainer, loader, made, training))
        combined.flattened = made
        return combined if combined is given else combined.iterables

    def _loader(self, trainer: Any, loader: Any, before: list[Any], training: bool) -> Any:
        """The loader to iterate.

        Args:
            before: the loaders of this collection that come before it.
        """
        own = loader.batches if isinstance(loader, RowLoader) else sampler_of(loader)
        if overfits(trainer) and isinstance(own, GlobalBatches):
            raise UserError(
                f"overfit_batches={trainer.overfit_batches} replaces the sampler, and "
                "batches.loader needs its own",
                "use limit_train_batches, with --seed for the same batches in each run",
            )
        if training and isinstance(own, GlobalBatches):
            own.start = self._start(trainer)
        if isinstance(loader, RowLoader | Stream) or overfits(trainer):
            return loader
        if not has_rows(loader):
            return self._stream(trainer, loader, before) if training else loader
        number = len(orders_of(before, 0))
        made = exact_loader(
            loader,
            self.seed,
            trainer.global_rank,
            trainer.world_size if loop.divides_data(trainer) else 1,
            self._start(trainer) if training else None,
            made_in(trainer),
            self._expected(number) if training else (0, 0),
        )
        if not training and trainer.is_global_zero:
            self._warn_of_repeated(trainer, made)
        return made

    def _warn_of_repeated(self, trainer: Any, loader: RowLoader) -> None:
        """Print once that metrics count repeated rows, if that can be seen in three digits.

        The last batches repeat rows: an evaluation with a limit may end before them.
        """
        limits = trainer.limit_val_batches, trainer.limit_test_batches
        is_limited = any(isinstance(limit, int) or limit < 1 for limit in limits)
        batches = loader.batches
        items = length_of(batches.inner) if isinstance(batches, ExactBatches) else 0
        if is_limited or not items or not loader.divides:
            return
        part = batches.part
        more = part.repeated(items)
        line = (
            f"warning: {part.ranks} ranks get equally many {'rows' if part.size else 'batches'} of "
            f"an evaluation's {items}, so its metrics count {more} too many; batches.loader gives "
            "repeated rows the weight 0"
        )
        if more * VISIBLE > items and line not in self.printed:
            print(line, flush=True)
            self.printed.add(line)

    def _expected(self, number: int) -> tuple[int, int]:
        """The batches of a loader that the interrupted run trained on, and their checksum."""
        orders = self.resumed["orders"] if self.resumed and self.same_ranks else []
        batches, checksum = orders[number] if number < len(orders) else (0, 0)
        return batches, checksum

    def _stream(self, trainer: pl.Trainer, loader: Any, before: list[Any]) -> Stream:
        """A stream with its state of the checkpoint; `begin` rejects a run with another number."""
        saved = None
        if self.resumed and keeps_state(loader) and start_of(trainer) <= self.begins:
            number, ranks = len(streams(before)), self.resumed["streams"]
            if trainer.world_size == len(ranks) and number < len(ranks[0]["states"]):
                saved = ranks[trainer.global_rank]["states"][number]
        return Stream(loader, self.seed, trainer.global_rank, self._start(trainer), saved)

    def _start(self, trainer: pl.Trainer) -> Start:
        """The function that loaders call when an iteration begins.

        Lightning may fetch the first batch before it restores its loops: it does so for
        ``estimated_stepping_batches`` in ``configure_optimizers``.
        """
        return lambda: max(start_of(trainer), self.begins)

    # In a checkpoint

    def state(self, trainer: pl.Trainer, batches: int) -> dict[str, Any]:
        """The states of all ranks' training loaders. Collective, as saving is.

        Args:
            batches: a rank's batches of this epoch that were trained on; 0: all of the last one.
        """
        loaders = all_loaders(trainer.train_dataloader)
        return {
            "orders": orders_of(loaders, batches) if batches else self.orders,
            "samples": self.samples,
            "streams": states_of_ranks(streams(loaders), batches),
        }

    def resume(
        self,
        state: Mapping[str, Any],
        begins: tuple[int, int],
        same_ranks: bool,
        data_state: Mapping[str, Any],
    ) -> None:
        """Use the ``state`` of a checkpoint, before Lightning asks for the loaders.

        Args:
            data_state: of the data module, empty if it has none.
            begins: the epoch, and a rank's batches of it that are done.
            same_ranks: whether the checkpoint is of as many ranks.
        """
        self.resumed, self.begins, self.same_ranks = state, begins, same_ranks
        self.data_state = data_state
        self.samples, self.orders = state["samples"], state["orders"]

    # Called by checkpoints.callback.Checkpoints

    def begin(self, trainer: pl.Trainer) -> None:
        """All training loaders are made: reject a resumed run with others than before."""
        if self.resumed is None:
            return
        loaders = all_loaders(trainer.train_dataloader)
        check_states(self.resumed["streams"], streams(loaders), trainer.world_size)
        if trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
            loop.set_reloaded(trainer, made_in(trainer))
        if self.data_state:  # the data module may have counted the call that made them
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            data.load_state_dict(copy.deepcopy(self.data_state))
        is_other = not self.same_ranks and not all(is_global(loader) for loader in loaders)
        if is_other and trainer.is_global_zero:
            print(
                "resume: inexact: the number of ranks has changed: samples come in another "
                "order, except from batches.loader",
                flush=True,
            )

    def end_epoch(self, trainer: pl.Trainer) -> None:
        """Note what the epoch gave; print a line if a stream gave another number of samples than in
        its first epoch.
        """
        loaders = all_loaders(trainer.train_dataloader)
        self.orders = orders_of(loaders, loop.batches_of_epoch(trainer))
        found = [loader for loader in loaders if isinstance(loader, Stream)]
        # A run that resumes after an epoch's last batch does not iterate in this epoch.
        if not all(each.is_whole and each.epoch == trainer.current_epoch for each in found):
            return
        now = [stream.samples for stream in found]
        self.samples = self.samples or now
        if now != self.samples and trainer.is_global_zero:
            print(
                f"warning: epoch {trainer.current_epoch + 1} had {now[0]} samples on rank 0, and "
                f"the first one {self.samples[0]}; the stream ends early, or a library restored "
                "its state wrongly",
                flush=True,
            )


class DataHook:
    """A method of a data module, whose result is changed where Lightning calls it.

    To others it is the data module's own, and so it is in another process, as a loader's worker.
    """

    def __init__(self, data: pl.LightningDataModule, name: str, call: Callable[..., Any]) -> None:
        self.data, self.name, self.call = data, name, call
        self.__wrapped__ = getattr(data, name)  # Lightning sees by it whether a hook is overridden

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not loop.is_called_by_lightning(sys._getframe(1)):
            return self.__wrapped__(*args, **options)
        return self.call(self.data, self.__wrapped__, *args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.data, self.name)


def overfits(trainer: pl.Trainer) -> bool:
    """Whether Lightning replaces samplers, to train on the same batches again and again."""
    return bool(getattr(trainer, "overfit_batches", 0))


def made_in(trainer: Any) -> int:
    """The epoch in which the undisturbed run makes the loaders that are made now."""
    every, epoch = trainer.reload_dataloaders_every_n_epochs, trainer.current_epoch
    return epoch - epoch % every if every else 0


def is_global(loader: Any) -> bool:
    """Whether the batches of a loader do not depend on the number of ranks."""
    return isinstance(loader, RowLoader) and isinstance(loader.batches, GlobalBatches)


def streams(loaders: Sequence[Any]) -> list[Stream]:
    """The streams with a state."""
    found = [loader for loader in loaders if isinstance(loader, Stream)]
    return [stream for stream in found if keeps_state(stream.loader)]


def orders_of(loaders: Sequence[Any], batches: int) -> list[list[int]]:
    """For each owner's loader of rows, the batches trained on, and a checksum of their rows."""
    samplers = [loader.batches for loader in loaders if isinstance(loader, RowLoader)]
    exact = [sampler for sampler in samplers if isinstance(sampler, ExactBatches)]
    return [[batches, sampler.checksum(batches)] for sampler in exact]


def all_loaders(loaders: Any) -> list[Any]:
    """The loaders in any collection."""
    return list(CombinedLoader([] if loaders is None else loaders, "sequential").flattened)


# States of streams


def states_of_ranks(loaders: Sequence[Stream], batches: int) -> list[dict[str, Any]]:
    """The states of the loaders of all ranks, by rank, on rank 0. Collective.

    Args:
        batches: see `Stream.state`.

    Raises:
        UserError: a state contains something other than plain values and tensors.
    """
    if not loaders:
        return []
    of_this_rank = {
        "states": [loader.state(batches) for loader in loaders],
        "facts": [_facts(loader) for loader in loaders],
    }
    contents = collectives.bytes_to_rank_0("states of loaders", _encoded(of_this_rank))
    return [torch_files.load(content) for content in contents]


def _facts(loader: Any) -> dict[str, Any]:
    """Settings that must not change for the state to be valid."""
    return {name: getattr(loader, name, None) for name in ("num_workers", "batch_size")}


def _encoded(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch_files.load(file.getvalue())
    except Exception as error:  # pickling calls the user's code
        reason = str(error).strip().splitlines() or [""]
        raise UserError(
            "The state_dict of the training loader cannot be saved in a checkpoint "
            f"({reason[0][:200]})",
            "return only text, numbers, bytes, tensors, lists and dictionaries from the state_dict "
            "of loader, data set and sampler; an array as tolist()",
        ) from error
    return file.getvalue()


def check_states(
    states: Sequence[Mapping[str, Any]], loaders: Sequence[Stream], world_size: int
) -> None:
    """Check that streams can resume: as many of them, ranks, workers and rows of a batch as before.

    Not where Lightning asks for them: after an error there it leaves methods of DataLoader replaced
    (2.6.6: lightning_fabric/utilities/data.py, ``_replace_dunder_methods``).

    Args:
        states: from `states_of_ranks`.

    Raises:
        UserError: they differ.
    """
    before = states[0]["facts"] if states else []
    if len(before) != len(loaders):
        raise UserError(
            f"The checkpoint has the states of {len(before)} training loaders, and this run has "
            f"{len(loaders)} loaders with a state",
            "bring back the earlier loaders, or train from the start with --resume never",
        )
    for facts, loader in zip(before, loaders, strict=True):
        then = {"world_size": len(states), **facts}
        now = {"world_size": world_size, **_facts(loader)}
        changed = [f"{name}={then[name]}" for name in now if now[name] != then[name]]
        if changed:
            values = ", ".join(f"{name}={value}" for name, value in now.items())
            raise UserError(
                f"The checkpoint has the state of {type(loader.loader).__name__} with "
                f"{', '.join(changed)}, and this run has {values}",
                "resume with the earlier values, or train from the start with --resume never",
            )
