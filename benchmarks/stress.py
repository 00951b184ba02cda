"""Stops, kills, damages and hangs real runs of the project at random moments, and counts losses.

    python benchmarks/stress.py kills --count 50    # kill -9, resume, compare weights bit for bit
    python benchmarks/stress.py stops --count 50    # SIGTERM or SIGINT to a rank, or to both
    python benchmarks/stress.py damage --count 40   # damage the newest checkpoint
    python benchmarks/stress.py ranks --count 8     # resume with another number of ranks
    python benchmarks/stress.py full --count 20     # fill the disk; one error, then resume
    python benchmarks/stress.py hangs --count 10    # a rank sleeps or is paused
    python benchmarks/stress.py all --minutes 5     # some of each, in rounds with other seeds

With `--strategy fsdp` runs are sharded (kills, stops, damage, ranks). `--project FOLDER` takes a
generated project (kills, stops, damage, ranks), with the options of its tests/small.py; the Python
that runs this has its packages. Ranks are forked: torch and Lightning are imported once.

Prints a line per trial and a summary; the status is 1 if a trial failed. docs/measurements.md has
the figures.
"""

import importlib
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

import common
from common import ROOT, checkpoint, difference

SRC = next(ROOT.glob("{{*}}/src"))  # the template's own
PATHS = [str(SRC), *map(str, common.ROOT.glob("packages/smlightning*"))]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of the server that forks the ranks
sys.path[:0] = [*PATHS, str(ROOT / "tests")]
import forked  # noqa: E402
from smlightning.checkpoints import files  # noqa: E402
from smlightning_sagemaker.testing.processes import free_port  # noqa: E402

State = dict[str, Any]
OPTIONS: dict[str, Any] = {
    "dataset": "../words.csv",
    "data_dir": "../data",
    "epochs": 4,
    "batch_size": 4,
    "log_every": 10,
    "strategy": "ddp",  # or what --strategy says
}
WORKERS = {"num_workers": 1}  # of the template's loaders, while they are killed
ONE_WORKER = """
import functools
from torch.utils.data import DataLoader
made = DataLoader.__init__
@functools.wraps(made)
def init(self, *args, **given):
    made(self, *args, **{"num_workers": 1, **given})
DataLoader.__init__ = init
"""
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

    first = ""  # what ranks of all jobs execute before it

    def __init__(self, folder: Path, ranks: int, options: State, script: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.started = time.monotonic()
        self.ranks: list[forked.Rank] = []
        code = RUN.format(folder=str(folder), script=self.first + script)
        env = {**os.environ, "DIST_CONNECT_SECONDS": "40", "PYTHONPATH": os.pathsep.join(PATHS)}
        if ranks > 1:
            env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            log = folder / f"log-{time.time_ns()}-{rank}.txt"
            log.touch()
            self.ranks.append(forked.start(code, log, {**env, **own}, *common.words(options)))

    @property
    def text(self) -> str:
        return "".join(rank.log.read_text(errors="replace") for rank in self.ranks)

    def running(self) -> list[int]:
        """Processes of the ranks that have not ended."""
        return [rank.process.pid or 0 for rank in self.ranks if rank.process.exitcode is None]

    def statuses(self) -> list[int]:
        """Statuses as in a shell: 128 + the number of the signal that ended a process."""
        found = [rank.process.exitcode or 0 for rank in self.ranks]
        return [status if status >= 0 else 128 - status for status in found]

    def wait(
        self, seconds: float, for_one: bool = False, then: int = signal.SIGKILL
    ) -> float | None:
        """Seconds until every rank, or one, had ended; None if it took longer.

        Args:
            then: the signal that the others get in that case.
        """
        start = time.monotonic()
        enough = len(self.ranks) - 1 if for_one else 0
        while len(self.running()) > enough:
            if time.monotonic() - start > seconds:
                self.signal(then)
                return None
            time.sleep(0.02)
        return time.monotonic() - start

    def signal(self, number: int) -> None:
        """Send a signal to the ranks that still run."""
        for pid in self.running():
            os.kill(pid, number)

    def complete(self) -> tuple[float, State]:
        """Wait until the run has succeeded; the seconds that it took, and its final state."""
        assert self.wait(300) and set(self.statuses()) == {0}, self.text
        return time.monotonic() - self.started, final_state(self.folder)


def resumed(job: Job, expected: str) -> tuple[State | None, str]:
    """The final state of a resumed run, and its line; None if it failed or began elsewhere.

    Args:
        expected: the name of the checkpoint that it has to resume from, from `newest_name`.
    """
    ended = job.wait(300)
    lines = [line for line in job.text.splitlines() if line.startswith("resume: ")]
    line = lines[0] if lines else "resume: from the start"
    good = ended is not None and set(job.statuses()) == {0} and expected in line
    return final_state(job.folder) if good else None, line.rpartition("/")[2]


def final_state(folder: Path) -> State:
    """The last checkpoint's weights, best weights, score, optimizer, schedule and position."""
    state = checkpoint(folder / "outputs")
    return {
        "weights": state["state_dict"],
        "best": state["best_weights"],
        "score": state["callbacks"]["Checkpoints"]["best"]["score"],
        "optimizer": state["optimizer_states"],
        "schedule": state["lr_schedulers"],
        "position": state["position"],
    }


def checkpoints(place: Path) -> Path:
    return place / "outputs" / "checkpoints"


def newest_name(place: Path) -> str:
    """Name of the newest whole checkpoint, from which the next run resumes; "" if there is none."""
    path = newest_whole(checkpoints(place))
    return path.name if path else ""


def newest_whole(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder; None if it has none."""
    paths = [path for _, path in files.numbered(folder)]
    return files.newest_verified(paths)[0] if paths else None


def verdict(good: object) -> str:
    return "ok" if good else "FAILED"


def kills(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Kill a rank at any moment or in a write, resume, compare with an undisturbed run."""
    rng = random.Random(seed)
    is_sharded = OPTIONS["strategy"] == "fsdp"
    sizes = (2, 4) if is_sharded else (1, 2, 4)
    whole: dict[int, tuple[float, State]] = {}
    trial = 0
    while trial < count:
        n, in_write = sizes[(trial + seed) % len(sizes)], rng.random() < 0.4
        options = {**OPTIONS, "checkpoint_steps": 3, **WORKERS, "batch_size": 16 // n}
        if n not in whole:
            whole[n] = Job(folder / f"whole{n}", n, options).complete()
        seconds, state = whole[n]
        place = folder / f"kill{trial}"
        shutil.rmtree(place, ignore_errors=True)
        job = Job(place, n, options)
        rank = 0 if in_write and not is_sharded else rng.randrange(n)
        if in_write:
            wait_for_write(place, rng.randint(1, 20))
        else:
            time.sleep(rng.uniform(0.2, 0.9 * seconds))
        if job.ranks[rank].process.exitcode is not None:
            job.wait(300)
            continue  # the run was complete before its kill, which makes no trial
        job.ranks[rank].process.kill()
        trial += 1
        # Before the first connection between ranks, only the launcher sees that one was killed.
        ended = job.wait(50, then=signal.SIGTERM)
        if ended is None and (more := job.wait(10)) is not None:
            ended = 50 + more
        where = "in a write" if temporary(place) else "anywhere"
        end, line = resumed(Job(place, n, options), newest_name(place))
        gap = difference(state, end) if end else float("nan")
        yield (
            f"{verdict(ended is not None and gap == 0.0)} ranks={n} killed=rank{rank} {where} "
            f"others_ended={ended and round(ended, 1)}s {line} difference={gap:g}"
        )


def temporary(place: Path) -> list[Path]:
    """Files of a checkpoint that is being written."""
    return [*checkpoints(place).glob(".*.ckpt"), *checkpoints(place).glob(".*.shard")]


def wait_for_write(place: Path, number: int) -> None:
    """Wait until the run is in its write of this number, for a minute at most."""
    until = time.monotonic() + 60
    was_in_write = False
    while number and time.monotonic() < until:
        in_write = bool(temporary(place))
        number -= in_write and not was_in_write
        was_in_write = in_write
        time.sleep(0.0002)


def stops(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Signal one or both of two ranks, at any moment from the start to the last line.

    The ranks end in 10 s with status 143 and a checkpoint of their step.
    """
    rng = random.Random(seed)
    options = {**OPTIONS, "batch_size": 8, "epochs": 12}
    seconds, _ = Job(folder / "whole", 2, options).complete()
    trial = 0
    while trial < count:
        place = folder / f"stop{trial}"
        shutil.rmtree(place, ignore_errors=True)
        targets = rng.choice([(0,), (1,), (0, 1)])
        number = rng.choice([signal.SIGTERM, signal.SIGINT])
        job = Job(place, 2, options)
        moment = job.started + rng.uniform(0.0, seconds)
        while job.running() and not (time.monotonic() > moment and all(map(listens, job.ranks))):
            time.sleep(0.005)
        before = job.text
        if not job.running() or re.search(r"^step=\S+ epoch=\S+ \S*test", before, re.M):
            job.wait(300)
            seconds = time.monotonic() - job.started  # a better measure of its length
            continue
        trial += 1
        for target in targets:
            if job.ranks[target].process.exitcode is None:
                os.kill(job.ranks[target].process.pid or 0, number)
        start = time.monotonic()
        job.wait(40, for_one=True)
        job.signal(signal.SIGTERM)  # as torchrun's agent does
        is_late = job.wait(10) is None or time.monotonic() - start > 10
        told = [line for line in job.text.splitlines() if line.startswith(("stopped by", "ended"))]
        phase = "training" if "global_batch=" in before else "start"
        if re.search(r"epoch=12 \S*val", before):
            phase = "test and saving"
        problem = "took too long" if is_late else stop_problem(job, targets, phase, told)
        yield (
            f"{f'FAILED {problem}:' if problem else 'ok'} {number.name} to ranks {targets} during "
            f"{phase}: ended in {time.monotonic() - start:.1f} s, ranks {job.statuses()}; "
            f"{(told or ['-'])[0]}"
        )
        if not problem:
            shutil.rmtree(place)


def listens(rank: forked.Rank) -> bool:
    """Whether the rank has a handler for SIGTERM, or has ended: before, Python itself answers."""
    try:
        status = Path(f"/proc/{rank.process.pid}/status").read_text()
    except OSError:
        return True
    caught = re.search(r"^SigCgt:\s*(\w+)", status, re.M)
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def stop_problem(job: Job, targets: tuple[int, ...], phase: str, told: list[str]) -> str:
    """The problem of a stopped run: its statuses, lines and checkpoint; "" for none."""
    statuses = job.statuses()
    # Before training the store may end with rank 0, and the other rank then fails.
    judged = [statuses[rank] for rank in targets] if phase == "start" else statuses
    if set(judged) != {143}:
        return "a status is not 143"
    if not told:
        return "no line says how to resume"
    steps = [int(step) for step in re.findall(r" at step (\d+)", "\n".join(told))]
    if phase == "training" and not steps:
        return "it ended before it could save"
    if not steps or not steps[0]:
        return ""
    numbered = files.numbered(checkpoints(job.folder))
    name = newest_name(job.folder)
    if not name or name != numbered[0][1].name:
        return "the newest checkpoint is damaged or missing"
    is_last = f"-step{steps[0]:06d}-" in name
    return "" if is_last else f"stopped at step {steps[0]}, but there is {name}"


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
        n, is_paused = rng.choice([2, 3]), (trial + seed) % 2 == 1
        victim = rng.randrange(n)
        options = {**OPTIONS, "epochs": 400, "hang_seconds": hang_seconds}
        job = Job(folder / f"hang{trial}", n, options, "" if is_paused else HANG % victim)
        while len(job.running()) == n and job.text.count("step=") < 3:
            time.sleep(0.1)
        process = job.ranks[victim].process
        if is_paused:
            os.kill(process.pid or 0, signal.SIGSTOP)
        start, seconds, line = time.monotonic(), float("inf"), ""
        while time.monotonic() - start < 2 * hang_seconds and not line:
            found = re.search(rf"^error: no progress.* rank {victim} on host.*", job.text, re.M)
            if found:
                seconds, line = time.monotonic() - start, found[0]
            time.sleep(0.1)
        time.sleep(1)
        if is_paused:
            os.kill(process.pid or 0, signal.SIGCONT)
        ended = job.wait(2 * hang_seconds)
        statuses, stacks = job.statuses(), job.text.count("stacks of rank")
        expected = "does not answer" if is_paused else r"was in .*\bhang\b"
        good = re.search(rf"rank {victim} on host localhost {expected}", line)
        # The sentence tells where a rank is, not how it began. Ranks wait for each other's lines.
        good = good and not re.search(r"(train|signals)\.py", line)
        good = good and seconds <= hang_seconds + 15
        good = good and ended is not None and all(statuses) and stacks >= n - is_paused
        yield (
            f"{verdict(good)} rank {victim} of {n} {'was paused' if is_paused else 'slept'}: "
            f"reported after {seconds:.1f} s, statuses {statuses}, {stacks} stacks; {line}"
        )


NO_DROPOUT = """
import torch
torch.nn.Dropout.forward = lambda self, x: x  # it differs between ranks
"""


def ranks(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Kill a run of 2 ranks, resume with 1 or 4, or accumulating: equal but for rounding."""
    rng = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3, "batch_size": 8}
    seconds, whole = Job(folder / "whole2", 2, options, NO_DROPOUT).complete()
    place_of = itemgetter("step", "epoch", "batch", "complete")  # the rest counts a rank's batches
    for trial in range(count):
        place = folder / f"ranks{trial}"
        job = Job(place, 2, options, NO_DROPOUT)
        time.sleep(rng.uniform(0.3, 0.7) * seconds)
        job.ranks[trial % 2].process.kill()
        job.wait(60)
        n, batch, accumulate = ((1, 16, 1), (4, 4, 1), (1, 8, 2), (4, 2, 2))[(trial + seed) % 4]
        divided = {**options, "batch_size": batch, "accumulate_grad_batches": accumulate}
        expected = newest_name(place)
        end, line = resumed(Job(place, n, divided, NO_DROPOUT), expected)
        good, gap = False, float("nan")
        if end:
            gap = difference(whole["weights"], end["weights"])
            good = gap < 1e-4 and place_of(end["position"]) == place_of(whole["position"])
        yield (
            f"{verdict(good)} 2 ranks, then {n} accumulating {accumulate}: {line}; largest "
            f"difference of a weight {gap:.1e}"
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
    rng = random.Random(seed)
    options = {**OPTIONS, "checkpoint_steps": 3}
    _, whole = Job(folder / "whole", 1, options).complete()
    size = (checkpoints(folder / "whole") / newest_name(folder / "whole")).stat().st_size
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    for trial in range(count):
        place = folder / f"full{trial}"
        place.mkdir()
        disk = ("outputs", "curves")[(trial + seed) % 2]  # curves: log, pictures and TensorBoard
        space = rng.randint(1, 60) * 2**10
        if disk == "outputs":
            space = int(size * rng.uniform(0.0, 3.9))
        line = ["unshare", "--mount", "--propagation", "private", "sh", "-c", FULL, "sh"]
        line += [disk, str(space), sys.executable, f"{PATHS[0]}/train.py", *common.words(options)]
        subprocess.run(line, cwd=place, env=environment, check=True, timeout=600)
        said = (place / "first.txt").read_text()
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        statuses = [(place / f"{name}.status").read_text().strip() for name in ("first", "second")]
        good = statuses == ["1", "0"] and len(errors) == 1
        if disk == "curves":  # pictures may be missing: a warning, and the model is there
            good = good or (statuses == ["0", "0"] and "warning: " in said)
        left = files.numbered(place / "first" / "checkpoints")
        for _, path in left:
            files.verified(path)
        gap = difference(whole, final_state(place)) if statuses[1] == "0" else float("nan")
        good = good and "Traceback" not in said and gap == 0.0
        yield (
            f"{verdict(good)} {disk} on {space / size:.2f} times a checkpoint: statuses "
            f"{statuses}, {len(left)} whole checkpoints left, then difference={gap:g}; "
            f"{(errors or ['-'])[0]}"
        )


def damage(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Damage the newest checkpoint of a real run in several ways: the one before is read."""
    rng = random.Random(seed)
    n = 2 if OPTIONS["strategy"] == "fsdp" else 1
    Job(folder / "whole", n, {**OPTIONS, "checkpoint_steps": 3}).complete()
    ways = ("truncated", "one bit flipped", "zero length", "half-renamed", "a block of zeros")
    for trial in range(count):
        place = folder / f"damage{trial}"
        shutil.copytree(checkpoints(folder / "whole"), place)
        (_, newest), (_, before), *_ = files.numbered(place)
        others = files.companions(newest)
        path = rng.choice(
            [newest, *(place / name for name in others if name[:6] == newest.name[:6])]
        )
        whole = path.read_bytes()
        content = bytearray(whole)
        how = ways[trial % len(ways)]
        at = 0 if how == "zero length" else rng.randrange(len(content))
        if how == "one bit flipped":
            content[at] ^= 1 << rng.randrange(8)
        elif how == "a block of zeros":
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        else:
            del content[at:]
        path.write_bytes(content)
        if how == "half-renamed":
            (place / ".000099.ckpt").write_bytes(content)
        chosen = newest_whole(place)
        expected = newest if content == whole else before
        good = chosen == expected and files.read(chosen)["callbacks"]
        name = chosen.name if chosen else None
        yield f"{verdict(good)} {how} at byte {at} of {path.name}: {name}"
        shutil.rmtree(place)


# With the number of trials of each kind in a round of `all`.
KINDS: dict[str, tuple[Callable[..., Iterator[str]], int]] = {
    "kills": (kills, 3),
    "stops": (stops, 2),
    "damage": (damage, 10),
    "hangs": (hangs, 1),
    "ranks": (ranks, 2),
    "full": (full, 2),
}


def use(project: Path, folder: Path) -> None:
    """Take a project's train.py and its small options in place of the template's.

    Its loaders have one worker, as the template's have while they are killed.
    """
    sys.path.remove(PATHS[0])
    PATHS[0] = str(project.resolve() / "src")
    sys.path[:0] = [PATHS[0], str(project.resolve() / "tests")]
    small = importlib.import_module("small").options(folder)
    strategy = OPTIONS["strategy"]
    OPTIONS.clear()
    OPTIONS.update(small, epochs=12, strategy=strategy)
    WORKERS.clear()
    Job.first = ONE_WORKER


def main() -> int:
    parser = common.parser_of(__doc__)
    what = f"{', '.join(KINDS)}, or kills:3 for three; or all"
    parser.add_argument("what", nargs="+", metavar="WHAT", help=what)
    parser.add_argument("--count", type=int, default=10, help="trials of each WHAT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0, help="time after which `all` ends")
    parser.add_argument("--hang_seconds", type=float, default=60.0)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--project", type=Path, help="a generated project, to take its train.py")
    parser.add_argument("--keep", action="store_true", help="keep the runs' folders")
    arguments = parser.parse_args()
    OPTIONS["strategy"] = arguments.strategy
    is_all = arguments.what == ["all"]
    plan = {kind: count for kind, (_, count) in KINDS.items()} if is_all else {}
    for word in [] if is_all else arguments.what:
        kind, _, count = word.partition(":")
        if kind not in KINDS or not re.fullmatch("([1-9][0-9]*)?", count):
            parser.error(f"{word}: expected one of {what}")
        plan[kind] = int(count or arguments.count)
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    if arguments.project:
        use(arguments.project, folder)
    until, failed, total, number = time.monotonic() + 60 * arguments.minutes, 0, 0, 0
    while not number or (is_all and time.monotonic() < until):
        for kind, count in plan.items():
            if number and time.monotonic() > until:
                break
            place = folder / f"{kind}{number}"
            place.mkdir()
            common.write_words(place / "words.csv", 120, 12, right=0.75)
            more = {"hang_seconds": arguments.hang_seconds} if kind == "hangs" else {}
            good = tried = 0
            for line in KINDS[kind][0](count, arguments.seed + number, place, **more):
                good, tried = good + (not line.startswith("FAILED")), tried + 1
                print(f"{total + tried:4d} {line}", flush=True)
            print(f"{kind}: {good} of {tried} ok", flush=True)
            total, failed = total + tried, failed + tried - good
        number += 1
    if failed or arguments.keep:
        print(f"left in {folder}")
    else:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
