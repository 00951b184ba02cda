"""Stops, kills, damages and hangs real runs of the project at random moments, and counts losses.

    python benchmarks/stress.py kills --count 50    # kill -9, resume, compare weights bit for bit
    python benchmarks/stress.py stops --count 50    # SIGTERM or SIGINT to a rank, or to both
    python benchmarks/stress.py damage --count 40   # damage the newest checkpoint
    python benchmarks/stress.py ranks --count 8     # resume with another number of ranks
    python benchmarks/stress.py full --count 20     # fill the disk; one error, then resume
    python benchmarks/stress.py hangs --count 10    # a rank sleeps or is paused
    python benchmarks/stress.py all --minutes 5     # some of each, in rounds with other seeds

With `--strategy fsdp` runs are sharded (kills, stops, damage, ranks), with `--lora_rank 4` they
train adapters of a small BERT. Ranks are forked: torch and Lightning are imported once.

Prints a line per trial and a summary; the status is 1 if a trial failed. docs/evidence.md has
the figures.
"""

import argparse
import csv
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SRC = next(ROOT.glob("{{*}}/src"))  # the template's own
PATHS = [str(SRC), str(SRC.parent / "vendor" / "smlightning")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of the server that forks the ranks
sys.path[:0] = [*PATHS, str(ROOT / "tests")]
import forked  # noqa: E402
from smlightning.testing.processes import free_port  # noqa: E402

ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}


def write_words(path: Path, each: int = 120) -> None:
    """Random words in three alphabets; every fourth has a wrong label, so that training never
    comes to rest.
    """
    rng = random.Random(0)
    rows = [
        (
            "".join(rng.choices(letters, k=rng.randint(1, 12))),
            name if rng.random() < 0.75 else "latin",
        )
        for name, letters in ALPHABETS.items()
        for _ in range(each)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


RUN = """
import os, sys
os.chdir({folder!r})
import train
from smlightning import entry
{script}
sys.exit(entry.main(train.train, train.Options, None))
"""


class Job:
    """A run of train.py on this machine, in forked processes.

    Args:
        script: Python code that each rank executes first.
    """

    def __init__(
        self, folder: Path, ranks: int, options: dict[str, object], script: str = ""
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.started = time.monotonic()
        self.ranks: list[forked.Rank] = []
        code = RUN.format(folder=str(folder), script=script)
        arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        env = {**os.environ, "DIST_MEET_SECONDS": "40"}
        env["PYTHONPATH"] = os.pathsep.join(PATHS)
        if ranks > 1:
            env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            log = folder / f"log-{time.time_ns()}-{rank}.txt"
            log.touch()
            self.ranks.append(forked.start(code, log, {**env, **own}, *arguments))

    @property
    def pids(self) -> list[int]:
        return [rank.process.pid or 0 for rank in self.ranks]

    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank.process.pid or 0 for rank in self.ranks if rank.process.exitcode is None]

    def rank_statuses(self) -> list[int]:
        """Statuses as in a shell: 128 + the number of the signal that ended a process."""
        found = [rank.process.exitcode or 0 for rank in self.ranks]
        return [status if status >= 0 else 128 - status for status in found]

    def wait(self, seconds: float) -> float | None:
        """Seconds until every rank had ended; None if some had not."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if not self.running():
                return time.monotonic() - start
            time.sleep(0.02)
        return None

    def wait_as_launcher(self, seconds: float) -> float | None:
        """`wait`, and signal the other ranks once one has ended, as torchrun's agent does."""
        start = time.monotonic()
        while len(self.running()) == len(self.ranks) and time.monotonic() - start < seconds:
            time.sleep(0.1)
        self.signal(signal.SIGTERM)
        rest = self.wait(seconds - (time.monotonic() - start))
        return None if rest is None else time.monotonic() - start

    def signal(self, number: int) -> None:
        """Send a signal to the ranks that still run."""
        for pid in self.running():
            os.kill(pid, number)

    def complete(self) -> float:
        """Wait until the run has succeeded; the seconds that it took."""
        assert self.wait(300) and set(self.rank_statuses()) == {0}, self.text
        return time.monotonic() - self.started

    def resume(self) -> tuple[bool, str]:
        """Wait for a resumed run: whether it succeeded, and its `resume:` line."""
        ended = self.wait(300)
        if ended is None:
            print(f"not ended: {self.folder}", file=sys.stderr, flush=True)
        succeeded = ended is not None and set(self.rank_statuses()) == {0}
        lines = [line for line in self.text.splitlines() if line.startswith("resume: ")]
        self.end()
        return succeeded, lines[0] if lines else "resume: from the start"

    def end(self) -> None:
        """Kill the ranks that still run."""
        self.signal(signal.SIGKILL)
        self.wait(10)

    @property
    def text(self) -> str:
        return "".join(rank.log.read_text(errors="replace") for rank in self.ranks)


def _listens(pid: int) -> bool:
    """Whether the rank has a handler for SIGTERM, or has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def final_state(folder: Path) -> dict:
    """The last checkpoint's weights, best weights, score, optimizer, schedule and position."""
    from smlightning.checkpoints import files as checkpoint_files

    state = checkpoint_files.read(checkpoint_files.newest(folder / "outputs" / "checkpoints"))
    mine = state["callbacks"]["Checkpoints"]
    return {
        "weights": state["state_dict"],
        "best": state["best_weights"],
        "score": mine["best"]["score"],
        "optimizer": state["optimizer_states"],
        "schedule": state["lr_schedulers"],
        "position": state["position"],
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


def _newest_name(place: Path) -> str:
    """Name of the newest whole checkpoint, from which the next run resumes; "" if there is none."""
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


def kills(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Kill a rank at any moment or in a write, resume, compare with an undisturbed run."""
    rng = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3, "num_workers": 1}
    sharded = options["strategy"] == "fsdp"
    sizes = (2, 4) if sharded else (1, 2, 4)
    whole, seconds = {}, {}
    trial = 0
    while trial < count:
        n, writing = sizes[(trial + seed) % len(sizes)], rng.random() < 0.4
        options |= {"batch_size": 16 // n}
        if n not in whole:
            job = Job(folder / f"whole{n}", n, options)
            seconds[n], whole[n] = job.complete(), final_state(job.folder)
        place = folder / f"kill{trial}"
        shutil.rmtree(place, ignore_errors=True)
        job = Job(place, n, options)
        victim = 0 if writing and not sharded else rng.randrange(n)
        if writing:
            wait_for_write(place, rng.randint(1, 20))
        else:
            time.sleep(rng.uniform(0.2, 0.9 * seconds[n]))
        if job.pids[victim] not in job.running():
            job.end()
            continue  # the run was complete before its kill, which makes no trial
        job.ranks[victim].process.kill()
        trial += 1
        ended = job.wait(60)
        left = len(_temporary(place))
        job.end()
        expected = _newest_name(place)
        again = Job(place, n, options)
        succeeded, resumed = again.resume()
        gap = difference(whole[n], final_state(place)) if succeeded else float("nan")
        good = ended is not None and gap == 0.0 and expected in resumed
        yield (
            f"{'ok' if good else 'FAILED'} ranks={n} killed=rank{victim} "
            f"{'in a write' if left else 'anywhere'} others_ended={ended and round(ended, 1)}s "
            f"{_short(resumed)} difference={gap:g}"
        )


def wait_for_write(place: Path, number: int) -> None:
    """Wait until the run is in its write of this number, for a minute at most."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if _temporary(place):
            number -= 1
            if not number:
                return
            while _temporary(place) and time.monotonic() < until:
                time.sleep(0.0002)
        time.sleep(0.0002)


def stops(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Signal one or both of two ranks, at any moment from the start to the last line.

    The ranks end in 10 s with status 143 and a checkpoint of their step.
    """
    rng = random.Random(seed)
    options = {**OPTIONS, "batch_size": 8, "epochs": 12}
    seconds = Job(folder / "whole", 2, options).complete()
    trial = 0
    while trial < count:
        place = folder / f"stop{trial}"
        shutil.rmtree(place, ignore_errors=True)
        target = rng.choice([(0,), (1,), (0, 1)])
        number = rng.choice([signal.SIGTERM, signal.SIGINT])
        job = Job(place, 2, options)
        moment = job.started + rng.uniform(0.0, seconds)
        while time.monotonic() < moment and job.running():
            time.sleep(0.005)
        while job.running() and not all(map(_listens, job.pids)):
            time.sleep(0.01)  # until then Python itself answers a signal
        before = job.text
        if not job.running() or "test/accuracy" in before:
            seconds = time.monotonic() - job.started
            job.end()  # complete before the signal: only a better measure of its length
            continue
        trial += 1
        for rank in target:
            if job.pids[rank] in job.running():
                os.kill(job.pids[rank], number)
        ended = job.wait_as_launcher(40)
        job.end()
        lines = job.text.splitlines()
        told = [line for line in lines if line.startswith(("stopped by", "ended by"))]
        phase = "training" if "global_batch=" in before else "start"
        if "epoch=12 val" in before:
            phase = "test and saving"
        statuses = job.rank_statuses()
        if ended is None or ended > 10:
            problem = "took too long"
        # Before training the store may end with rank 0, and the other rank then fails.
        elif {statuses[rank] for rank in target} != {143} or (
            phase != "start" and set(statuses) != {143}
        ):
            problem = "a status is not 143"
        elif not told:
            problem = "no line says how to resume"
        elif phase == "training" and not any(" at step " in line for line in told):
            problem = "it ended before it could save"
        else:
            problem = _checkpoint_problem(place, told)
        yield (
            f"{'FAILED ' + problem if problem else 'ok'} {number.name} to ranks {target} during "
            f"{phase}: ended in {ended and round(ended, 1)} s, ranks {statuses}; "
            f"{(told or ['-'])[0]}"
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
    """Let a rank sleep in its data, or pause its process: the others report it and end."""
    rng = random.Random(seed)
    for trial in range(count):
        ranks, paused = rng.choice([2, 3]), (trial + seed) % 2 == 1
        victim = rng.randrange(ranks)
        options = {**OPTIONS, "epochs": 400, "batch_size": 4, "hang_seconds": hang_seconds}
        script = "" if paused else HANG % victim
        job = Job(folder / f"hang{trial}", ranks, options, script)
        while "epoch=2" not in job.text and job.pids[0] in job.running():
            if not paused and job.text.count("step=") >= 3:
                break
            time.sleep(0.1)
        if paused:
            os.kill(job.pids[victim], signal.SIGSTOP)
        start, seconds, sentence = time.monotonic(), float("inf"), ""
        while time.monotonic() - start < 2 * hang_seconds and not sentence:
            for line in job.text.splitlines():
                if line.startswith(f"error: rank {victim} on host localhost"):
                    seconds, sentence = time.monotonic() - start, sentence or line
            time.sleep(0.1)
        time.sleep(1)
        if paused:
            os.kill(job.pids[victim], signal.SIGCONT)
        ended = job.wait(2 * hang_seconds)
        job.end()
        statuses, stacks = job.rank_statuses(), job.text.count("stacks of rank")
        # The sentence tells where the rank is, not how it began.
        telling = sentence and not re.search(r"(train|signals)\.py", sentence)
        good = telling and seconds <= hang_seconds and ended is not None
        good = good and all(statuses) and stacks >= ranks - paused
        yield (
            f"{'ok' if good else 'FAILED'} rank {victim} of {ranks} "
            f"{'was paused' if paused else 'slept'}: reported after {seconds:.1f} s, "
            f"statuses {statuses}, {stacks} stacks; {sentence}"
        )


NO_DROPOUT = """
import torch
torch.nn.Dropout.forward = lambda self, x: x  # it differs between ranks
"""


def places(state: dict) -> tuple:
    """The place of training; the rest of a position counts the batches of a rank."""
    return itemgetter("step", "epoch", "batch", "complete")(state["position"])


def ranks(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Kill a run of 2 ranks, resume with 1 or 4, or accumulating: equal but for rounding."""
    rng = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3}
    job = Job(folder / "whole2", 2, {**options, "batch_size": 8}, NO_DROPOUT)
    seconds, whole = job.complete(), final_state(job.folder)
    for trial in range(count):
        place = folder / f"ranks{trial}"
        job = Job(place, 2, {**options, "batch_size": 8}, NO_DROPOUT)
        time.sleep(rng.uniform(0.3, 0.7) * seconds)
        job.ranks[trial % 2].process.kill()
        job.wait(60)
        job.end()
        expected = _newest_name(place)
        many, batch, accumulate = ((1, 16, 1), (4, 4, 1), (1, 8, 2), (4, 2, 2))[(trial + seed) % 4]
        divided = {"batch_size": batch, "accumulate_grad_batches": accumulate}
        again = Job(place, many, {**options, **divided}, NO_DROPOUT)
        good, resumed = again.resume()
        gap = best = float("nan")
        if good:
            state = final_state(place)
            gap = difference(whole["weights"], state["weights"])
            best = difference(whole["score"], state["score"])
            good = gap < 1e-4 and places(state) == places(whole) and expected in resumed
            resumed += f", ended at {state['position']}"
        yield (
            f"{'ok' if good else 'FAILED'} 2 ranks, then {many} accumulating {accumulate}: "
            f"{_short(resumed)}; largest difference of a weight {gap:.1e}, of the best "
            f"validation accuracy {best:.1e}"
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
    """Fill the disk in the middle of a run: one error, good checkpoints stay, it resumes there."""
    from smlightning.checkpoints import files as checkpoint_files

    rng = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3}
    job = Job(folder / "whole", 1, options)
    job.complete()
    whole = final_state(job.folder)
    size = checkpoint_files.newest(folder / "whole" / "outputs" / "checkpoints").stat().st_size
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    for trial in range(count):
        place = folder / f"full{trial}"
        place.mkdir()
        disk = ("outputs", "curves")[(trial + seed) % 2]  # curves: log, pictures and TensorBoard
        space = rng.randint(1, 60) * 2**10
        if disk == "outputs":
            space = int(size * rng.uniform(0.0, 3.9))
        line = ["unshare", "--mount", "--propagation", "private", "sh", "-c", FULL, "sh"]
        line += [disk, str(space), sys.executable, str(SRC / "train.py"), *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
        subprocess.run(line, cwd=place, env=environment, check=True, timeout=600)
        said = (place / "first.txt").read_text()
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        statuses = [(place / f"{name}.status").read_text().strip() for name in ("first", "second")]
        left = checkpoint_files.numbered(place / "first" / "checkpoints")
        told = statuses == ["1", "0"] and len(errors) == 1
        if disk == "curves":  # pictures may be missing: a warning, and the model is there
            told = told or (statuses == ["0", "0"] and "warning: " in said)
        good = told and "Traceback" not in said
        for _, path in left:
            checkpoint_files.verify(path)
        gap = difference(whole, final_state(place)) if statuses[1] == "0" else float("nan")
        yield (
            f"{'ok' if good and gap == 0.0 else 'FAILED'} {disk} on {space / size:.2f} times a "
            f"checkpoint: statuses {statuses}, {len(left)} whole checkpoints left, then "
            f"difference={gap:g}; {(errors or ['-'])[0]}"
        )


def damage(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Damage the newest checkpoint of a real run in several ways: the one before is read."""
    from smlightning.checkpoints import files as checkpoint_files

    rng = random.Random(seed)
    ranks = 2 if OPTIONS["strategy"] == "fsdp" else 1
    Job(folder / "whole", ranks, {**OPTIONS, "checkpoint_steps": 3}).complete()
    ways = ("truncated", "one bit flipped", "zero length", "half-renamed", "a block of zeros")
    for trial in range(count):
        place = folder / f"damage{trial}"
        shutil.copytree(folder / "whole" / "outputs" / "checkpoints", place)
        (_, newest), (_, before), *_ = checkpoint_files.numbered(place)
        others = checkpoint_files.companions(newest)
        shards = [place / name for name in others if name[:6] == newest.name[:6]]
        path = rng.choice([newest, *shards])
        content = bytearray(path.read_bytes())
        how = ways[trial % len(ways)]
        at = rng.randrange(len(content))
        if how in ("truncated", "half-renamed"):
            content = content[:at]
        elif how == "one bit flipped":
            content[at] ^= 1 << rng.randrange(8)
        elif how == "zero length":
            content = bytearray()
        else:
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        same = bytes(content) == path.read_bytes()
        path.write_bytes(content)
        if how == "half-renamed":
            (place / ".000099.ckpt").write_bytes(content)
        chosen = checkpoint_files.newest(place)
        good = chosen == (newest if same else before) and checkpoint_files.read(chosen)["callbacks"]
        name = chosen.name if chosen else None
        yield f"{'ok' if good else 'FAILED'} {how} at byte {at} of {path.name}: {name}"
        shutil.rmtree(place)


def _checkpoint_problem(place: Path, told: list[str]) -> str:
    """The problem of a run that stopped at a step without a valid checkpoint of it; "" for none."""
    from smlightning.checkpoints import files as checkpoint_files

    steps = [int(line.split(" at step ")[1].split()[0]) for line in told if " at step " in line]
    if not steps or not steps[0]:
        return ""
    directory = place / "outputs" / "checkpoints"
    path = checkpoint_files.newest(directory)
    if path is None or path != checkpoint_files.numbered(directory)[0][1]:
        return "the newest checkpoint is damaged or missing"
    is_last = f"-step{steps[0]:06d}-" in path.name
    return "" if is_last else f"stopped at step {steps[0]}, but there is {path.name}"


def _temporary(place: Path) -> list[Path]:
    folder = place / "outputs" / "checkpoints"
    return [*folder.glob(".*.ckpt"), *folder.glob(".*.shard")]


def _short(line: str) -> str:
    return line.replace("resume: ", "").rpartition("/")[2]


# Trials of each kind in a round of `all`.
ROUND = {"kills": 3, "stops": 2, "damage": 10, "hangs": 1, "ranks": 2, "full": 2}
KINDS: dict[str, Callable[..., Iterator[str]]] = {
    "kills": kills,
    "stops": stops,
    "damage": damage,
    "hangs": hangs,
    "ranks": ranks,
    "full": full,
}


def command_line() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    what = f"{', '.join(ROUND)}, or kills:3 for three; or all"
    parser.add_argument("what", nargs="+", metavar="WHAT", help=what)
    parser.add_argument("--count", type=int, default=10, help="trials of each WHAT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0, help="time after which `all` ends")
    parser.add_argument("--hang_seconds", type=float, default=60.0)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--lora_rank", type=int, default=0, help="rank of trained adapters")
    parser.add_argument("--keep", action="store_true", help="keep the runs' folders")
    return parser


def main() -> int:
    parser = command_line()
    arguments = parser.parse_args()
    OPTIONS["strategy"] = arguments.strategy
    if arguments.lora_rank:
        OPTIONS.update(lora_rank=arguments.lora_rank, model_name="../bert")
    everything = arguments.what == ["all"]
    plan = {word.partition(":")[0]: word.partition(":")[2] for word in arguments.what}
    for what, count in {} if everything else plan.items():
        if what not in ROUND or not re.fullmatch("([1-9][0-9]*)?", count):
            parser.error(f"{what}:{count}: expected one of {', '.join(ROUND)}, or kills:3, or all")
    if everything:
        plan = {what: str(count) for what, count in ROUND.items()}
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    began, failed, total, round_ = time.monotonic(), 0, 0, 0
    while not round_ or (everything and time.monotonic() - began < 60 * arguments.minutes):
        for what, count in plan.items():
            if round_ and time.monotonic() - began > 60 * arguments.minutes:
                break
            place = folder / f"{what}{round_}"
            place.mkdir()
            write_words(place / "words.csv")
            if arguments.lora_rank:
                from smlightning.testing.checkpoints import write_bert

                # NO_DROPOUT reaches modules of dropout, not the dropout inside attention.
                letters = "".join(ALPHABETS.values())
                write_bert(place / "bert", letters, attention_probs_dropout_prob=0.0)
            more = {"hang_seconds": arguments.hang_seconds} if what == "hangs" else {}
            good = tried = 0
            trials = int(count or arguments.count)
            for line in KINDS[what](trials, arguments.seed + round_, place, **more):
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
