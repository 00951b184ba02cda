"""Run a project's train.py as it is, with one more callback: a probe that measures, or a fault.

    cd PROJECT && python .../benchmarks/watch.py PROBE [train.py's options]

common.Run sets the environment. A probe writes its facts to the file that FACTS names.
"""

import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from common import Facts, Seat

# isort: off
from smlightning.training import imports

imports.lightning()  # in half the time, as in any run
import pytorch_lightning as pl  # noqa: E402
import torch  # noqa: E402
import train  # noqa: E402
from smlightning import entry  # noqa: E402
# isort: on

ON_GPU = torch.cuda.is_available()
WAITS = re.compile(r"aten::_local_scalar_dense|cuda(Stream|Device|Event)Synchronize")
LAUNCH = re.compile(r"cu(da)?LaunchKernel|cudaMemcpyAsync|cudaMemsetAsync")
ATTENTION = re.compile(r"attention|fmha|flash|flex", re.IGNORECASE)


def write_facts(facts: dict[str, Any]) -> None:
    if "FACTS" in os.environ and os.environ.get("RANK", "0") == "0":
        Path(os.environ["FACTS"]).write_text(json.dumps(facts))


class Turns(pl.Callback):
    """A turn of a few steps, then the others' (common.take_turns)."""

    def __init__(self) -> None:
        self.seat = Seat()

    def on_train_batch_start(self, *_: Any) -> None:
        self.seat.step()


class Stalls(pl.Callback):
    """A turn for each checkpoint: how long the training waits for it. Later, before the turn ends,
    what a thread writes is waited for, too.
    """

    def __init__(self) -> None:
        self.seat = Seat()
        self.facts: Facts = {}

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        save = trainer.save_checkpoint

        def timed(*arguments: Any, **options: Any) -> None:
            wait_for_device()
            began, spent = time.perf_counter(), time.thread_time()
            save(*arguments, **options)
            wait_for_device()
            self.facts["stall"] = time.perf_counter() - began
            self.facts["stall of a processor"] = time.thread_time() - spent

        trainer.save_checkpoint = timed  # type: ignore[method-assign]

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.facts or not self.seat.number:
            for writer in [each.writer for each in trainer.callbacks if hasattr(each, "writer")]:
                writer.finish()
            self.seat.more = self.facts
            self.seat.end_turn()
            self.facts = {}
        self.seat.number += 1


class Memory(pl.Callback):
    """Peaks of the GPU and of the host, once training has ended; graphs that were compiled."""

    def on_train_end(self, *_: Any) -> None:
        facts: dict[str, Any] = {"host": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        if ON_GPU:
            facts["allocated"] = torch.cuda.max_memory_allocated()
            facts["reserved"] = torch.cuda.max_memory_reserved()
            facts["pinned"] = torch.cuda.host_memory_stats()["allocated_bytes.peak"]
        from torch._dynamo.utils import counters

        facts["graphs"] = counters["stats"]["unique_graphs"]
        write_facts(facts)


class Profile(pl.Callback):
    """Of STEPS training steps, and of as many validation batches: waits, launches, attention."""

    STEPS, SKIPPED = 6, 5

    def __init__(self, clip: bool = False) -> None:
        self.clip = clip
        kinds = [torch.profiler.ProfilerActivity.CPU]
        self.kinds = kinds + [torch.profiler.ProfilerActivity.CUDA] * ON_GPU
        self.facts: dict[str, Any] = {}
        self.profile: Any = None

    def _at(self, number: int, kind: str) -> None:
        if number == self.SKIPPED:
            wait_for_device()
            self.profile = torch.profiler.profile(activities=self.kinds)
            self.profile.__enter__()
        if number == self.SKIPPED + self.STEPS and self.profile:
            self.profile.__exit__(None, None, None)
            self.facts |= self._read(kind)
            self.profile = None
            write_facts(self.facts)

    def _read(self, kind: str) -> dict[str, Any]:
        events = self.profile.events()
        waits = [event.name for event in events if WAITS.search(event.name)]
        kernels = sorted({event.name for event in events if ATTENTION.search(event.name)})
        clips = [event for event in events if event.name == "clip" and event.time_range]
        spans = [(clip.time_range.start, clip.time_range.end) for clip in clips]
        inside = [
            event.name
            for event in events
            if any(start <= event.time_range.start <= end for start, end in spans)
        ]
        is_launch = LAUNCH.search if ON_GPU else is_operation
        return {
            f"{kind} waits": len(waits) / self.STEPS,
            f"{kind} attention": kernels,
            f"{kind} clip operations": sum(bool(is_launch(name)) for name in inside) / self.STEPS,
        }

    def on_train_start(self, trainer: Any, model: Any) -> None:
        clip = model.configure_gradient_clipping

        def recorded(*arguments: Any, **options: Any) -> None:
            wait_for_device()
            began = time.perf_counter()
            with torch.profiler.record_function("clip"):
                clip(*arguments, **options)
            wait_for_device()
            self.facts["clip ms"] = 1e3 * (time.perf_counter() - began)

        if self.clip:  # it waits for the GPU, which `waits` would count
            model.configure_gradient_clipping = recorded

    def on_train_batch_start(self, trainer: Any, model: Any, batch: Any, number: int) -> None:
        self._at(number, "train")

    def on_validation_batch_start(self, trainer: Any, *arguments: Any) -> None:
        if not trainer.sanity_checking:
            self._at(arguments[2], "validation")


def is_operation(name: str) -> bool:
    """Whether this is one of torch's that is no view: a GPU would launch a kernel for it."""
    views = "view|reshape|detach|select|slice|expand|split|as_strided|unsqueeze|empty|alias|to$"
    return name.startswith("aten::") and not re.match(f"aten::_?({views})", name)


class Fault(pl.Callback):
    """At step FAULT_STEP the last rank does what FAULTS has of this name; all do a slow step."""

    def __init__(self, name: str) -> None:
        self.name = name
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        self.here = os.environ.get("RANK", "0") == str(last) or name == "slow_step"

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.here and trainer.global_step == int(os.environ.get("FAULT_STEP", "6")):
            print("it happens", flush=True)
            FAULTS[self.name]()


def raise_error() -> None:
    raise ValueError("a broken cable")


def take_all_memory() -> None:
    torch.empty(2**50, dtype=torch.uint8, device="cuda" if ON_GPU else "cpu")


FAULTS = {
    "raises": raise_error,
    "is_killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "is_stopped": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sleeps": lambda: time.sleep(600),
    "aborts": os.abort,
    "out_of_memory": take_all_memory,
    "slow_step": lambda: time.sleep(40),
}
PROBES: dict[str, Any] = {
    "turns": Turns, "stalls": Stalls, "memory": Memory, "profile": Profile,
    "clip": lambda: Profile(clip=True),
}  # fmt: skip


def wait_for_device() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def main() -> int:
    name = sys.argv.pop(1)
    probe = PROBES[name]() if name in PROBES else Fault(name)
    constructor = pl.Trainer

    class Watched(constructor):  # type: ignore[valid-type,misc]
        def __init__(self, *arguments: Any, callbacks: Any = (), **more: Any) -> None:
            super().__init__(*arguments, callbacks=[probe, *callbacks], **more)

    pl.Trainer = Watched  # type: ignore[misc]
    return entry.main(train.train, train.Options, None)


if __name__ == "__main__":
    sys.exit(main())
