"""Everything that only a GPU can answer, in one command and at most 20 minutes.

    python benchmarks/gpu.py                        # make gpu; writes docs/measurements_gpu.md
    python benchmarks/gpu.py --device cpu --small   # the same questions to a CPU, in a minute: CI

Prints `name value limit PASS|FAIL` for each question and writes all of it as JSON. The status is
1 if one failed.

    exact        resumed equals uninterrupted to the bit; each beside a control, the uninterrupted run once more
    step         seconds of a step beside a hand-written loop's
    sync         places where a step makes the host wait for the device, between two log points
    compile      graphs compiled for 20 lengths and odd last batches
    checkpoint   what a checkpoint costs training and memory, and a resume; a signal's way to the end
    mfu          model FLOPs utilisation of the language model, beside a hand-written loop's
    ranks        two ranks as two hosts, on one GPU by NCCL: one raises, is killed, sleeps, is told to stop
"""

import argparse
import contextlib
import io
import json
import os
import platform
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SRC = next(ROOT.glob("{{*}}/src"))
PATHS = [str(SRC), str(SRC.parent / "vendor" / "smlightning")]  # the checkout's own
sys.path[:0] = PATHS
os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # before CUDA starts: `exact` asks for fixed kernels
ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}
Row = dict[str, Any]
device, small, place = "cuda", False, Path()


def row(
    name: str, value: float, limit: float | None, unit: str, least: bool = False, detail: str = ""
) -> Row:
    """An answer; it passes if the value is at most the limit, or at least. Without a limit it is
    told, not judged.
    """
    passed = None if limit is None else value >= limit if least else value <= limit
    return {
        "name": name,
        "value": value,
        "limit": limit,
        "unit": unit,
        "passed": passed,
        "detail": " ".join(detail.split()),
    }


def shown(limit: float | None) -> str:
    return "-" if limit is None else f"{limit:.4g}"


# What the questions are asked with


def write_texts(name: str, rows: int, length: int) -> str:
    """A csv file of random texts of 1 to `length` letters in three alphabets; every eighth has a
    wrong label.
    """
    path, draw = place / f"{name}.csv", random.Random(0)
    if not path.exists():
        lines = ["text,label"]
        for i in range(rows):
            label = [*ALPHABETS][i % 3]
            text = "".join(
                draw.choices(ALPHABETS[label], k=draw.randint(max(1, length // 2), length))
            )
            lines.append(f"{text},{'latin' if draw.random() < 0.125 else label}")
        path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def write_model(kind: str, hidden: int, layers: int, heads: int) -> str:
    """A fresh Hugging Face classifier with a tokenizer of single letters, made without a network."""
    path = place / f"{kind}-{hidden}-{layers}"
    if kind == "bytecnn" or path.exists():
        return kind if kind == "bytecnn" else str(path)
    import torch
    import transformers

    from smlightning.testing.checkpoints import write_letters_tokenizer

    letters = "".join(ALPHABETS.values())
    shape: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    shape |= {
        "intermediate_size": 4 * hidden,
        "vocab_size": write_letters_tokenizer(path, letters),
        "pad_token_id": 0,
        "num_labels": 3,
    }
    if kind == "deberta":
        config: Any = transformers.DebertaV2Config(
            **shape, relative_attention=True, pos_att_type=["p2c", "c2p"]
        )
    elif kind == "llama":
        config = transformers.LlamaConfig(**shape)
    else:
        config = transformers.BertConfig(**shape)
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(path)
    return str(path)


def train_with(callback: Any, **options: Any) -> None:
    """`train.train`, quietly, with one more callback in front."""
    import pytorch_lightning as pl

    import train

    constructor = pl.Trainer

    def made(*args: Any, **kwargs: Any) -> pl.Trainer:
        return constructor(
            *args,
            **{**kwargs, "callbacks": [*([callback] if callback else []), *kwargs["callbacks"]]},
        )

    pl.Trainer = made  # type: ignore[assignment,misc]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            train.train(data_dir=str(place / "prepared"), num_workers=0, **options)
    finally:
        pl.Trainer = constructor  # type: ignore[misc]


class Enough(Exception):
    """Ends a run in the middle."""


def wait_for_device() -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


# The questions


def exact() -> Iterator[Row]:
    import pytorch_lightning as pl
    import torch

    from smlightning.checkpoints import files as checkpoint_files

    class Crash(pl.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                for callback in trainer.callbacks:
                    if hasattr(callback, "writer"):
                        callback.writer.finish()
                raise Enough

    def weights(output: str) -> dict[str, Any]:
        path = checkpoint_files.newest(place / output / "checkpoints")
        assert path, "no checkpoint was written"
        state = torch.load(path, weights_only=True)
        return {"weights": state["state_dict"], "optimizer": state["optimizer_states"]}

    def differing(one: Any, other: Any) -> int:
        """How many tensors differ in any bit."""
        if isinstance(one, torch.Tensor):
            return int(not torch.equal(one, other))
        if isinstance(one, dict):
            return sum(differing(one[key], other[key]) for key in one)
        return sum(map(differing, one, other)) if isinstance(one, list) else int(one != other)

    kinds = ("bytecnn", "bert") if small else ("bytecnn", "bert", "llama", "deberta")
    precisions = ("32-true",) if small else ("32-true", "bf16-mixed", "16-mixed")
    cases = [(kind, precision, False) for kind in kinds for precision in precisions]
    cases += (
        [("bytecnn", "bf16-mixed", False)]
        if small
        else [(kind, "bf16-mixed", True) for kind in kinds]
    )
    for kind, precision, compiled in cases:
        name = f"exact {kind} {precision} {'compiled' if compiled else 'eager'}"
        options: dict[str, Any] = {
            "dataset": write_texts("short", 200, 12), "model_name": write_model(kind, 64, 2, 2), "batch_size": 16,
            "max_steps": 9, "checkpoint_steps": 2, "precision": precision, "compile": compiled, "deterministic": True,
        }  # fmt: skip
        outputs = [name.replace(" ", "-") + suffix for suffix in ("", "-control", "-resumed")]
        try:
            with contextlib.suppress(Enough):
                train_with(Crash(), output_dir=str(place / outputs[2]), **options)
            for output in outputs:
                train_with(None, output_dir=str(place / output), **options)
            alone, control, resumed = map(weights, outputs)
        except Exception as error:  # the other cases are tried all the same
            yield row(
                f"{name} was tried", 0, 1, "", least=True, detail=f"{type(error).__name__}: {error}"
            )
            continue
        yield row(f"{name} control", differing(alone, control), 0, "tensors differ")
        yield row(name, differing(alone, resumed), 0, "tensors differ")


class Stopwatch:
    """Seconds of a piece of training."""

    def __enter__(self) -> None:
        wait_for_device()
        self.began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        wait_for_device()
        self.seconds = time.perf_counter() - self.began


def hand_loop(options: dict[str, Any], steps: int, skipped: int, measured: Any) -> None:
    """The loop one would write, over the same batches; some steps of it are measured."""
    import torch
    from torch.nn import functional as F

    from data import Data
    from model import build, logits

    torch.manual_seed(0)
    data = Data(options["dataset"], model_name=options["model_name"], batch_size=options["batch_size"],
                data_dir=str(place / "prepared"), num_workers=0)  # fmt: skip
    data.prepare_data()
    data.setup()
    net = build(options["model_name"], data.labels).to(device)
    if options["compile"]:
        net.compile(dynamic=True)
    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    number = 0
    while True:
        for batch in data.train_dataloader():
            if number == skipped:
                measured.__enter__()
            if number == skipped + steps:
                return measured.__exit__(None, None, None)
            number += 1
            there = {
                k: v.to(device, non_blocking=True) if hasattr(v, "to") else v
                for k, v in batch.items()
            }
            with torch.autocast(
                device, torch.bfloat16, enabled=options["precision"] == "bf16-mixed"
            ):
                losses = F.cross_entropy(
                    logits(net, there).float(), there["label"], reduction="none"
                )
            loss = (losses * there["weight"]).sum() * there["scale"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def trained_loop(options: dict[str, Any], steps: int, skipped: int, measured: Any) -> None:
    """train.py; some of its steps are measured."""
    import pytorch_lightning as pl

    class Measure(pl.Callback):
        number = 0

        def on_train_batch_start(self, *_: Any) -> None:
            if self.number == skipped:
                measured.__enter__()
            if self.number == skipped + steps:
                measured.__exit__(None, None, None)
                raise Enough
            self.number += 1

    with contextlib.suppress(Enough), tempfile.TemporaryDirectory() as output:
        train_with(Measure(), output_dir=output, epochs=100, log_every=1000, **options)


# Enough texts that the steps measured lie within an epoch: its end has a validation and a
# checkpoint.
def step_options(kind: str, batch: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    return {
        "dataset": write_texts("long", 3000 if small else 15000, 120), "model_name": write_model(kind, *shape),
        "batch_size": batch, "precision": "bf16-mixed" if device == "cuda" else "32-true",
        "compile": device == "cuda" and not small,
    }  # fmt: skip


def step() -> Iterator[Row]:
    cases = [
        ("tiny CNN", "bytecnn", 64, 1.5, (64, 2, 2)),
        ("encoder", "bert", 8, 1.03, (1024, 24, 16)),
    ]
    for title, kind, batch, limit, shape in cases[: 1 if small else 2]:
        options = step_options(kind, batch, shape)
        steps, skipped = (20, 4) if small else (100, 40)
        times: list[tuple[float, float]] = []
        for _ in range(3):
            ours, hand = Stopwatch(), Stopwatch()
            trained_loop(options, steps, skipped, ours)
            hand_loop(options, steps, skipped, hand)
            times.append((ours.seconds / steps, hand.seconds / steps))
        ratios = sorted(ours / hand for ours, hand in times)
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        detail = f"{1000 * statistics.median(ours for ours, _ in times):.2f} ms; {spread}"
        yield row(
            f"step {title} over hand-written",
            ratios[1],
            None if small else limit,
            "",
            detail=detail,
        )


def sync() -> Iterator[Row]:
    import warnings

    import torch

    kinds = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * (
        device == "cuda"
    )
    waiting = (
        "aten::_local_scalar_dense",
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
    )
    counts = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name, loop in (("hand", hand_loop), ("ours", trained_loop)):
            profiler = torch.profiler.profile(activities=kinds)
            loop(step_options("bytecnn", 64, (64, 2, 2)), 10, 4, profiler)
            events = profiler.events()
            waits = sum(event.name in waiting for event in events) / 10
            # On a GPU a copy is three events, of torch, of CUDA and of the device: the last is
            # counted.
            copies = (
                sum(
                    each.name.startswith("Memcpy")
                    if device == "cuda"
                    else each.name == "aten::copy_"
                    for each in events
                )
                / 10
            )
            counts[name] = waits, copies
        if device == "cuda":  # once more, for the lines of code that wait
            torch.cuda.set_sync_debug_mode("warn")
            trained_loop(step_options("bytecnn", 64, (64, 2, 2)), 10, 4, contextlib.nullcontext())
            torch.cuda.set_sync_debug_mode("default")
    sites = sorted(
        {f"{Path(w.filename).name}:{w.lineno}" for w in said if "synchroniz" in str(w.message)}
    )
    # A CPU's copies are casts as well, of the norm that clips: no host waits for them.
    limits = (("host waits", 0), ("copies", 4 if device == "cuda" else None))
    for number, (title, limit) in enumerate(limits):
        more = counts["ours"][number] - counts["hand"][number]
        detail = f"{counts['ours'][number]:g}, hand-written {counts['hand'][number]:g}; {' '.join(sites)}"
        yield row(f"sync {title} per step more than hand-written", more, limit, "", detail=detail)


def compiles() -> Iterator[Row]:
    import torch
    from torch._dynamo.callback import callback_handler

    from model import build

    count: list[int] = []
    torch._dynamo.reset()
    callback_handler.register_start_callback(lambda *_: count.append(1))
    torch.manual_seed(0)
    net = build("bytecnn", [*ALPHABETS]).to(device)
    net.compile(dynamic=True, backend="eager" if small else "inductor")
    for rows, length in [*((16, 5 + 3 * i) for i in range(20)), (7, 11), (3, 40), (2, 9)]:
        ids = torch.randint(1, 257, (rows, length), device=device)
        net(ids, torch.ones_like(ids)).sum().backward()
    yield row("compile graphs for 20 lengths and 3 odd batches", len(count), 4, "compilations")


def host_memory() -> int:
    """Bytes: pinned by torch so far on a GPU; else the most that this process has had."""
    import torch

    if device == "cuda":
        return int(torch.cuda.host_memory_stats()["allocated_bytes.peak"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def checkpoint() -> Iterator[Row]:
    import torch

    from smlightning.checkpoints import files as checkpoint_files
    from smlightning.checkpoints import reader
    from smlightning.checkpoints.position import Position
    from smlightning.checkpoints.writer import CheckpointWriter
    from smlightning.cluster import session

    for millions in (5,) if small else (350, 1000):
        size = millions * 10**6 // 20
        content: dict[str, Any] = {
            "state_dict": {f"layer{i}": torch.ones(size, device=device) for i in range(20)}
        }
        content["optimizer_states"] = [
            {
                name: {key: value * 0.5 for key, value in content["state_dict"].items()}
                for name in ("first", "second")
            }
        ]
        total = 12e-9 * millions * 10**6  # GB
        disk = CheckpointWriter(place / f"checkpoint{millions}")
        before = host_memory()
        stalls, writes = [], []
        for number in range(3):
            began = time.perf_counter()
            disk.write(content, Position(step=number))
            wait_for_device()  # a step that follows waits for the copy
            stalls.append(time.perf_counter() - began)
            disk.finish()
            writes.append(time.perf_counter() - began)
        memory = (host_memory() - before) / 2**30
        name, rate = f"checkpoint {millions} M parameters", 5.0 if device == "cuda" else 1.0
        yield row(
            f"{name} stall",
            min(stalls[1:]),
            total / rate + (0.5 if small else 0.05),
            "s",
            detail=f"the first {stalls[0]:.2f} s",
        )
        yield row(
            f"{name} write", total / min(writes[1:]), 0.01 if small else 0.1, "GB/s", least=True
        )
        # torch makes a pinned block a power of two: of 20 equal tensors each may take twice its
        # size. On a CPU the process has had that memory before, for other questions.
        most = 2.0 * total / 1.0737 + 0.2 if device == "cuda" else None
        yield row(f"{name} memory", memory, most, "GiB of the host")
        path = checkpoint_files.newest(place / f"checkpoint{millions}")
        assert path
        session.current_cluster.cache_clear()
        began = time.perf_counter()
        loaded = reader.read(
            path, checkpoint_files.checksum(path), path.parent, reader.ShardFiles(), False
        )
        for part in (loaded["state_dict"], *loaded["optimizer_states"][0].values()):
            for tensor in part.values():
                tensor.to(device)
        wait_for_device()
        yield row(f"{name} resume", time.perf_counter() - began, total / 0.3 + 1, "s")
        disk.finish()
        for left in path.parent.iterdir():
            left.unlink()
    options = {
        "epochs": 1000,
        "batch_size": 16,
        "log_every": 5,
        "output_dir": str(place / "stopped"),
    }
    job = start(0, 1, "", options, place / "stopped.txt")
    wait_until(lambda: "step=5 " in (place / "stopped.txt").read_text(), job)
    began = time.monotonic()
    job.send_signal(signal.SIGTERM)
    status = job.wait(60)
    yield row(
        "checkpoint signal to exit", time.monotonic() - began, 10, "s", detail=f"status {status}"
    )
    yield row("checkpoint status after a signal", status, 143, "", least=True)


FAULT = """
import os, signal, sys, time
import train
from smlightning.training import imports
imports.lightning()
import model
original = model.Model.training_step
def step(self, batch, i):
    if os.environ.get("RANK") == "1" and self.global_step == 6:
        print("it happens", flush=True)
        {fault}
    return original(self, batch, i)
model.Model.training_step = step
from smlightning.cluster import signals
sys.exit(signals.run(train.train, signals.begin(train.parse)))
"""
FAULTS = {  # what rank 1 does, the statuses, and what the failure file of rank 0 says; seconds until both have ended
    "raises": (
        "raise ValueError('a broken cable')",
        {1},
        r"rank 1 on host algo-2 failed: ValueError: a broken cable",
        20,
    ),
    "is killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        {1, -9, -6},
        r"rank 1 on host algo-2",
        60,
    ),
    "sleeps": ("time.sleep(600)", {1}, r"rank 1 on host algo-2 stopped taking part", 60),
    "is told to stop": ("os.kill(os.getpid(), signal.SIGTERM)", {143}, "", 20),
}


def start(
    rank: int, world: int, script: str, options: dict[str, Any], log: Path, port: int = 0
) -> Any:
    """A process of train.py; with more than one rank each stands for a host of its own."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not re.match(r"SM_|OMPI_|RANK$|WORLD_SIZE$|LOCAL_RANK$", k)
    }
    env |= {"PYTHONPATH": os.pathsep.join(PATHS)}
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    if world > 1:
        hosts = [f"algo-{i + 1}" for i in range(world)]
        env |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
        env |= {
            "SM_HOSTS": json.dumps(hosts),
            "SM_CURRENT_HOST": hosts[rank],
            "MASTER_ADDR": "127.0.0.1",
        }
        env |= {"MASTER_PORT": str(port), "SM_OUTPUT_DIR": str(log.parent)}
        # NCCL refuses a GPU twice on one host; by this it believes in two, which reach each other
        # by sockets.
        env |= {"NCCL_HOSTID": hosts[rank], "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
        env |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    words = {
        "dataset": write_texts("short", 200, 12),
        "data_dir": str(place / "prepared"),
        "num_workers": 0,
        **options,
    }
    arguments = [part for key, value in words.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, *(["-c", script] if script else [str(SRC / "train.py")]), *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        return subprocess.Popen(command, env=env, stdout=file, stderr=file, cwd=place)


def wait_until(ready: Callable[[], bool], job: Any) -> None:
    until = time.monotonic() + 120
    while not ready():
        if time.monotonic() > until or (job.poll() is not None and not ready()):
            raise RuntimeError(f"a run ended with {job.poll()} before it was looked at")
        time.sleep(0.05)


def two_ranks() -> Iterator[Row]:
    from smlightning.checkpoints import files as checkpoint_files
    from smlightning.testing import processes

    for name, (fault, statuses, words, limit) in FAULTS.items():
        if small and name in ("is killed", "sleeps"):
            continue  # benchmarks/stress.py does that on gloo
        port = processes.free_port()
        options = {
            "epochs": 100,
            "batch_size": 8,
            "hang_seconds": 30,
            "output_dir": str(place / name.replace(" ", "-")),
        }
        folders = [place / f"{name.replace(' ', '-')}{rank}" for rank in range(2)]
        script = FAULT.format(fault=fault)
        jobs = [
            start(rank, 2, script, options, folders[rank] / "log.txt", port) for rank in range(2)
        ]
        try:
            wait_until(lambda log=folders[1] / "log.txt": "it happens" in log.read_text(), jobs[1])
            began = time.monotonic()
            found = [job.wait(150) for job in jobs]
            seconds = time.monotonic() - began
        finally:
            for job in jobs:
                job.kill()
        logs = [(folder / "log.txt").read_text() for folder in folders]
        failure = (folders[0] / "failure").read_text() if (folders[0] / "failure").exists() else ""
        good = set(found) <= statuses and bool(re.search(words, failure))
        detail = f"statuses {found}; {failure or logs[0][-200:]}"
        yield row(f"ranks one {name}: right ends", float(good), 1, "", least=True, detail=detail)
        yield row(f"ranks one {name}: until both have ended", seconds, limit, "s")
    # The last were stopped: when it resumes, DDP on several GPUs is called otherwise than on one.
    assert name == "is told to stop"
    path = checkpoint_files.newest(Path(str(options["output_dir"])) / "checkpoints")
    assert path, "the run that was stopped left no checkpoint"
    done = int(path.name.partition("-step")[2].partition("-")[0])
    options |= {"epochs": done // 10 + 2, "resume": str(path)}  # ten global batches an epoch
    jobs = [start(rank, 2, "", options, folders[rank] / "resumed.txt", port) for rank in range(2)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        jobs[0].wait(120), jobs[1].wait(30)
    found = [job.poll() for job in jobs]  # None: it hangs
    for job in jobs:
        job.kill()
    said = (folders[0] / "resumed.txt").read_text()
    good = found == [0, 0] and "resume: from" in said
    yield row(
        "ranks both resume",
        float(good),
        1,
        "",
        least=True,
        detail=f"statuses {found}; {said[-200:]}",
    )


def utilisation() -> Iterator[Row]:
    """In a process of its own: its task is the other one."""
    report = place / "mfu.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "mfu.py"), "--device", device]
    command += ["--json", str(report), *(["--small"] if small else [])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if not report.exists():
        raise RuntimeError(ended.stderr.strip()[-300:] or f"status {ended.returncode}")
    yield from json.loads(report.read_text())


QUESTIONS = {
    "exact": exact,
    "step": step,
    "sync": sync,
    "compile": compiles,
    "checkpoint": checkpoint,
    "mfu": utilisation,
    "ranks": two_ranks,
}


def markdown(facts: dict[str, Any], rows: list[Row]) -> str:
    lines = ["# What a GPU answers", "", "Written by `make gpu`."]
    if facts["device"] == "CPU":
        lines += [
            "",
            "**No GPU has answered yet: this is the small run on a CPU, which proves the questions alone.**",
        ]
    lines += ["", ", ".join(f"{key}: {value}" for key, value in facts.items()), ""]
    lines += ["| name | value | limit | | detail |", "|---|---|---|---|---|"]
    for each in rows:
        detail = each["detail"].replace("|", "/").replace(str(place), "…").replace(str(SRC), "src")
        verdict = {True: "PASS", False: "**FAIL**", None: "not judged"}[each["passed"]]
        lines.append(
            f"| {each['name']} | {each['value']:.4g} {each['unit']} | {shown(each['limit'])} | {verdict} | {detail} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    global device, small, place
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="few and small cases")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=[*QUESTIONS])
    parser.add_argument("--json", default=str(ROOT / "build" / "gpu.json"))
    parser.add_argument(
        "--markdown", help="default: docs/measurements_gpu.md on a GPU, nothing on a CPU"
    )
    arguments = parser.parse_args()
    device, small = arguments.device, arguments.small
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from smlightning.training import imports

    imports.lightning()
    import pytorch_lightning
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            f"error: torch {torch.__version__} sees no GPU; run this on a CUDA machine, or with --device cpu --small."
        )
    facts = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU", "torch": torch.__version__,
        "lightning": pytorch_lightning.__version__, "Python": platform.python_version(),
    }  # fmt: skip
    rows: list[Row] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        place = Path(folder)
        for name in arguments.only:
            since = time.monotonic()
            try:
                for each in QUESTIONS[name]():
                    rows.append(each)
                    verdict = {True: "PASS", False: f"FAIL {each['detail']}", None: "not judged"}[
                        each["passed"]
                    ]
                    print(
                        f"{each['name']} {each['value']:.4g} {shown(each['limit'])} {verdict}",
                        flush=True,
                    )
            except Exception as error:  # the other questions are asked all the same
                rows.append(
                    row(
                        f"{name} was asked",
                        0,
                        1,
                        "",
                        least=True,
                        detail=f"{type(error).__name__}: {error}",
                    )
                )
                print(f"{name} was asked 0 1 FAIL {type(error).__name__}: {error}", flush=True)
            print(f"# {name}: {time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
        facts["minutes"] = f"{(time.monotonic() - began) / 60:.1f}"
        text = markdown(facts, rows)
    report = Path(arguments.json)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({**facts, "rows": rows}, indent=1))
    target = arguments.markdown or (
        str(ROOT / "docs" / "measurements_gpu.md") if device == "cuda" else ""
    )
    if target:
        Path(target).write_text(text, encoding="utf-8")
    failed = [each["name"] for each in rows if each["passed"] is False]
    judged = [each["name"] for each in rows if each["passed"] is not None]
    print(
        f"{len(judged) - len(failed)} of {len(judged)} PASS in {facts['minutes']} min; {arguments.json}"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
