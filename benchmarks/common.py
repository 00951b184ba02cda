"""Tools of the benchmarks: generated projects, runs of train.py, turns, ratios with intervals.

On a shared machine the same training takes twice as long from one second to the next. Trainings
that are compared therefore run at the same time, each in its own processes, and take turns: a few
steps of one while the others wait, each time in another order.
"""

import argparse
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WATCH = str(HERE / "watch.py")
TURN = 5  # steps
STRETCH = 10  # turns that the bootstrap keeps together, so that each has the rarer work
REDRAWN = 1000
ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}
LETTERS = "".join(ALPHABETS.values())

Facts = dict[str, float]
Interval = tuple[float, float, float]  # value, lowest, highest


def generate(folder: Path, checkout: Path = ROOT) -> Path:
    """Generate a project with default answers from a checkout of the template."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cookiecutter", str(checkout), "--no-input"]
    command += ["--output-dir", str(folder), "project_slug=project"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    packages = folder / "packages"
    if not packages.exists():
        packages.symlink_to(checkout / "packages")
    return folder / "project"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        yield Path(name)


def parser_of(description: str | None, compares: bool = False) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks, or of all that compare with another checkout."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form)
    parser.add_argument(
        "--small", action="store_true", help="take a few seconds, to see whether it runs"
    )
    parser.add_argument("--json", type=Path, help="write the measurements")
    if compares:
        parser.add_argument("--against", type=Path, help="a checkout to compare with")
        parser.add_argument("--rounds", type=int, default=6)
    return parser


def projects(folder: Path, against: Path | None) -> dict[str, Path]:
    """A project of this checkout, and one of the checkout to compare with, if there is one."""
    found = {"train.py": generate(folder)}
    if against:
        found["before"] = generate(folder / "before", against.resolve())
    return found


def write_words(path: Path, each: int, longest: int, right: float) -> None:
    """Random words in three alphabets; some have a wrong label, so training never comes to rest.

    Args:
        each: words of each alphabet.
        right: the probability that a word has its own label.
    """
    rng = random.Random(0)
    lines = ["text,label"]
    for label in [*ALPHABETS] * each:
        text = "".join(rng.choices(ALPHABETS[label], k=rng.randint(1, longest)))
        lines.append(f"{text},{label if rng.random() < right else 'latin'}")
    path.write_text("\n".join(lines), encoding="utf-8")


def words(options: dict[str, Any]) -> list[str]:
    """The options as words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


class Run:
    """The processes of a program, one per rank, whose output goes to a file.

    Args:
        project: working directory, with the src/ and the package to import.
        program: arguments of Python.
        hosts: whether each rank is a host of its own, so that two ranks can share a GPU: NCCL then
            sends by sockets.
        turns: whether each rank calls ``Seat.step``, and waits there for its turn.
        variables: environment variables.
    """

    def __init__(
        self, project: Path, program: Sequence[str], ranks: int = 1, hosts: bool = False,
        turns: bool = False, **variables: str,
    ) -> None:  # fmt: skip
        self.folder = project / "logs" / f"{time.time_ns()}"
        self.folder.mkdir(parents=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.seats: list[Any] = []
        known = re.compile(r"(SM_|OMPI_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_)")
        kept = {name: value for name, value in os.environ.items() if not known.match(name)}
        packages = (project.parent / "packages").glob("smlightning*")
        places = [HERE, project / "src", project / "vendor" / "smlightning", *packages]
        kept["PYTHONPATH"] = os.pathsep.join(map(str, places))
        kept.setdefault("OMP_NUM_THREADS", "1")
        port = free_port()
        for rank in range(ranks):
            own = {**kept, **rank_variables(rank, ranks, port, hosts, self.folder), **variables}
            (self.folder / f"output{rank}").mkdir()
            mine, theirs = socket.socketpair()
            if turns:
                own["SEAT"] = str(theirs.fileno())
                self.seats.append(mine.makefile("rw"))
            with (self.folder / f"rank{rank}.txt").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, *program], cwd=project, env=own, stdout=log, stderr=log,
                    pass_fds=[theirs.fileno()] * turns,
                )  # fmt: skip
            self.processes.append(process)
            theirs.close()

    def text(self, rank: int = 0) -> str:
        """The output of a rank so far."""
        return (self.folder / f"rank{rank}.txt").read_text(errors="replace")

    def failure(self, rank: int = 0) -> str:
        """The text of a rank's failure file, SageMaker's FailureReason."""
        path = self.folder / f"output{rank}" / "failure"
        return path.read_text() if path.exists() else ""

    def wait(self, seconds: float) -> list[int | None]:
        """The ranks' statuses; a rank that runs longer is killed, and has None."""
        until = time.monotonic() + seconds
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        statuses = [process.poll() for process in self.processes]
        self.kill()
        return statuses

    def wait_for(self, words: str, rank: int = 0, seconds: float = 180) -> None:
        """Wait until a rank has printed this; RuntimeError if it ends before."""
        until = time.monotonic() + seconds
        while words not in self.text(rank):
            if self.processes[rank].poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no {words!r} was printed: {self.tail(rank)}")
            time.sleep(0.05)

    def succeed(self, seconds: float = 900) -> "Run":
        """Wait until all have succeeded; else RuntimeError with the last lines."""
        statuses = self.wait(seconds)
        for rank, status in enumerate(statuses):
            if status != 0:
                raise RuntimeError(f"rank {rank} ended with {status}: {self.tail(rank)}")
        return self

    def tail(self, rank: int) -> str:
        return self.text(rank)[-1500:].strip()

    def give_turn(self) -> None:
        for seat in self.seats:
            seat.write("go\n")
            seat.flush()

    def reported(self) -> Facts:
        """Wait until every rank waits for its turn; the largest value of any rank, by name."""
        found: Facts = {}
        for rank, seat in enumerate(self.seats):
            line = seat.readline()
            if not line:
                self.kill()
                raise RuntimeError(f"rank {rank} ended in its turn: {self.tail(rank)}")
            for name, value in json.loads(line).items():
                found[name] = max(value, found.get(name, 0.0))
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for seat in self.seats:
            seat.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def rank_variables(rank: int, ranks: int, port: int, hosts: bool, place: Path) -> dict[str, str]:
    """The environment variables that a launcher sets for a rank."""
    variables = {"SM_OUTPUT_DIR": str(place / f"output{rank}")}
    if ranks == 1:
        return variables
    variables |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": str(port)}
    if not hosts:
        return variables | {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    names = [f"algo-{number + 1}" for number in range(ranks)]
    variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "SM_HOSTS": json.dumps(names)}
    variables |= {"SM_CURRENT_HOST": names[rank], "NCCL_HOSTID": names[rank]}
    variables |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    return variables | {"NCCL_SOCKET_IFNAME": "lo"}


class Seat:
    """A rank's clock, by which it also waits for its turn; the first turn begins with step 1."""

    def __init__(self) -> None:
        self.peer = socket.socket(fileno=int(os.environ["SEAT"])).makefile("rw")
        self.number = 0
        self.since = time.perf_counter()
        self.spent = 0.0  # so the first report holds the processor's seconds since the start
        self.more: Facts = {}  # reported once, at the end of this turn

    def step(self) -> None:
        """Call it at the beginning of a step."""
        if self.number % TURN == 0:
            self.end_turn()
        self.number += 1

    def end_turn(self) -> None:
        torch = sys.modules.get("torch")
        if torch and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds, spent = time.perf_counter() - self.since, time.process_time() - self.spent
        self.peer.write(json.dumps({"seconds": seconds, "processor": spent, **self.more}) + "\n")
        self.peer.flush()
        if not self.peer.readline():
            os._exit(0)  # the process that compares has ended
        self.more = {}
        self.since, self.spent = time.perf_counter(), time.process_time()


def take_turns(
    starts: dict[str, Callable[[], Run]], turns: int, seed: int
) -> dict[str, list[Facts]]:
    """Start the trainings one after the other, then let each take so many turns.

    Returns:
        By name: the facts of each turn after the first.
    """
    order = random.Random(seed)
    running: dict[str, Run] = {}
    measured: dict[str, list[Facts]] = {name: [] for name in starts}
    try:
        for name in order.sample([*starts], len(starts)):
            running[name] = starts[name]()
            running[name].reported()
        for turn in range(turns + 1):
            for name in order.sample([*starts], len(starts)):
                running[name].give_turn()
                facts = running[name].reported()
                if turn:
                    measured[name].append(facts)
    finally:
        for run in running.values():
            run.kill()
    return measured


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The ratio of two sums of turns, with its 95 % bootstrap interval."""
    size = STRETCH if len(ours) >= 4 * STRETCH else 1
    pairs = [
        (sum(ours[at : at + size]), sum(theirs[at : at + size])) for at in range(0, len(ours), size)
    ]

    def quotient(pairs: Sequence[tuple[float, float]]) -> float:
        return sum(one for one, _ in pairs) / max(sum(other for _, other in pairs), 1e-9)

    rng = random.Random(0)
    again = sorted(quotient(rng.choices(pairs, k=len(pairs))) for _ in range(REDRAWN))
    return quotient(pairs), again[REDRAWN // 40], again[-REDRAWN // 40]


def shown(interval: Interval, digits: int = 3) -> str:
    value, low, high = (f"{number:,.{digits}f}" for number in interval)
    return f"{value} ({low} to {high})"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, minimum and maximum."""
    return shown((statistics.median(values), min(values), max(values)), digits)


def compare(measured: dict[str, list[Facts]], unit: float = 1.0) -> dict[str, Any]:
    """Print each way's measurements, divided by ``unit`` in seconds, and the first way's ratio.

    Returns:
        By name: the measurements, and the ratios of the clock's and of the processor's seconds.
    """
    found: dict[str, Any] = {}
    first = next(iter(measured))
    for name, facts in measured.items():
        clock, processor = (
            ratio([each[kind] for each in measured[first]], [each[kind] for each in facts])
            for kind in ("seconds", "processor")
        )
        found[name] = {"facts": facts, "ratio": clock, "processor": processor}
        print(
            f"{name:12} {spread([each['seconds'] / unit for each in facts], 3)}; {first} takes "
            f"{shown(clock)} of its time, {shown(processor)} of a processor's",
            flush=True,
        )
    return found


def checkpoint(output: Path) -> dict[str, Any]:
    """The state of the last checkpoint in a run's folder, with its shards joined."""
    sys.path.append(str(ROOT / "packages/smlightning"))
    from smlightning.checkpoints import files

    path = files.newest_path(output / "checkpoints")
    if path is None:
        raise RuntimeError(f"{output} holds no checkpoint")
    return files.read(path)


def difference(one: Any, other: Any) -> float:
    """The largest difference of two states' numbers; 0 only if every bit is the same."""
    import torch

    if isinstance(one, torch.Tensor):
        if torch.equal(one, other):
            return 0.0
        return max((one.double() - other.double()).abs().max().item(), 1e-300)
    if isinstance(one, dict):
        assert one.keys() == other.keys(), (one.keys(), other.keys())
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list | tuple):
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, int | float):
        return abs(float(one) - float(other))
    assert one == other, (one, other)
    return 0.0


def write(path: Path | None, found: Any) -> None:
    """Write the measurements to the file of ``--json``, if it is given."""
    if path:
        path.write_text(json.dumps({**versions(), "found": found}, indent=1))


def versions() -> dict[str, str]:
    """Versions and machine of the figures."""
    import platform
    from importlib.metadata import version

    names = ("torch", "pytorch-lightning", "transformers", "datasets")
    found = {"Python": platform.python_version(), **{name: version(name) for name in names}}
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {**found, "commit": revision, "cores": str(os.cpu_count())}
