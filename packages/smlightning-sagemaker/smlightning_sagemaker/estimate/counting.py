"""The sizes of the project's own model, counted by torch's MemTracker: a process with torch.

    python -m smlightning_sagemaker.estimate.counting < REQUEST > ANSWER  (both JSON, see `known`)

src/train.py runs up to where Lightning asks the model for its network. Only the network's outline
is built, so that a model of any size needs no memory, and a checkpoint only its configuration. Then
tensors without numbers (FakeTensorMode,
https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html) go through a training step
under the tracker. A network that cannot run so is built and run with numbers.
"""

# ruff: noqa: E402  (Lightning is imported in half the time, as train.py does)

import contextlib
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smlightning.training import imports

imports.lightning()

import pytorch_lightning as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F

from smlightning.cluster.blocks import blocks, networks
from smlightning.errors import UserError, root_cause
from smlightning.outline import outline
from smlightning.tensors import leaves
from smlightning_sagemaker.estimate.sizes import Linear, Sizes, pinned_share

LOOKED_AT = 20  # batches; the largest one is used
PROCESS = 330 * 2**20  # of a rank that has imported all, with transformers, as measured on Linux


class Counted(Exception):
    """Training has come as far as it is needed."""


def count(options: dict[str, Any], fake: bool = True) -> dict[str, Any]:
    """Run train.py with a Trainer that counts one step in place of training."""
    answer: dict[str, Any] = {}
    given = pl.Trainer

    class CountingTrainer(given):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, **more: Any) -> None:
            more |= {"callbacks": [], "logger": False, "enable_checkpointing": False}
            super().__init__(*args, **more)

        def fit(self, model: Any, *args: Any, **more: Any) -> None:
            build = model.configure_model

            def counted() -> None:
                answer.update(_count_step(self, model, build, fake))
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


def _count_step(trainer: Any, model: Any, build: Callable[[], Any], fake: bool) -> dict[str, Any]:
    trainer.fit_loop.setup_data()  # with numbers
    loader = trainer.train_dataloader
    batch, tokens = _largest_batch(loader)
    with outline() if fake else contextlib.nullcontext():
        build()
    process_bytes = _process_bytes(model)  # before tensors without numbers import much more
    model.train()
    model.log = model.log_dict = _nothing  # outside of a loop Lightning's raises
    size = batch_size(batch)
    low = size if fake else 1
    with without_numbers(model) if fake else contextlib.nullcontext(), fused_attentions():
        for parameter in trained(model):
            parameter.grad = torch.zeros_like(parameter)  # DDP's buckets keep them all the time
        trainer.strategy.setup_optimizers(trainer)
        state = state_bytes(trainer.optimizers)
        counts = [
            _step_of(trainer, model, of_size(batch, size, rows, tokens)) for rows in (low, 2 * low)
        ]
    activations, temporary = (line(low, *at) for at in zip(*counts, strict=True))
    tensors = [leaf for leaf in leaves(of_size(batch, size, 1, tokens)) if torch.is_tensor(leaf)]
    sizes = sizes_of(model, state, activations, temporary, bytes_of(tensors), process_bytes)
    return {"sizes": asdict(sizes), "tokens": tokens, "samples": _samples(loader, size)}


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def sizes_of(
    model: nn.Module,
    optimizer_bytes: int,
    activations: Linear,
    temporary: Linear,
    sample_bytes: int = 0,
    process_bytes: int = PROCESS,
) -> Sizes:
    """The sizes of a model whose step was counted."""
    parameters = list(model.parameters())
    in_blocks = [
        bytes_of(block.parameters()) for network in networks(model) for block in blocks(network)
    ]
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
        weights_bytes=sum(saved),
        root_bytes=whole - sum(in_blocks),
        block_bytes=max(in_blocks, default=0),
        activations=activations,
        temporary=temporary,
        pinned=pinned_share(saved),  # the optimizer's state has tensors of the same shapes
        sample_bytes=sample_bytes,
        process_bytes=process_bytes,
    )


def _process_bytes(model: nn.Module) -> int:
    """This process's own memory, which no file can give back, without the model's tensors."""
    status = Path("/proc/self/status")
    kibibytes = re.search(r"RssAnon:\s+(\d+) kB", status.read_text()) if status.exists() else None
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
    """The line through the counts at a batch of ``low`` and of twice as many samples."""
    per_sample = max(at_twice - at_low, 0) // low
    return Linear(max(at_low - per_sample * low, 0), per_sample)


def state_bytes(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Bytes that the optimizers keep after a step."""
    kept: list[torch.Tensor] = []
    for optimizer in optimizers:
        optimizer.step()
        kept += [leaf for leaf in leaves([*optimizer.state.values()]) if torch.is_tensor(leaf)]
    return bytes_of(kept)


class Storages(MemTracker):
    """torch's tracker; counts bytes that operations in its body hold in addition to ``kept``."""

    def __init__(self, kept: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.track_external(*kept)
        self.kept = self._total("current")

    def __enter__(self) -> "Storages":
        super().__enter__()
        return self

    def _total(self, when: str) -> int:
        return sum(device["Total"] for device in self.get_tracker_snapshot(when).values())

    @property
    def alive(self) -> int:
        """Bytes now."""
        return self._total("current") - self.kept

    @property
    def peak(self) -> int:
        """Most bytes at a time."""
        return self._total("peak") - self.kept


class Step(nn.Module):
    """A forward pass that returns the loss, as one module: the tracker wants one call of it."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self) -> torch.Tensor:
        return self.compute()


def step(compute: Callable[[], torch.Tensor], kept: Iterable[torch.Tensor]) -> tuple[int, int]:
    """Count a training step, forward and backward.

    Args:
        compute: the forward pass, which returns the loss.
        kept: tensors that exist before and after the step: weights, their gradients, the batch.

    Returns:
        bytes that the forward pass keeps for the backward pass, and bytes in addition at the peak.
    """
    forward = Step(compute)
    with Storages(kept) as storages:
        loss = forward()
        activations = storages.alive
        loss.backward()
        del loss
    return activations, max(storages.peak - activations, 0)


def _step_of(trainer: Any, model: Any, batch: Any) -> tuple[int, int]:
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


@contextlib.contextmanager
def fused_attentions() -> Iterator[None]:
    """Attention that keeps what the fused kernels of GPUs keep: query, key, value, output and a
    number for each row (Dao et al. 2022), with dropout as well as without.

    The function is replaced: what gradient checkpointing computes again for the backward pass does
    not see a TorchFunctionMode, and would keep other tensors.
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
    """F.scaled_dot_product_attention by torch's fused kernel for CPUs."""
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
    """Give tensors in the body, and the model's own, shapes without values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        _empty(model)
        yield


def _empty(model: nn.Module) -> None:
    """Replace every tensor of the model by an empty one on the CPU."""
    # A shared tensor stays shared. The old ones are kept, so that Python reuses no id.
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

    If the loader knows the lengths of all samples (`GlobalBatches`), that is the longest of all:
    memory must hold a batch of it.
    """
    first = [batch for _, batch in zip(range(LOOKED_AT), loader, strict=False)]
    chosen = max(first, key=lambda batch: sum(each.numel() for each in _tensors(batch)))
    longest = max((each.shape[1] for each in _tensors(chosen) if each.ndim == 2), default=0)
    lengths = getattr(getattr(loader, "sampler", None), "lengths", None)
    if longest and lengths is not None:
        longest = max(longest, int(lengths.max()))
    return chosen, longest


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]


def of_size(batch: Any, size: int, wanted: int, length: int = 0) -> Any:
    """A batch of the same form with other sizes, and no values.

    Args:
        batch: of ``size`` samples.
        size: its samples.
        wanted: samples of the other one.
        length: tokens of each; 0: as many as the batch has.
    """
    width = max((each.shape[1] for each in _tensors(batch) if each.ndim == 2), default=-1)

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if shape and shape[0] == size:
            shape[0] = wanted
        if len(shape) == 2 and shape[1] == width:
            shape[1] = length or width
        return torch.zeros(shape, dtype=tensor.dtype)

    return apply_to_collection(batch, torch.Tensor, resized)


def _samples(loader: Any, size: int) -> int | None:
    """Rows for training in an epoch; None if the data does not know."""
    for known in (lambda: len(loader.sampler.lengths), lambda: len(loader.dataset)):
        with contextlib.suppress(AttributeError, TypeError):
            return known()
    with contextlib.suppress(TypeError):
        return len(loader) * size
    return None


def main() -> int:
    """Answer the request on standard input; status 1 if there is an error."""
    request = json.load(sys.stdin)
    sys.path.insert(0, request["src"])
    stdout = os.dup(1)
    os.dup2(2, 1)  # train.py and the data may print to standard output
    for fake in (True, False):
        try:
            answer = count(request["options"], fake)
        except UserError as error:
            print(error, file=sys.stderr)
            return 1
        except Exception as error:
            traceback.print_exc()
            print(f"{type(error).__name__}: {root_cause(error)}", file=sys.stderr)
        else:
            with os.fdopen(stdout, "w", encoding="utf-8") as file:
                json.dump(answer, file)
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
