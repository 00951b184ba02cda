"""Real runs of src/train.py, of one rank or several, and a record of what each rank saw.

Ranks are processes over gloo, with the variables that torchrun would give them; they are forked from a server that has
imported torch and the project already, since imports take longer than these runs.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

CONTEXT = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
SECONDS = 120  # of the slowest run, on a busy machine


def train(folder: Path, options: dict[str, Any], world_size: int = 1, kill_at: int = 0) -> list[dict[str, Any]]:
    """Train in ``folder`` with src/train.py; what each rank recorded, by rank. ``log`` is what it printed.

    Args:
        kill_at: SIGKILL ends every rank after so many batches or more, once there is a checkpoint of the batch before
            last; 0: never.
    """
    return _ranks(functools.partial(_train, options=options, kill_at=kill_at), folder, world_size, kill_at)


def loaders(folder: Path, options: dict[str, Any], world_size: int) -> dict[str, Counter[str]]:
    """The samples that all ranks together get from the loaders of `data.Data` in one epoch, as digests.

    Batches are of a single sample where an option `batch_size` can say so: no padding is in the way then.
    """
    seen = _ranks(functools.partial(_iterate, options=options), folder, world_size)
    return {split: sum((Counter(rank[split]) for rank in seen), Counter()) for split in ("train", "val")}


def sample_answers(folder: Path) -> str:
    """What `predict.py --sample` prints in the folder of a run."""
    (record,) = _ranks(_predict, folder, 1)
    return record["log"]


def start_server() -> None:
    """Start the process that ranks are forked from; a second call changes nothing."""
    if sys.platform != "win32":
        from multiprocessing import forkserver

        CONTEXT.set_forkserver_preload(["contract.preload"])
        # The server looks there for what it imports: before Python 3.12 it is not told of sys.path.
        with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
            forkserver.ensure_running()


def _ranks(body: Callable[[], dict], folder: Path, world_size: int, kill_at: int = 0) -> list[dict[str, Any]]:
    start_server()
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "OMP_NUM_THREADS": 1, "PYTHONUTF8": 1}
    processes = []
    for rank in range(world_size):
        variables = {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
        process = CONTEXT.Process(target=_rank, args=(body, folder, rank, variables if world_size > 1 else {}))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
    found = [json.loads(path.read_text()) for path in (folder / f"rank-{rank}.json" for rank in range(world_size))]
    for rank, (process, record) in enumerate(zip(processes, found, strict=True)):
        record["log"] = (folder / f"rank-{rank}.log").read_text(encoding="utf-8")
        expected = -signal.SIGKILL if kill_at else 0
        assert process.exitcode == expected, f"rank {rank} ended with {process.exitcode}\n{record['log']}"
    return found


def _rank(body: Callable[..., dict], folder: Path, rank: int, variables: dict[str, str]) -> None:
    """One process: its own folder, output and variables."""
    for name in list(os.environ):
        other = name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MLFLOW_TRACKING_URI", "HUB_TOKEN_SECRET")
        if other or name.startswith(("SM_", "OMPI_")):
            del os.environ[name]
    os.environ.update(variables)
    os.chdir(folder)
    log = os.open(f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    record = Path(f"rank-{rank}.json")
    record.write_text("{}")
    try:
        body(write=lambda seen: record.write_text(json.dumps(seen)))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # nothing that is imported may decide how a test ends


def _train(write: Callable[[dict], Any], options: dict[str, Any], kill_at: int) -> None:
    import pytorch_lightning as pl

    import train
    from runtime import divided, report

    def unseen(figure: Any, path: Path) -> None:
        """Pictures are drawn and not rendered: that takes longer than the run."""
        report.pyplot().close(figure)
        path.touch()

    report.save_figure = unseen
    seen: dict[str, Any] = {
        "batches": [],
        "losses": [],
        "lr": [],
        "best": {},
        "metrics": {},
        "validated": [],
        "weights": [],
    }

    class Recorder(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss")
            seen["batches"].append(divided.digest(batch))
            seen["losses"].append(None if loss is None else float(loss))
            seen["lr"].append([group["lr"] for each in trainer.optimizers for group in each.param_groups])
            write(seen)
            if kill_at and len(seen["batches"]) >= kill_at:
                if newest_step() >= kill_at - 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.5)  # a thread is still writing: perhaps after the next batch

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if not trainer.sanity_checking:
                seen["validated"].append({name: float(x) for name, x in trainer.callback_metrics.items()})
                seen["weights"].append(digests(module.state_dict()))

        def on_train_end(self, trainer: Any, module: Any) -> None:
            seen["last"] = digests(module.state_dict())
            seen["num_workers"] = getattr(trainer.train_dataloader, "num_workers", None)

        def on_test_end(self, trainer: Any, module: Any) -> None:
            seen["best"] = digests(module.state_dict())
            seen["metrics"] = {name: float(value) for name, value in trainer.callback_metrics.items()}

    class Recorded(pl.Trainer):
        def __init__(self, *args: Any, callbacks: Any = None, **more: Any) -> None:
            super().__init__(*args, callbacks=[Recorder(), *(callbacks or [])], **more)

    pl.Trainer = Recorded  # type: ignore[misc]
    with contextlib.suppress(SystemExit):
        train.train(**options)
    seen["files"] = {
        str(path): path.stat().st_size
        for path in sorted(Path().rglob("*"))
        if path.is_file() and not path.name.startswith((".", "events", "rank-", "curves")) and path.suffix != ".ckpt"
    }
    write(seen)


def newest_step() -> int:
    """The latest step of which a checkpoint lies in the folder, 0 for none."""
    names = " ".join(path.name for path in Path("outputs/checkpoints").glob("[0-9]*"))
    return max(map(int, re.findall(r"-step(\d+)-", names)), default=0)


def digests(tensors: dict[str, Any]) -> dict[str, int]:
    """Of each tensor, its values and their type."""
    from runtime import divided

    return {name: divided.digest(tensor) for name, tensor in tensors.items()}


def _predict(write: Callable[[dict], Any]) -> None:
    import predict

    sys.argv = ["predict.py", "--sample", "--model_dir", "outputs/model"]
    assert predict.main() == 0
    write({})


def _iterate(write: Callable[[dict], Any], options: dict[str, Any]) -> None:
    import pytorch_lightning as pl
    import torch

    import data
    import dist
    from options import OPTIONS, DataOptions
    from runtime import command_line

    single = {"batch_size": 1} if "batch_size" in command_line.declared(OPTIONS) else {}
    options = command_line.complete(OPTIONS, {**options, **single})
    seen: dict[str, list[str]] = {"train": [], "val": []}

    class Collect(pl.LightningModule):
        """Trains nothing: notes what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            seen["train"] += samples(batch)
            return self.weight * 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen["val"] += samples(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

    with dist.session() as cluster:
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = pl.Trainer(
            accelerator=cluster.accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes, max_epochs=1,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(Collect(), datamodule=data.Data(**command_line.select(DataOptions, options)))
    write(seen)


def samples(batch: Any) -> list[str]:
    """A digest of each sample of a batch: of its part of every tensor that is as long as the batch."""
    import torch

    from runtime import divided

    tensors = [item for item in divided.leaves(batch) if isinstance(item, torch.Tensor)]
    sizes = Counter(len(tensor) for tensor in tensors if tensor.dim())
    ((size, _),) = sizes.most_common(1) or [(0, 0)]
    columns = [tensor for tensor in tensors if tensor.dim() and len(tensor) == size]
    return [str(divided.digest([column[i] for column in columns])) for i in range(size)]
