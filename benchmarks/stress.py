"""Stop, kill, damage and hang real runs of the generated project, at random moments, and count
what was lost.

    python benchmarks/stress.py kills --count 50     # kill -9, go on, compare the weights bit for bit
    python benchmarks/stress.py stops --count 200    # SIGTERM or SIGINT to agent, a rank or all: status 143, ≤ 10 s
    python benchmarks/stress.py damage --count 40    # spoil the newest checkpoint: the one before is taken
    python benchmarks/stress.py ranks --count 8      # go on with another number of ranks
    python benchmarks/stress.py hosts --count 6      # stop or lose one of two hosts, start both again
    python benchmarks/stress.py full --count 20      # the disk becomes full: one sentence, then go on
    python benchmarks/stress.py metrics              # 1 to 4 ranks, 1 to 1000 samples, stock Lightning's error beside
    python benchmarks/stress.py hangs --count 10     # a rank sleeps or is paused: named in time
    python benchmarks/stress.py all --minutes 5      # some of each, in rounds with other seeds, until the time is over

With `--strategy fsdp` kills, stops, damage and ranks are of sharded runs, with `--lora_rank 4` of adapters of a small
BERT.

Each prints a line per trial and a summary; the status is 1 if one trial failed. Recorded in
docs/measurements.md.
"""

import os
import signal
import subprocess
import sys

if sys.argv[1:2] == [
    "--rank"
]:  # what torchrun starts in a trial: passes signals on to the rank, notes its status
    process = subprocess.Popen([sys.executable, *sys.argv[2:]])
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda number, _: process.send_signal(number))
    with open(f"rank{os.environ['RANK']}.pid", "w") as file:  # noqa: PTH123
        file.write(str(process.pid))
    status = process.wait()
    with open(f"rank{os.environ['RANK']}.status", "w") as file:  # noqa: PTH123
        file.write(str(status))
    sys.exit(status if status >= 0 else 128 - status)

import argparse
import csv
import faulthandler
import itertools
import json
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
SRC = next(ROOT.glob("{{*}}/src"))  # the template's own
PATHS = [str(SRC), str(SRC.parent / "vendor" / "smlightning")]
sys.path[:0] = PATHS
from smlightning.testing.processes import free_port  # noqa: E402

ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}


def write_words(path: Path, each: int = 120) -> None:
    """Random words in three alphabets; every fourth has a wrong label, so that training never
    comes to rest.
    """
    draw = random.Random(0)
    rows = [
        (
            "".join(draw.choices(letters, k=draw.randint(1, 12))),
            name if draw.random() < 0.75 else "latin",
        )
        for name, letters in ALPHABETS.items()
        for _ in range(each)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


class Agent:
    """torchrun's process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode


class Job:
    """A run of train.py on this machine.

    Args:
        how: "started" one process by one, by "torchrun", "forked", or "forked by an agent", torchrun's own. A forked
            rank starts in a tenth of the time, since torch and Lightning are imported already; nothing else differs.
        apart: ranks other than 0 have model and checkpoint folders of their own, as on other hosts.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        how: str,
        options: dict[str, object],
        script: str = "train",
        apart: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ranks, self.how = folder, ranks, how
        arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        port = free_port()
        base = {
            k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        base |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(PATHS),
            "DIST_MEET_SECONDS": "40",
        }
        self.started = time.monotonic()
        self.log = folder / f"log-{time.time_ns()}.txt"
        program = [sys.executable, str(SRC / "train.py")]
        if script != "train":
            program = [sys.executable, "-c", script]
        self.pids: list[int] = []  # of the ranks
        self.statuses: dict[int, int] = {}
        self.agent: Agent | None = None
        with self.log.open("w") as log:
            if how == "torchrun":
                line = [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    "--nproc_per_node",
                    str(ranks),
                ]
                line += ["--master_port", str(port), __file__, "--rank", *program[1:], *arguments]
                process = subprocess.Popen(line, cwd=folder, env=base, stdout=log, stderr=log)
                process.returncode = 0  # waited for below, by its number
                self.agent = Agent(process.pid)
                return
            if how == "forked by an agent":
                self.agent = Agent(
                    _fork(folder, base, arguments, log.fileno(), lambda: _elastic(ranks, port))
                )
                return
            for rank in range(ranks):
                env = dict(base)
                if ranks > 1:
                    env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
                    env |= {
                        "LOCAL_WORLD_SIZE": str(ranks),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                    }
                if apart and rank:
                    env["SM_MODEL_DIR"] = str(folder / f"host{rank}" / "model")
                if how == "forked":
                    self.pids.append(
                        _fork(folder, env, arguments, log.fileno(), lambda: _rank(script))
                    )
                else:
                    process = subprocess.Popen(
                        [*program, *arguments], cwd=folder, env=env, stdout=log, stderr=log
                    )
                    process.returncode = 0  # waited for below, by its number
                    self.pids.append(process.pid)

    def find_ranks(self) -> list[int]:
        """Process numbers of the ranks, as far as they are there."""
        if self.agent:
            notes = sorted(self.folder.glob("rank*.pid"))
            self.pids = [int(text) for note in notes if (text := note.read_text())]
        return self.pids

    def rank_statuses(self) -> list[int]:
        """As a shell gives them: 128 + the number of the signal that ended a process."""
        if self.agent:
            found = [
                int(note.read_text() or 0) for note in sorted(self.folder.glob("rank*.status"))
            ]
        else:
            found = [self.statuses[pid] for pid in self.pids]
        return [status if status >= 0 else 128 - status for status in found]

    def wait(self, seconds: float) -> float | None:
        """Seconds until every process had ended; None if some had not."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if self.agent:
                self.find_ranks()
                if self.agent.poll() is not None and not any(_alive(pid) for pid in self.pids):
                    return time.monotonic() - start
            else:
                for pid in self.pids:
                    if pid not in self.statuses and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                        self.statuses[pid] = os.waitstatus_to_exitcode(ended[1])
                if len(self.statuses) == len(self.pids):
                    return time.monotonic() - start
            time.sleep(0.02)
        return None

    def end(self) -> None:
        """Kill what is left of this job, and nothing else."""
        for pid in [*self.pids, *([self.agent.pid] if self.agent else [])]:
            if pid not in self.statuses and _alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.wait(10)

    def show_stacks(self) -> None:
        """Have forked ranks that have not ended write to the log where each of their threads is."""
        for pid in self.pids:
            if pid not in self.statuses and _alive(pid):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        print(f"not ended: {self.log}", file=sys.stderr, flush=True)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")


def _fork(
    folder: Path, env: dict[str, str], arguments: list[str], log: int, main: Callable[[], int]
) -> int:
    warm_up()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    faulthandler.register(signal.SIGUSR1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [str(SRC / "train.py"), *arguments]
    _leave(main)


def _leave(main: Callable[[], int]) -> NoReturn:
    """Run the rest of a forked process."""
    status = 1
    try:
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # as at the end of a process of its own
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _rank(script: str = "train") -> int:
    import train
    from smlightning import entry

    if script != "train":
        exec(script, {"__name__": "__main__"})  # noqa: S102
    return entry.main(train.train, train.Options, None)


def _elastic(ranks: int, port: int) -> int:
    """What torchrun does, but its workers are forked."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    address = {
        "rdzv_backend": "static",
        "rdzv_endpoint": f"127.0.0.1:{port}",
        "rdzv_configs": {"rank": 0},
    }
    config = LaunchConfig(
        1,
        1,
        ranks,
        **address,
        run_id="none",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, _watched_rank)()
    return 0


def _watched_rank() -> None:
    """Fork the rank, pass signals on to it, and note its status."""
    pid = os.fork()
    if not pid:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
        _leave(_rank)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: _alive(pid) and os.kill(pid, number))
    rank = os.environ["RANK"]
    Path(f"rank{rank}.pid").write_text(str(pid))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    Path(f"rank{rank}.status").write_text(str(status))
    if status:  # else return, which is what the agent waits for
        os._exit(status if status > 0 else 128 - status)


def warm_up() -> None:
    """Import once what every forked rank needs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from smlightning.training import imports

    imports.lightning()
    import datasets  # noqa: F401
    import matplotlib  # noqa: F401
    import torch
    from torch.utils.tensorboard import SummaryWriter  # noqa: F401

    import train  # noqa: F401

    torch.set_num_threads(1)
    import data  # noqa: F401
    import model  # noqa: F401
    from smlightning import run  # noqa: F401


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _listens(pid: int, how: str) -> bool:
    """Whether the rank has a handler for SIGTERM, or is gone."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if how == "torchrun" and not any(word.endswith(b"/train.py") for word in command[:2]):
            return False  # between fork and exec
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def final_state(folder: Path) -> dict:
    """Everything of the last checkpoint that training decides: weights, best weights, optimizer,
    schedule.
    """

    from smlightning.checkpoints import files as checkpoint_files
    from smlightning.checkpoints import reader

    state = reader.read_here(checkpoint_files.newest(folder / "outputs" / "checkpoints"))
    mine = state["callbacks"]["Checkpoints"]
    return {
        "weights": state["state_dict"],
        "best": state["best_weights"],
        "score": mine["best"]["score"],
        "optimizer": state["optimizer_states"],
        "schedule": state["lr_schedulers"],
        "position": mine["position"],
    }


def difference(one: object, other: object) -> float:
    """The largest difference of two states' numbers; 0 only if every bit is the same."""
    import torch

    if isinstance(one, torch.Tensor):
        if torch.equal(one, other):
            return 0.0
        return max((one.double() - other.double()).abs().max().item(), 1e-300)
    if isinstance(one, dict):
        assert one.keys() == other.keys(), (one.keys(), other.keys())
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, (list, tuple)):
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, (int, float)):
        return abs(float(one) - float(other))
    assert one == other, (one, other)
    return 0.0


def _to_go_on_from(place: Path) -> str:
    """What the next run's `resume:` line has to hold: the name of the newest whole checkpoint; ""
    if there is none.
    """
    from smlightning.checkpoints import files as checkpoint_files

    path = checkpoint_files.newest(place / "outputs" / "checkpoints")
    return path.name if path else ""


OPTIONS: dict[str, Any] = {
    "dataset": "../words.csv",
    "data_dir": "../data",
    "epochs": 4,
    "batch_size": 4,
    "log_every": 10,
    "strategy": "ddp",  # or what --strategy says
}


def kills(
    count: int, seed: int, folder: Path, ranks: tuple[int, ...] = (1, 2, 4), workers: int = 1
) -> Iterator[str]:
    """Kill a rank at any moment, or in the middle of a checkpoint; go on; compare with a run that
    was left alone.
    """
    draw = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3, "num_workers": workers}
    sharded = options["strategy"] == "fsdp"
    ranks = tuple(n for n in ranks if n > 1) if sharded else ranks
    whole, seconds = {}, {}
    for trial in range(count):
        n, writing = ranks[(trial + seed) % len(ranks)], draw.random() < 0.4
        options |= {"batch_size": 16 // n}
        if n not in whole:
            job = Job(folder / f"whole{n}", n, "forked", options)
            assert job.wait(300) and set(job.statuses.values()) == {0}, job.text
            seconds[n], whole[n] = time.monotonic() - job.started, final_state(job.folder)
        place = folder / f"kill{trial}"
        job = Job(place, n, "forked", options)
        victim = 0 if writing and not sharded else draw.randrange(n)
        if writing:
            wanted = draw.randint(1, 20)  # this many checkpoints are left alone
            until = time.monotonic() + 60
            while len(_temporary(place)) == 0 or wanted > 0:
                if _temporary(place):
                    wanted -= 1
                    while _temporary(place) and time.monotonic() < until:
                        time.sleep(0.0002)
                    if not wanted:
                        continue
                if time.monotonic() > until:
                    break
                time.sleep(0.0002)
        else:
            time.sleep(draw.uniform(0.2, 0.9 * seconds[n]))
        os.kill(job.pids[victim], signal.SIGKILL)
        ended = job.wait(60)
        left = len(_temporary(place))
        job.end()
        expected = _to_go_on_from(place)
        # ranks that lack the file get rank 0's
        again = Job(place, n, "forked", options, apart=trial % 2 == 1 and not sharded)
        ended_again = again.wait(300)
        if ended_again is None:
            again.show_stacks()
        finished = ended_again and set(again.statuses.values()) == {0}
        resumed = next(
            (line for line in again.text.splitlines() if line.startswith("resume: ")),
            "resume: from the start",
        )
        again.end()
        gap = difference(whole[n], final_state(place)) if finished else float("nan")
        good = ended is not None and gap == 0.0 and expected in resumed
        yield (
            f"{'ok' if good else 'FAILED'} ranks={n} killed=rank{victim} {'in a write' if left else 'anywhere'} "
            f"others_ended={ended and round(ended, 1)}s {_short(resumed)} difference={gap:g}"
        )


def stops(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Signal the agent, a rank or all of a run of two ranks, from its start to its last line.

    One trial in ten is under torchrun itself and has the imports in it; the others are forked by
    torchrun's agent.
    """
    draw = random.Random(seed)
    options = {**OPTIONS, "batch_size": 8, "epochs": 12}
    seconds: dict[str, float] = {}
    trial = 0
    while trial < count:
        how = "torchrun" if trial % 10 == 2 else "forked by an agent"
        if how not in seconds and how == "torchrun" and "forked by an agent" in seconds:
            seconds[how] = seconds["forked by an agent"] + 8  # its imports: a first guess
        if how not in seconds:
            job = Job(folder / how.replace(" ", "-"), 2, how, options)
            assert job.wait(300) is not None and job.agent and job.agent.returncode == 0, job.text
            seconds[how] = time.monotonic() - job.started
        place = folder / f"stop{trial}"
        shutil.rmtree(place, ignore_errors=True)
        target, number = (
            draw.choice(["agent", "rank0", "rank1", "all"]),
            draw.choice([signal.SIGTERM, signal.SIGINT]),
        )
        job = Job(place, 2, how, options)
        assert job.agent
        while len(job.find_ranks()) < 2 and job.agent.poll() is None:
            time.sleep(0.01)
        moment = job.started + draw.uniform(0.0, seconds[how])
        while time.monotonic() < moment and job.agent.poll() is None:
            time.sleep(0.005)
        while job.agent.poll() is None and not all(_listens(pid, how) for pid in job.pids):
            time.sleep(0.01)  # what comes before its first line is Python's to answer
        if job.agent.poll() is not None or "test/accuracy" in job.text:
            seconds[how] = time.monotonic() - job.started
            job.end()  # it was complete before the signal: not a trial, but a better measure of how long one takes
            continue
        trial += 1
        before = job.text
        victims = {"agent": [job.agent.pid], "rank0": job.pids[:1], "rank1": job.pids[1:]}.get(
            target
        )
        for pid in victims or [job.agent.pid, *job.pids]:
            if _alive(pid):
                os.kill(pid, number)
        ended = job.wait(40)
        job.end()
        statuses, said = job.rank_statuses(), job.text
        told = [line for line in said.splitlines() if line.startswith(("stopped by", "ended by"))]
        phase = "training" if "global_batch=" in before else "start"
        if "epoch=12 val" in before:
            phase = "test and saving"
        if (
            target == "agent"
            and set(statuses) == {0}
            and "test/accuracy" in said
            and ended is not None
            and ended < 2
        ):
            trial -= (
                1  # it was complete before the agent, which looks every 0.1 s, passed the signal on
            )
            continue
        problem = ""
        if ended is None or ended > 10:
            problem = "took too long"
        elif set(statuses) != {143} or not job.agent.returncode:
            problem = "a status is not 143"
        elif not told:
            problem = "nothing says how to go on"
        elif phase == "training" and not any(" at step " in line for line in told):
            problem = "it was ended before it could save"
        else:
            problem = _checkpoint_problem(place, told)
        yield (
            f"{'FAILED ' + problem if problem else 'ok'} {how}: {number.name} to {target} during {phase}: ended in "
            f"{ended and round(ended, 1)} s, ranks {statuses}, agent {job.agent.returncode}; {(told or ['-'])[0]}"
        )
        if not problem:
            shutil.rmtree(place)


HANG = """
import os, time, data
original = data.BatchDataset.__getitem__
def hang(self, key, calls=[]):
    calls.append(key)
    if len(calls) == 40 and os.environ["RANK"] == "%d":
        time.sleep(1000)
    return original(self, key)
data.BatchDataset.__getitem__ = hang
"""


def hangs(count: int, seed: int, folder: Path, hang_seconds: float = 60.0) -> Iterator[str]:
    """Let a rank sleep in the middle of its data, or pause its process; the others have to name
    it and end.
    """
    draw = random.Random(seed)
    for trial in range(count):
        ranks, paused = draw.choice([2, 3]), (trial + seed) % 2 == 1
        victim = draw.randrange(ranks)
        options = {**OPTIONS, "epochs": 400, "batch_size": 4, "hang_seconds": hang_seconds}
        job = Job(
            folder / f"hang{trial}", ranks, "forked", options, "train" if paused else HANG % victim
        )
        while (
            "epoch=2" not in job.text
            and _alive(job.pids[0])
            and (paused or job.text.count("step=") < 3)
        ):
            time.sleep(0.1)
        if paused:
            os.kill(job.pids[victim], signal.SIGSTOP)
        start, said, named = time.monotonic(), f"rank {victim} on host localhost", None
        words = ("has not been heard of", "has not answered", "stopped taking part")
        while time.monotonic() - start < 2 * hang_seconds and not named:
            lines = [
                line
                for line in job.text.splitlines()
                if said in line and any(word in line for word in words)
            ]
            named = (time.monotonic() - start, lines[0]) if lines else None
            time.sleep(0.1)
        time.sleep(1)
        if paused:
            os.kill(job.pids[victim], signal.SIGCONT)
        ended = job.wait(2 * hang_seconds)
        job.end()
        statuses = job.rank_statuses()
        stacks = job.text.count("stacks of rank")
        enough = stacks >= ranks - paused
        telling = named and not re.search(
            r"(train|signals)\.py", named[1]
        )  # where a rank is, not how it began
        good = (
            telling and named[0] <= hang_seconds and ended is not None and all(statuses) and enough
        )
        yield (
            f"{'ok' if good else 'FAILED'} rank {victim} of {ranks} {'was paused' if paused else 'slept'}: named after "
            f"{named and round(named[0], 1)} s, statuses {statuses}, {stacks} stacks; {named and named[1]}"
        )


NO_DROPOUT = """
import torch
torch.nn.Dropout.forward = lambda self, x: x  # its draws are of a rank, and ranks differ here on purpose
"""


def places(state: dict) -> tuple:
    """Where training stood; the rest of a position counts the batches of a rank."""
    return itemgetter("step", "epoch", "batch", "complete")(state["position"])


def ranks(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Kill a run of 2 ranks, go on with 1 or 4, or accumulating: the same global batches, weights
    but for rounding.
    """
    draw = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3}
    job = Job(folder / "whole2", 2, "forked", {**options, "batch_size": 8}, NO_DROPOUT)
    assert job.wait(300) and set(job.statuses.values()) == {0}, job.text
    seconds, whole = time.monotonic() - job.started, final_state(job.folder)
    for trial in range(count):
        place = folder / f"ranks{trial}"
        job = Job(place, 2, "forked", {**options, "batch_size": 8}, NO_DROPOUT)
        time.sleep(draw.uniform(0.3, 0.7) * seconds)
        os.kill(job.pids[trial % 2], signal.SIGKILL)
        job.wait(60)
        job.end()
        expected = _to_go_on_from(place)
        many, batch, accumulate = ((1, 16, 1), (4, 4, 1), (1, 8, 2), (4, 2, 2))[(trial + seed) % 4]
        again = Job(
            place,
            many,
            "forked",
            {**options, "batch_size": batch, "accumulate_grad_batches": accumulate},
            NO_DROPOUT,
        )
        ended_again = again.wait(300)
        if ended_again is None:
            again.show_stacks()
        finished = ended_again and set(again.statuses.values()) == {0}
        resumed = next(
            (line for line in again.text.splitlines() if line.startswith("resume: ")),
            "from the start",
        )
        again.end()
        gap = best = float("nan")
        if finished:
            state = final_state(place)
            gap, best = (
                difference(whole["weights"], state["weights"]),
                difference(whole["score"], state["score"]),
            )
            resumed += (
                "" if places(state) == places(whole) else f", which ended at {state['position']}"
            )
        good = finished and gap < 1e-4 and places(state) == places(whole) and expected in resumed
        yield (
            f"{'ok' if good else 'FAILED'} 2 ranks, then {many} accumulating {accumulate}: {_short(resumed)}; "
            f"largest difference of a weight {gap:.1e}, of the best validation accuracy {best:.1e}"
        )


HOSTS = (  # launcher, hosts, processes on each; on one host mpirun is a real one
    ("torch_distributed", 2, 1, "--stop-host"),
    ("smddp", 1, 2, "--stop-host"),
    ("torch_distributed", 2, 2, "--lose-host"),
    ("pytorchddp", 2, 2, "--stop-host"),
    ("smddp", 2, 2, "--lose-host"),
    ("pytorchddp", 1, 2, "--lose-host"),
)


def hosts(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Two hosts of SageMaker's own toolkit; one is stopped or lost, both start again from what S3
    keeps of them.
    """
    from cookiecutter.main import cookiecutter

    draw = random.Random(seed)
    project = cookiecutter(str(ROOT), no_input=True, output_dir=str(folder))
    options = ["--dataset", str(folder / "words.csv"), "--epochs", "3", "--batch_size", "4"]
    for trial in range(count):
        launcher, number, processes, how = HOSTS[(trial + seed) % len(HOSTS)]
        host = str(draw.randint(1, number))
        line = [
            sys.executable,
            "-m",
            "smlightning",
            "rehearse",
            "--hosts",
            str(number),
            "--processes",
            str(processes),
        ]
        line += [
            "--distribution",
            launcher,
            how,
            host,
            "--json",
            str(folder / "report.json"),
            "--",
            *options,
        ]
        if how == "--lose-host":
            line += ["--checkpoint_steps", str(draw.randint(1, 9))]
        environment = {**os.environ, "PYTHONPATH": f"{project}/vendor/smlightning"}
        run = subprocess.run(line, cwd=project, env=environment, capture_output=True, text=True)
        report = (
            json.loads((folder / "report.json").read_text())
            if run.returncode < 2
            else {"checks": []}
        )
        said = {check["name"]: check["detail"] for check in report["checks"]}
        failed = [check["name"] for check in report["checks"] if check["verdict"] == "failed"]
        if how == "--stop-host":
            told = re.search(r"stopped by .*? at step (\d+)", run.stdout)
            if not told or said.get("resumes-from-checkpoint") != f"after step {told[1]}":
                failed.append("it did not go on where it stopped")
        good = run.returncode == 0 and not failed
        yield (
            f"{'ok' if good else 'FAILED'} {number} hosts x {processes}, {launcher}, {how} {host}: "
            f"{said.get('ends-in-time', run.stderr)}; {said.get('resumes-from-checkpoint')}; weights "
            f"{said.get('weights-as-undisturbed')} {' '.join(failed)}"
        )


FULL = """
mkdir outputs curves; full=$1; mount -t tmpfs -o size="$2" none "$full"; shift 2
export SM_MODEL_DIR=$PWD/outputs/model SM_OUTPUT_DATA_DIR=$PWD/curves
"$@" >first.txt 2>&1; echo $? >first.status
cp -r outputs first
mount -o remount,size=100m "$full"
"$@" >second.txt 2>&1; echo $? >second.status
mkdir kept; cp -r outputs kept; umount "$full"; rm -rf outputs; mv kept/outputs .
"""


def full(count: int, seed: int, folder: Path) -> Iterator[str]:
    """A disk that becomes full in the middle: one sentence, the last good checkpoint is left, and
    it goes on there.
    """
    from smlightning.checkpoints import files as checkpoint_files

    draw = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3}
    job = Job(folder / "whole", 1, "forked", options)
    assert job.wait(300) is not None, job.text
    whole = final_state(job.folder)
    size = checkpoint_files.newest(folder / "whole" / "outputs" / "checkpoints").stat().st_size
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    for trial in range(count):
        place = folder / f"full{trial}"
        place.mkdir()
        disk = ("outputs", "curves")[
            (trial + seed) % 2
        ]  # checkpoints and model; log, pictures and TensorBoard
        space = (
            int(size * draw.uniform(0.0, 3.9)) if disk == "outputs" else draw.randint(1, 60) * 2**10
        )
        line = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            FULL,
            "sh",
            disk,
            str(space),
        ]
        line += [sys.executable, str(SRC / "train.py"), *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
        subprocess.run(line, cwd=place, env=environment, check=True, timeout=600)
        said = (place / "first.txt").read_text()
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        statuses = [(place / f"{name}.status").read_text().strip() for name in ("first", "second")]
        left = checkpoint_files.numbered(place / "first" / "checkpoints")
        told = statuses == ["1", "0"] and len(errors) == 1
        if disk == "curves":  # what is drawn may be missing: a warning, and the model is there
            told = told or (statuses == ["0", "0"] and "warning: " in said)
        good = told and "Traceback" not in said
        good = good and all(checkpoint_files.whole(path) for _, path in left)
        gap = difference(whole, final_state(place)) if statuses[1] == "0" else float("nan")
        yield (
            f"{'ok' if good and gap == 0.0 else 'FAILED'} {disk} on {space / size:.2f} times a checkpoint: statuses "
            f"{statuses}, {len(left)} whole checkpoints left, then difference={gap:g}; {(errors or ['-'])[0]}"
        )


def damage(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Spoil the newest checkpoint of a real run in many ways; the one before has to be chosen,
    and has to load.
    """
    from smlightning.checkpoints import files as checkpoint_files
    from smlightning.checkpoints import reader

    draw = random.Random(seed)
    ranks = 2 if OPTIONS["strategy"] == "fsdp" else 1
    job = Job(folder / "whole", ranks, "forked", {**OPTIONS, "checkpoint_steps": 3})
    assert job.wait(300) is not None, job.text
    for trial in range(count):
        place = folder / f"damage{trial}"
        shutil.copytree(folder / "whole" / "outputs" / "checkpoints", place)
        (_, newest), (_, before), *_ = checkpoint_files.numbered(place)
        beside = [
            name for name in checkpoint_files.files_beside(newest) if name[:6] == newest.name[:6]
        ]
        path = draw.choice([newest, *(place / name for name in beside)])
        content = bytearray(path.read_bytes())
        how = ("truncated", "one bit flipped", "zero length", "half-renamed", "a block of zeros")[
            trial % 5
        ]
        at = draw.randrange(len(content))
        if how in ("truncated", "half-renamed"):
            content = content[:at]
        elif how == "one bit flipped":
            content[at] ^= 1 << draw.randrange(8)
        elif how == "zero length":
            content = bytearray()
        else:
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        same = bytes(content) == path.read_bytes()
        path.write_bytes(content)
        if how == "half-renamed":
            (place / ".000099.ckpt").write_bytes(content)
        chosen = checkpoint_files.newest(place)
        good = chosen == (newest if same else before) and reader.read_here(chosen)["callbacks"]
        yield (
            f"{'ok' if good else 'FAILED'} {how} at byte {at} of {path.name}: "
            f"{chosen.name if chosen else None}"
        )
        shutil.rmtree(place)


METRICS = """
import json, os, sys
import pytorch_lightning as pl, torch
import dist
from data import Data
from model import Model

class Stock(pl.LightningModule):  # what most write: the loss of each batch, averaged over batches and ranks
    def __init__(self, model):
        super().__init__()
        self.model = model
    def test_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.model(batch).float(), batch["label"])
        self.log("test/loss", loss, sync_dist=True, batch_size=len(batch["label"]))

found = {}
with dist.session() as cluster:
    for size in json.loads(os.environ["SIZES"]):
        for kind in ("ours", "stock"):
            strategy, devices, num_nodes = dist.get_initialization_info()
            trainer = pl.Trainer(accelerator=cluster.accelerator, strategy=strategy, devices=devices,
                                 num_nodes=num_nodes, logger=False, enable_checkpointing=False,
                                 enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
            data = Data(f"size{size}", batch_size=4, data_dir="data", num_workers=0)
            data.prepare_data() if cluster.rank == 0 else None
            torch.manual_seed(1)
            model = Model()
            if kind == "ours":
                trainer.test(model, datamodule=data, verbose=False)
            else:
                data.prepare_data()
                data.setup()
                model.trainer = type("T", (), {"datamodule": data})
                model.configure_model()
                from data import BatchDataset
                from smlightning.data.batches import Share
                padded, rows = BatchDataset(data.splits["test"], 0), len(data.splits["test"])
                make = lambda many: padded[Share(many, len(many), 1.0)]
                loader = torch.utils.data.DataLoader(range(rows), batch_size=4, collate_fn=make)
                trainer.test(Stock(model), loader, verbose=False)
            found[f"{kind} {size}"] = {k: float(v) for k, v in trainer.callback_metrics.items()}
    if cluster.rank == 0:
        json.dump(found, open(f"metrics{cluster.world_size}.json", "w"))
sys.exit(0)
"""
SIZES = [1, 2, 7, 21, 1000]


def metrics(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Test metrics of 1 to 4 ranks over sets of several sizes; the single process's, and stock
    Lightning's beside.
    """
    draw = random.Random(seed)
    for size in SIZES:
        place = folder / f"size{size}"
        place.mkdir()
        for split, many in (("train", 90), ("validation", size), ("test", size)):
            names = [(name, letters) for name, letters in ALPHABETS.items()]
            rows = [
                ("".join(draw.choices(names[i % 3][1], k=draw.randint(1, 12))), names[i % 3][0])
                for i in range(many)
            ]
            with (place / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("text", "label"), *rows])
    os.environ["SIZES"] = json.dumps(SIZES)
    found = {}
    for ranks in range(1, 5):
        job = Job(folder, ranks, "forked", {}, METRICS)
        done = job.wait(300)
        job.end()
        assert done is not None and (folder / f"metrics{ranks}.json").exists(), job.text[-3000:]
        found[ranks] = json.loads((folder / f"metrics{ranks}.json").read_text())
    for ranks, size in itertools.product(range(1, 5), SIZES):
        alone, mine = found[1][f"ours {size}"], found[ranks][f"ours {size}"]
        gap = max(abs(alone[name] - mine[name]) for name in alone)
        stock = (
            abs(found[ranks][f"stock {size}"]["test/loss"] - alone["test/loss"])
            / alone["test/loss"]
        )
        yield (
            f"{'ok' if gap <= 1e-6 else 'FAILED'} ranks={ranks} samples={size}: largest difference of loss, accuracy, "
            f"macro-F1 from the single process {gap:.1e}; stock Lightning's loss is off by {stock:.2%}"
        )


def _checkpoint_problem(place: Path, told: list[str]) -> str:
    """A run that was stopped at a step has a valid checkpoint of that step."""
    from smlightning.checkpoints import files as checkpoint_files

    steps = [int(line.split(" at step ")[1].split()[0]) for line in told if " at step " in line]
    if not steps or not steps[0]:
        return ""
    directory = place / "outputs" / "checkpoints"
    path = checkpoint_files.newest(directory)
    if path is None or path != checkpoint_files.numbered(directory)[0][1]:
        return "the newest checkpoint is damaged or missing"
    return (
        ""
        if f"-step{steps[0]:06d}-" in path.name
        else f"stopped at step {steps[0]}, but there is {path.name}"
    )


def _temporary(place: Path) -> list[Path]:
    folder = place / "outputs" / "checkpoints"
    return [*folder.glob(".*.ckpt"), *folder.glob(".*.shard")]


def _short(line: str) -> str:
    return line.replace("resume: ", "").rpartition("/")[2]


ROUND = {
    "kills": 3,
    "stops": 4,
    "damage": 10,
    "hangs": 1,
    "ranks": 2,
    "hosts": 1,
    "full": 2,
    "metrics": 1,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="+", metavar="WHAT", help=f"{', '.join(ROUND)}, or kills:3 for three; or all"
    )
    parser.add_argument(
        "--count", type=int, default=10, help="trials of each WHAT without a number of its own"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="of `all`: no more is begun then"
    )
    parser.add_argument("--hang_seconds", type=float, default=60.0)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument(
        "--lora_rank", type=int, default=0, help="of adapters, which then are trained"
    )
    parser.add_argument("--keep", action="store_true", help="leave the runs' folders")
    arguments = parser.parse_args()
    OPTIONS["strategy"] = arguments.strategy
    if arguments.lora_rank:
        OPTIONS.update(lora_rank=arguments.lora_rank, model_name="../bert")
    everything = arguments.what == ["all"]
    plan = (
        [word.partition(":")[::2] for word in arguments.what]
        if not everything
        else [*ROUND.items()]
    )
    for what, count in plan:
        if what not in ROUND or not re.fullmatch("([1-9][0-9]*)?", str(count)):
            parser.error(
                f"{what}:{count}: expected one of {', '.join(ROUND)}, or kills:3 for three; or all alone"
            )
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    warm_up()
    began, failed, total, round_ = time.monotonic(), 0, 0, 0
    while not round_ or (everything and time.monotonic() - began < 60 * arguments.minutes):
        for what, count in plan:
            if round_ and everything and time.monotonic() - began > 60 * arguments.minutes:
                break
            place = folder / f"{what}{round_}"
            place.mkdir()
            write_words(place / "words.csv")
            if arguments.lora_rank:
                from smlightning.testing.checkpoints import write_bert

                # NO_DROPOUT reaches modules of dropout, and not what attention draws itself
                write_bert(
                    place / "bert",
                    "".join(ALPHABETS.values()),
                    attention_probs_dropout_prob=0.0,
                )
            more = {"hang_seconds": arguments.hang_seconds} if what == "hangs" else {}
            good = tried = 0
            for line in globals()[what](
                int(count or arguments.count), arguments.seed + round_, place, **more
            ):
                good, tried = good + (not line.startswith("FAILED")), tried + 1
                print(f"{total + tried:4d} {line}", flush=True)
            print(f"{what}: {good} of {tried} ok", flush=True)
            total, failed = total + tried, failed + tried - good
        round_ += 1
    if failed or arguments.keep:
        print(f"left in {folder}")
    else:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
