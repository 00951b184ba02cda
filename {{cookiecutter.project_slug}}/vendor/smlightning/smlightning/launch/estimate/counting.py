"""The sizes of the project's own model, counted of its tensors: a process of its own, with torch.

    python -m smlightning.launch.estimate.counting < REQUEST > ANSWER  (both JSON: `known` asks)

src/train.py runs up to where Lightning asks the model for its network. Of that the outline is
built, so that a model of any size needs no memory and of a checkpoint its configuration alone; then
tensors without numbers (FakeTensorMode,
https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html) go through one training step,
and every storage that is alive is counted. What cannot run so is built, or run, with numbers.
"""

# ruff: noqa: E402  (Lightning is imported in half the time, as train.py does)

import contextlib
import importlib
import inspect
import json
import math
import os
import re
import sys
import tempfile
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smlightning.training import imports

imports.lightning()

import pytorch_lightning as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from smlightning.cluster.blocks import blocks, networks
from smlightning.data.batches import leaves
from smlightning.errors import UserError, root_cause
from smlightning.launch.estimate.sizes import PROCESS, STATES, Linear, Sizes, pinned_share
from smlightning.outline import outline

LOOKED_AT = 20  # batches, of which the largest is taken
Build = Callable[[], Any]


class Counted(Exception):
    """Training has come as far as it is needed."""


@dataclass(frozen=True)
class Mode:
    """How the network is built, and whether its tensors have numbers."""

    outline: bool
    fake: bool


MODES = (
    Mode(outline=True, fake=True),
    Mode(outline=False, fake=True),
    Mode(outline=False, fake=False),
)


def count(options: dict[str, Any]) -> dict[str, Any]:
    """What `known.counted` returns of one variant, by the first of MODES in which the step runs."""
    for mode in MODES:
        try:
            return _count(options, mode)
        except UserError:
            raise
        except Exception:
            if mode is MODES[-1]:
                raise
            print(f"{mode} failed:", file=sys.stderr)
            traceback.print_exc()
    raise AssertionError


def _count(options: dict[str, Any], mode: Mode) -> dict[str, Any]:
    """Run train.py with a Trainer that counts in place of training."""
    answer: dict[str, Any] = {}
    given = pl.Trainer

    class CountingTrainer(given):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, **more: Any) -> None:
            more |= {"callbacks": [], "logger": False, "enable_checkpointing": False}
            super().__init__(*args, **more)

        def fit(self, model: Any, *args: Any, **more: Any) -> None:
            build = model.configure_model

            def counted() -> None:
                answer.update(_of_step(self, model, build, mode))
                raise Counted

            model.prepare_data = _nothing  # it may fetch a checkpoint's weights
            model.configure_model = counted
            model.cpu = _nothing  # Lightning's end moves weights, and these have no numbers
            super().fit(model, *args, **more)

    pl.Trainer = CountingTrainer  # type: ignore[misc]
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Counted):
            options_class = importlib.import_module("options").Options
            chosen = options_class(**{**options, "output_dir": folder})
            importlib.import_module("train").train(chosen)
    finally:
        pl.Trainer = given  # type: ignore[misc]
    return answer


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _of_step(trainer: Any, model: Any, build: Build, mode: Mode) -> dict[str, Any]:
    trainer.fit_loop.setup_data()  # with numbers
    batch, length = _largest_batch(trainer.train_dataloader)
    with outline() if mode.outline else contextlib.nullcontext():
        build()
    # Before anything else is imported: tensors without numbers bring much that training does not.
    process_bytes = _process_bytes(model)
    model.train()
    model.log = model.log_dict = _nothing  # outside of a loop Lightning's raises
    size = batch_size(batch)
    with without_numbers(model) if mode.fake else contextlib.nullcontext(), fused_attentions():
        for parameter in trained(model):
            parameter.grad = torch.zeros_like(parameter)  # as DDP's buckets, there all the time
        optimizer_bytes = _optimizer_bytes(trainer, model)
        steps_of = [
            _step_of(trainer, model, of_size(batch, size, wanted, length))
            for wanted in ((size, 2 * size) if mode.fake else (1, 2))
        ]
    low = size if mode.fake else 1
    sizes = sizes_of(
        model,
        optimizer_bytes,
        line(low, *(result.activations for result in steps_of)),
        line(low, *(result.temporary for result in steps_of)),
    )
    longest = leaves(of_size(batch, size, size, length))
    sample_bytes = bytes_of(leaf for leaf in longest if torch.is_tensor(leaf)) // size
    sizes = replace(sizes, sample_bytes=sample_bytes, process_bytes=process_bytes)
    return {
        "sizes": sizes.to_dict(),
        "length": length,
        "largest": list(steps_of[0].largest),
        "samples": _samples(trainer.train_dataloader, size),
    }


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def sizes_of(
    model: nn.Module, optimizer_bytes: int, activations: Linear, temporary: Linear
) -> Sizes:
    """The sizes of a model whose step was counted."""
    parameters = list(model.parameters())
    divided = [(network, list(blocks(network))) for network in networks(model)]
    in_blocks = [bytes_of(block.parameters()) for _, of_network in divided for block in of_network]
    whole = bytes_of(parameters)
    # A checkpoint holds a weight that has two names twice.
    weights = [value for value in model.state_dict().values() if torch.is_tensor(value)]
    saved = [value.numel() * value.element_size() for value in weights]
    return Sizes(
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in trained(model)),
        parameter_bytes=whole,
        gradient_bytes=bytes_of(trained(model)),
        optimizer_bytes=optimizer_bytes,
        buffer_bytes=bytes_of(model.buffers()),
        checkpoint_bytes=sum(saved) + optimizer_bytes,
        root_bytes=whole - sum(in_blocks),
        block_bytes=max(in_blocks, default=0),
        activations=activations,
        temporary=temporary,
        # The optimizer's state has tensors of the same shapes.
        pinned=pinned_share(saved),
        pinned_below_2_13=pinned_share(saved, math.inf),
    )


def _process_bytes(model: nn.Module) -> int:
    """This process's own memory, which no file can give back, without the model's tensors."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # not on Linux
        return PROCESS
    kibibytes = re.search(r"RssAnon:\s+(\d+) kB", status)
    tensors = [t for t in (*model.parameters(), *model.buffers()) if not t.is_meta]
    return max(int(kibibytes[1]) * 1024 - bytes_of(tensors), 0) if kibibytes else PROCESS


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors; one that several share counts once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[id(storage)] = storage  # its Python object lives as long as the storage itself
    return sum(storage.nbytes() for storage in storages.values())


def line(low: int, at_low: int, at_twice: int) -> Linear:
    """The line through what was counted at a batch of ``low`` and of twice as many."""
    per_sample = max(at_twice - at_low, 0) // low
    return Linear(max(at_low - per_sample * low, 0), per_sample)


def _optimizer_bytes(trainer: Any, model: Any) -> int:
    """Bytes of the optimizers' state after a step; AdamW's where none can be made here."""
    try:
        return state_bytes(list(_optimizers(model.configure_optimizers())))
    except Exception as error:
        print(f"optimizer: {type(error).__name__}: {root_cause(error)}", file=sys.stderr)
        return STATES * bytes_of(trained(model))


def state_bytes(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Bytes of what the optimizers keep, once they have made a step."""
    kept: list[torch.Tensor] = []
    for optimizer in optimizers:
        optimizer.step()
        kept += [leaf for leaf in leaves([*optimizer.state.values()]) if torch.is_tensor(leaf)]
    return bytes_of(kept)


def _optimizers(configured: Any) -> Iterator[torch.optim.Optimizer]:
    """Those in what configure_optimizers returns."""
    if isinstance(configured, torch.optim.Optimizer):
        yield configured
    elif isinstance(configured, dict):
        yield from _optimizers(configured.get("optimizer"))
    elif isinstance(configured, list | tuple):
        for part in configured:
            yield from _optimizers(part)


@dataclass(frozen=True)
class Step:
    """Bytes of one training step."""

    activations: int  # alive after the forward pass, and not before it
    temporary: int  # alive beside them at the peak
    largest: tuple[int, ...]  # shape of the largest tensor


def step(compute: Callable[[], torch.Tensor], kept: Iterable[torch.Tensor]) -> Step:
    """Count what is alive in a training step, forward and backward.

    Args:
        compute: the forward pass, which returns the loss.
        kept: what is there before and afterwards: weights, their gradients, the batch.
    """
    with Storages(kept) as storages:
        loss = compute()
        activations = storages.alive
        loss.backward()
        del loss
    return Step(activations, max(storages.peak - activations, 0), storages.largest)


def _step_of(trainer: Any, model: Any, batch: Any) -> Step:
    """The project's own training step."""
    takes = len(inspect.signature(model.training_step).parameters)
    arguments = [batch, 0][: max(takes, 1)]

    def loss() -> torch.Tensor:
        with trainer.precision_plugin.train_step_context():
            output = model.training_step(*arguments)
        return output["loss"] if isinstance(output, dict) else output

    tensors = [leaf for leaf in leaves(batch) if torch.is_tensor(leaf)]
    gradients = [parameter.grad for parameter in trained(model) if parameter.grad is not None]
    return step(loss, [*model.parameters(), *model.buffers(), *gradients, *tensors])


class Storages(TorchDispatchMode):
    """Counts the bytes of storages that operations in the body make, while they are alive.

    Args:
        kept: tensors whose storages are not counted, nor views of them.
    """

    def __init__(self, kept: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.largest: tuple[int, ...] = ()
        self._largest_bytes = 0
        self._kept = [tensor.untyped_storage() for tensor in kept]  # so that no id is used again
        self._known = {id(storage) for storage in self._kept}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for leaf in leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._known:
            return
        size = storage.nbytes()
        self._known.add(id(storage))
        # as in `bytes_of`
        weakref.finalize(storage, self._remove, id(storage), size)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        if size > self._largest_bytes:
            self._largest_bytes, self.largest = size, tuple(tensor.shape)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


@contextlib.contextmanager
def fused_attentions() -> Iterator[None]:
    """Attention that keeps what the fused kernels of GPUs keep: query, key, value, output and a
    number for each row (Dao et al. 2022), with dropout as well as without.

    The function is replaced: what is computed again for the backward pass, by gradient
    checkpointing, does not see a TorchFunctionMode, and would keep other tensors.
    """
    given = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = fused_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = given


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As F.scaled_dot_product_attention, by torch's fused kernel for CPUs."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(repeats, -3)
        value = value.repeat_interleave(repeats, -3)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attn_mask is not None and attn_mask.dtype != query.dtype:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    output, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )
    return output


@contextlib.contextmanager
def without_numbers(model: nn.Module) -> Iterator[None]:
    """In the body tensors have shapes and no numbers; those of the model are replaced by such."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        _empty(model)
        yield


def _empty(model: nn.Module) -> None:
    """Replace every tensor of the model by an empty one on the CPU."""
    # One that has two places stays one; the old ones are kept, so that no id is used again.
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in replaced:
            new = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            replaced[id(tensor)] = (tensor, new)
        return replaced[id(tensor)][1]

    for part in list(model.modules()):
        tensors: dict[str, torch.Tensor] = {}
        tensors.update(part.named_parameters(recurse=False, remove_duplicate=False))
        tensors.update(part.named_buffers(recurse=False, remove_duplicate=False))
        tensors.update((k, v) for k, v in vars(part).items() if isinstance(v, torch.Tensor))
        for name, tensor in tensors.items():
            setattr(part, name, empty(tensor))


def batch_size(batch: Any) -> int:
    """Samples of a batch: the length that most of its tensors have."""
    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim]
    if not tensors:
        raise UserError(
            "a batch of the project's data has no tensor whose first dimension counts samples",
            "estimate by hand: the sizes of its tensors cannot be read here",
        )
    ((size, _),) = Counter(len(tensor) for tensor in tensors).most_common(1)
    return size


def _largest_batch(loader: Any) -> tuple[Any, int]:
    """The batch with most numbers among the first, and the tokens of its longest sample.

    Where the loader knows the lengths of all samples (`GlobalBatches`), that is the longest of
    all: a batch of it is what memory must hold.
    """
    chosen, most = None, -1
    for _, batch in zip(range(LOOKED_AT), loader, strict=False):
        tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
        numbers = sum(tensor.numel() for tensor in tensors)
        if numbers > most:
            chosen, most = batch, numbers
    tensors = [leaf for leaf in leaves(chosen) if isinstance(leaf, torch.Tensor)]
    longest = max((tensor.shape[1] for tensor in tensors if tensor.ndim == 2), default=0)
    lengths = getattr(getattr(loader, "sampler", None), "lengths", None)
    if longest and lengths is not None:
        longest = max(longest, int(lengths.max()))
    return chosen, longest


def of_size(batch: Any, size: int, wanted: int, length: int = 0) -> Any:
    """A batch of the same form with other sizes, and no values.

    Args:
        batch: of ``size`` samples.
        wanted: samples of the other one.
        length: tokens of each; 0: as many as the batch has.
    """
    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    width = max((tensor.shape[1] for tensor in tensors if tensor.ndim == 2), default=-1)

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if shape and shape[0] == size:
            shape[0] = wanted
        if len(shape) == 2 and shape[1] == width:
            shape[1] = length or width
        return torch.zeros(shape, dtype=tensor.dtype)

    return apply_to_collection(batch, torch.Tensor, resized)


def _samples(loader: Any, size: int) -> int | None:
    """Rows for training in an epoch; None where the data does not know."""
    lengths = getattr(getattr(loader, "sampler", None), "lengths", None)
    if lengths is not None:
        return len(lengths)
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        pass
    try:
        return len(loader) * size
    except TypeError:
        return None


def main() -> int:
    """Answer the request on standard input; status 1 where the answer is an error."""
    request = json.load(sys.stdin)
    sys.path.insert(0, request["src"])
    answer: dict[str, Any] = {"variants": []}
    stdout = os.dup(1)
    os.dup2(2, 1)  # what train.py and the data print is no answer
    try:
        for changed in request["variants"]:
            try:
                counted = count({**request["options"], **dict(changed)})
            except UserError:
                if not changed:
                    raise
                continue  # the model has no such option
            answer["variants"].append({"changed": changed, **counted})
    except UserError as error:
        answer = {"problem": error.problem, "cure": error.cure}
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {root_cause(error)}"
        answer = {"problem": f"a training step could not be counted ({reason})", "cure": ""}
    with os.fdopen(stdout, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return int("problem" in answer)


if __name__ == "__main__":
    sys.exit(main())
