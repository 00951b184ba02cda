"""A rank that fails, compiles or sends less, in real training of two ranks as on two hosts."""

import re
import shutil
import signal
from pathlib import Path

import pytest

import forked
from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position

TRAINING = """
import os, sys, threading, time
import pytorch_lightning as pl, torch, torch._dynamo
import dist
from smlightning.reports import log
from smlightning import errors
from smlightning.cluster import ending, session
from smlightning.training.seeds import StepSeed
from smlightning.training.hangs import HangTimeout

RANK = int(os.environ["RANK"])
ending.CAUSE_SECONDS = 6.0  # the threads look each second, and a busy machine's may pause

class Net(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x)

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        first, second, last = (torch.nn.Linear(*size) for size in ((64, 600), (600, 600), (600, 1)))
        self.net = Net(first, torch.nn.ReLU(), second, last)

    def training_step(self, batch, i):
        before_step(self, i)
        return self.net(batch[: 1 + i // 10]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(160, 64), batch_size=4)

def before_step(model, i):
    pass

def fit(hang_seconds=30.0, more=()):
    log.quiet()
    strategy, devices, num_nodes = dist.get_initialization_info()
    trainer = pl.Trainer(accelerator="cpu", strategy=strategy, devices=devices,
                         num_nodes=num_nodes, max_epochs=1,
                         callbacks=[HangTimeout(hang_seconds), StepSeed(0), *more], logger=False,
                         enable_checkpointing=bool(more), enable_progress_bar=False,
                         enable_model_summary=False, num_sanity_val_steps=0)
    model = Model()
    trainer.fit(model)
    return model, trainer
"""


def start(tmp_path: Path, script: str) -> list[forked.Rank]:
    """Two ranks on two hosts."""
    path = tmp_path / "job.py"  # a file: Dynamo compiles nothing of a string's code
    path.write_text(TRAINING + script)
    code = f"import runpy; runpy.run_path({str(path)!r})"
    return forked.start_ranks(code, tmp_path, 2, hosts=2)


BOTH_FAIL = """
with dist.session():
    raise errors.UserError("there is no such file", "name another")
"""


def test_an_error_on_all_ranks_is_one_sentence_on_each(tmp_path: Path) -> None:
    """Rank 0 keeps the store: if it left first, torch would print frames of C++ on the others."""
    for number, rank in enumerate(start(tmp_path, BOTH_FAIL)):
        status, said = rank.wait(60)
        assert status == 1 and "TCPStore" not in said, said
        assert "there is no such file" in (tmp_path / f"output{number}" / "failure").read_text()


FAILS_EARLY = """
def prepare_data(model):
    if RANK == 0:
        raise ValueError("a broken link")

Model.prepare_data = prepare_data
with dist.session():
    fit()
"""


def test_a_rank_that_fails_while_another_waits_in_native_code_ends_both(tmp_path: Path) -> None:
    """Without torchrun's agent rank 0 keeps the store; rank 1 waits for it in a barrier."""
    statuses, said = forked.wait_for_all(start(tmp_path, FAILS_EARLY), 60)
    assert statuses == (1, 1), said
    line = r"rank 0 on host algo-1 failed: job\.py:\d+ prepare_data: ValueError: a broken link"
    for number in range(2):
        assert re.match(line, (tmp_path / f"output{number}" / "failure").read_text()), said
    assert "rank 1 on host algo-2 ended because rank 0" in said[1] and "frame #" not in said[1]


NCCL_TEXT = """
TEXT = "\\n".join([
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:94, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.29.7",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
    "Last error:",
    {last!r},
    "Exception raised from create at NCCLUtils.cpp:94 (most recent call first):",
    "frame #0: c10::Error::Error()",
])

def before_step(model, i):
    if i == 3 and RANK in {ranks}:
        raise torch.distributed.DistBackendError(TEXT)

with dist.session():
    fit()
"""
TIMED_OUT = "socketStartConnect: Connect to 10.0.2.5<50913> failed : Connection timed out"
CLOSED = "socketProgress: Connection closed by remote peer ip-10-0-2-5<43567>"


@pytest.mark.parametrize(
    ("last", "ranks", "words"),
    [
        (
            TIMED_OUT,
            (1,),
            rf"rank 1 on host algo-2 failed: job\.py:\d+ before_step: Dist.*{TIMED_OUT}",
        ),
        (CLOSED, (0, 1), CLOSED),
    ],
)
def test_the_reason_of_nccl_is_in_the_log_and_the_failure_file(
    last: str, ranks: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    started = start(tmp_path, NCCL_TEXT.format(last=last, ranks=ranks))
    statuses, said = forked.wait_for_all(started, 60)
    assert statuses == (1, 1), said
    for number, log in enumerate(said):
        cause = (tmp_path / f"output{number}" / "failure").read_text()
        assert re.search(words, cause) and "\n" not in cause, cause
        assert last in log
        assert "exited without an error message" not in cause


HANGS = """
def hang(model, *_):
    time.sleep(100 * (RANK == 1 and model.trainer.global_step == 10))

{hook} = hang
with dist.session():
    fit(hang_seconds=4.0)
"""


@pytest.mark.parametrize(
    ("hook", "part", "others"),
    [
        ("before_step", "step 11", "backward of step 11"),
        ("Model.on_before_optimizer_step", "update of step 11", "fetching the batch after step 11"),
    ],
)
def test_ranks_that_hang_end_with_their_stacks_and_the_line_of_each(
    hook: str, part: str, others: str, tmp_path: Path
) -> None:
    statuses, said = forked.wait_for_all(start(tmp_path, HANGS.format(hook=hook)), 60)
    assert statuses == (1, 1), said
    for number, log in enumerate(said):
        cause = (tmp_path / f"output{number}" / "failure").read_text()
        assert cause.startswith("no progress for 4 s: "), cause
        line = rf"rank 1 on host algo-2 was in {part}, job\.py:\d+ hang"
        assert re.search(line, cause) and f"rank 0 on host algo-1 was in {others}" in cause
        assert f"stacks of rank {number} on host" in log and f"error: {cause}" in log


HANGS_EARLY = """
Model.setup = lambda model, stage: time.sleep(100 * RANK)

with dist.session():
    fit(hang_seconds=0.4)
"""


def test_ranks_that_hang_before_training_end_after_ten_times_as_long(tmp_path: Path) -> None:
    statuses, said = forked.wait_for_all(start(tmp_path, HANGS_EARLY), 60)
    assert statuses == (1, 1), said
    for number in range(2):
        cause = (tmp_path / f"output{number}" / "failure").read_text()
        line = r"rank 1 on host algo-2 was in before training, job\.py:\d+ "
        assert cause.startswith("no progress for 4 s: ") and re.search(line, cause), cause


ABORTED = """
from smlightning.cluster import signals
signals.install()
hook = Model.on_after_backward

def abort(model):  # as NCCL's watchdog, a thread of C++, does while the main thread waits
    if RANK == 1 and model.trainer.global_step == 7:
        threading.Thread(target=os.abort).start()
        torch.distributed.barrier()
        threading.Event().wait()

Model.on_after_backward = abort
with dist.session():
    fit()
sys.exit(signals.complete())
"""


def test_a_rank_that_native_code_aborts_leaves_its_stacks(tmp_path: Path) -> None:
    """The other rank reports that it is gone."""
    ranks = start(tmp_path, ABORTED)
    statuses, said = forked.wait_for_all(ranks, 60)
    assert statuses == (1, -signal.SIGABRT), said
    assert "Fatal Python error: Aborted" in said[1] and "in abort" in said[1]
    assert "rank 1 on host algo-2" in (tmp_path / "output0" / "failure").read_text()


UNEVEN = """
from pathlib import Path
from smlightning.cluster import collectives
from smlightning.checkpoints.callback import Checkpoints
from smlightning.training.loaders import Loaders

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from torch.ones(2 + 30 * RANK, 64)

def evaluate(model, batch, i):
    model.seen = i + 1

def log_sum(model):
    seen = collectives.all_sum(torch.tensor(float(model.seen))).item()
    model.log("val/loss", seen), model.log("test/loss", seen)

Model.validation_step = Model.test_step = evaluate
Model.on_validation_epoch_end = Model.on_test_epoch_end = log_sum
Model.val_dataloader = Model.test_dataloader = lambda model: torch.utils.data.DataLoader(Stream())
with dist.session():
    options = {"monitor": "val/loss", "mode": "min", "loaders": Loaders(1)}
    kept = Checkpoints(Path(os.environ["SM_OUTPUT_DIR"]), {}, **options)
    kept.resume("never")
    model, trainer = fit(more=[kept])
    trainer.test(model, verbose=False)
    assert trainer.callback_metrics["test/loss"] == 2 + 32, trainer.callback_metrics
"""


def test_ranks_may_evaluate_different_numbers_of_batches(tmp_path: Path) -> None:
    """They agree on nothing in between: one at its end would answer with another sum."""
    for rank in start(tmp_path, UNEVEN):
        status, said = rank.wait(60)
        assert status == 0, said


MISSING = """
from pathlib import Path
from smlightning.checkpoints.callback import Checkpoints
from smlightning.training.loaders import Loaders

with dist.session():
    os.chdir(Path(os.environ["SM_OUTPUT_DIR"]).parent / f"host{RANK}")
    options = {"monitor": "val/loss", "mode": "min", "loaders": Loaders(1)}
    Checkpoints(Path("kept"), {}, **options).resume("auto")
"""


@pytest.mark.parametrize("has_all", [True, False])
def test_a_host_without_rank_0s_checkpoint_ends_all_ranks(has_all: bool, tmp_path: Path) -> None:
    first, second = tmp_path / "host0/kept", tmp_path / "host1/kept"
    content = {"weights": {}, "shard": {}}
    best = files.write_file(first, "000001-best-00000-of-00001", content).name
    state = {"callbacks": {"Checkpoints": {"options": {}, "global_batch": 2}}}
    files.write(first, Position(step=7), state, {"best": [best]})
    shutil.copytree(first, second)
    if not has_all:
        (second / best).unlink()
    ranks = start(tmp_path, MISSING)
    statuses, said = forked.wait_for_all(ranks, 60)
    assert statuses == ((0, 0) if has_all else (1, 1)), said
    for text in said:
        assert has_all or f"kept/{best} is missing" in text, text
