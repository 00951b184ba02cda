"""Model FLOPs utilisation of the language model, by train.py and by a hand-written loop.

    python benchmarks/mfu.py                        # on a GPU; benchmarks/gpu.py asks it, too
    python benchmarks/mfu.py --device cpu --small   # the same on a CPU, in half a minute

Model FLOPs are those of matrix products and attention that the network needs, forward and backward,
without what is computed twice (Chowdhery et al. 2022, *PaLM*, appendix B). They are counted by
torch.utils.flop_counter on one batch, with attention as products of matrices, and compared with
PaLM's formula. Utilisation is their rate over the device's: the data sheet's of 16-bit products
without sparsity where it is known here, else that of a large matrix product, measured.

Prints rows of `name value limit`, and writes them as JSON.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT = next(ROOT.glob("{{*}}/src")).parent
sys.path.insert(0, str(PROJECT / "vendor" / "smlightning"))
# Dense bfloat16 FLOPs per second of tensor cores, from NVIDIA's data sheets (half of those "with
# sparsity"), by words of the device's name; H100 is SXM's, as in p5.
PEAKS = {
    ("A100",): 312e12,
    ("H100", "HBM3"): 989e12,
    ("H200",): 989e12,
    ("B200",): 2250e12,
    ("L40S",): 362e12,
    ("L4",): 121e12,
}
ROUNDS = 3


class Enough(Exception):
    """Ends a run in the middle."""


def sources(folder: Path) -> Path:
    """src/ of a project whose task is the language model."""
    target = folder / "src"
    shutil.copytree(PROJECT / "src", target)
    shutil.copytree(PROJECT / "tasks" / "language-model" / "src", target, dirs_exist_ok=True)
    return target


def shape(device: str, small: bool) -> dict[str, Any]:
    """The network: GPT-2's small one over bytes on a GPU."""
    sizes = (2, 64, 4, 64, 4) if small else (12, 768, 12, 1024, 16)
    names = ("layers", "width", "heads", "max_length", "batch_size")
    on_gpu = device == "cuda"
    return {
        **dict(zip(names, sizes, strict=True)),
        "precision": "bf16-mixed" if on_gpu else "32-true",
        "compile": on_gpu and not small,
        "num_workers": 0,
    }


def wait_for(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


class Stopwatch:
    """Seconds of some steps: it is told of each step's start."""

    def __init__(self, device: str, skipped: int, steps: int) -> None:
        self.device, self.skipped, self.steps = device, skipped, steps
        self.number = 0
        self.began = self.seconds = 0.0

    def step(self) -> None:
        """Raises Enough once all steps were measured."""
        if self.number == self.skipped:
            wait_for(self.device)
            self.began = time.perf_counter()
        if self.number == self.skipped + self.steps:
            wait_for(self.device)
            self.seconds = (time.perf_counter() - self.began) / self.steps
            raise Enough
        self.number += 1


def trained(options: dict[str, Any], watch: Stopwatch, folder: Path) -> None:
    """Steps of train.py."""
    import pytorch_lightning as pl

    import train

    class Watch(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            watch.step()

    given = pl.Trainer

    class WatchedTrainer(given):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, callbacks: Any = None, **more: Any) -> None:
            super().__init__(*args, callbacks=[Watch(), *(callbacks or [])], **more)

    pl.Trainer = WatchedTrainer  # type: ignore[misc]
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            tempfile.TemporaryDirectory(dir=folder) as output,
            contextlib.suppress(Enough),
        ):
            train.train(
                **options, epochs=1000, log_every=1000, output_dir=output, resume="never",
                data_dir=str(folder / "prepared"),
            )  # fmt: skip
    finally:
        pl.Trainer = given  # type: ignore[misc]


def network(options: dict[str, Any], device: str) -> Any:
    """The same network as train.py's, with fresh weights."""
    import torch

    from model import ByteTransformer

    torch.manual_seed(0)
    names = ("layers", "width", "heads", "max_length")
    return ByteTransformer(**{name: options[name] for name in names}).to(device)


def data_of(options: dict[str, Any], folder: Path) -> Any:
    from data import Data

    names = ("max_length", "batch_size", "num_workers")
    data = Data(**{name: options[name] for name in names}, data_dir=str(folder / "prepared"))
    data.prepare_data()
    data.setup()
    return data


def loss_of(net: Any, batch: dict[str, Any]) -> Any:
    """The training loss, as model.Model has it."""
    from torch.nn import functional as F

    logits = net(batch["input_ids"], batch["position_ids"]).float().transpose(1, 2)
    losses = F.cross_entropy(logits, batch["labels"], reduction="none", ignore_index=-100)
    return (losses.mean(1) * batch["weight"]).sum() * batch["scale"]


def on_device(batch: dict[str, Any], device: str) -> dict[str, Any]:
    return {
        name: value.to(device, non_blocking=True) if hasattr(value, "to") else value
        for name, value in batch.items()
    }


def written_by_hand(options: dict[str, Any], watch: Stopwatch, folder: Path) -> None:
    """Steps of the loop that one would write, over the same batches."""
    import torch

    device = watch.device
    net = network(options, device)
    if options["compile"]:
        net.compile(dynamic=True)
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    mixed = options["precision"] == "bf16-mixed"
    data = data_of(options, folder)
    with contextlib.suppress(Enough):
        while True:
            for batch in data.train_dataloader():
                watch.step()
                with torch.autocast(device, torch.bfloat16, enabled=mixed):
                    loss = loss_of(net, on_device(batch, device))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()


def model_flops(options: dict[str, Any], folder: Path) -> tuple[float, float]:
    """FLOPs of one step, as torch counts them and by PaLM's formula.

    PaLM: 6 N + 12 · layers · width · length per token, where N are the numbers in matrices.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    net = network(options, "cpu")
    batch = next(iter(data_of({**options, "batch_size": 1}, folder).train_dataloader()))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss_of(net, batch).backward()
    rows, length = batch["input_ids"].shape
    counted = counter.get_total_flops() / rows
    matrices = [*net.blocks.parameters(), *net.predict.parameters()]
    weights = sum(parameter.numel() for parameter in matrices if parameter.ndim > 1)
    per_token = 6 * weights + 12 * options["layers"] * options["width"] * length
    batch_size = options["batch_size"]
    return counted * batch_size, float(per_token * length * batch_size)


def product_flops(device: str, mixed: bool, small: bool) -> float:
    """FLOPs per second of a large matrix product, the best of some."""
    import torch

    width = 1024 if small else 8192
    dtype = torch.bfloat16 if mixed else torch.float32
    one, other = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(8):
        wait_for(device)
        began = time.perf_counter()
        torch.mm(one, other)
        wait_for(device)
        best = max(best, 2 * width**3 / (time.perf_counter() - began))
    return best


def peak(device: str, mixed: bool, small: bool) -> tuple[float, str]:
    """The device's FLOPs per second, and where that is from."""
    import torch

    if device == "cuda" and mixed:
        words = torch.cuda.get_device_name().replace("-", " ").split()
        for name, flops in PEAKS.items():
            if set(name) <= set(words):
                return flops, f"data sheet of {' '.join(name)}"
    return product_flops(device, mixed, small), "a matrix product's, measured"


def row(
    name: str, value: float, limit: float | None, unit: str, least: bool = False, detail: str = ""
) -> dict[str, Any]:
    """As benchmarks/gpu.py's rows."""
    passed = None if limit is None else value >= limit if least else value <= limit
    return {
        "name": name, "value": value, "limit": limit, "unit": unit, "passed": passed,
        "detail": detail,
    }  # fmt: skip


def rows(device: str, small: bool, folder: Path) -> list[dict[str, Any]]:
    sys.path.insert(0, str(sources(folder)))
    from smlightning.training import imports

    imports.lightning()
    options = shape(device, small)
    flops, formula = model_flops(options, folder)
    skipped, steps = (3, 10) if small else (30, 60)
    loops: dict[str, Callable[..., None]] = {"train.py": trained, "hand": written_by_hand}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            watch = Stopwatch(device, skipped, steps)
            loop(options, watch, folder)
            seconds[name].append(watch.seconds)
    most, source = peak(device, options["precision"] == "bf16-mixed", small)
    used = {name: flops / statistics.median(times) / most for name, times in seconds.items()}
    ratios = sorted(
        hand / ours for ours, hand in zip(seconds["train.py"], seconds["hand"], strict=True)
    )
    told = f"{flops:.3g} FLOPs a step; {most:.3g} a second, {source}"
    return [
        row("mfu counted FLOPs off PaLM's formula", abs(flops / formula - 1), 0.05, "of it"),
        row("mfu train.py", used["train.py"], None, "", detail=told),
        row("mfu hand-written", used["hand"], None, "", detail=told),
        row(
            "mfu train.py over hand-written", ratios[len(ratios) // 2], None if small else 0.97, "",
            least=True, detail=f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
        ),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a small network, few steps")
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="mfu-") as folder:
        found = rows(arguments.device, arguments.small, Path(folder))
    for each in found:
        limit = "-" if each["limit"] is None else f"{each['limit']:.4g}"
        print(f"{each['name']} {each['value']:.4g} {limit} {each['detail']}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found), encoding="utf-8")
    return int(any(each["passed"] is False for each in found))


if __name__ == "__main__":
    sys.exit(main())
