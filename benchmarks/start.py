"""Measures how long a project's commands take until they do their work.

    python benchmarks/start.py --rounds 6
    python benchmarks/start.py --against ../older    # and another checkout's, in turn
    python benchmarks/start.py --lightning FOLDER    # src/ imports the package lightning of FOLDER

``train.py`` until rank 0 prints its first step, on one rank and on two, with data that is prepared;
``predict.py`` with a text, and ``train.py --help``, until they end. The largest rank counts, and
its peak memory. ``modules`` are those that ``train.py`` has loaded before its first step. The ratio
of processor seconds is less disturbed by other programs than that of the clock.
"""

import os
import random
import re
import sys
import time
from pathlib import Path

import common
from common import Facts, Run

TRAIN = ("src/train.py", "--max_steps", "3", "--log_every", "1", "--resume", "never")
FIRST_STEP = "\nstep=1 "
TICK = os.sysconf("SC_CLK_TCK")
# Prints the number of modules before the first step's line; a module with two names counts once.
COUNT = """
import runpy, sys
def write(text, own=sys.stdout.write):
    if text.startswith("step=1 "):
        own(f"modules {len({*map(id, sys.modules.values())})}\\n")
    return own(text)
sys.stdout.write = write
del sys.argv[0]
sys.path.insert(0, "src")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def first_step(project: Path, ranks: int) -> Facts:
    """From the start of a training until its first step is printed, then end it."""
    began = time.perf_counter()
    run = Run(project, [*TRAIN, "--output_dir", "outputs-first"], ranks)
    try:
        run.wait_for(FIRST_STEP)
        seconds = time.perf_counter() - began
        facts = [spent(process.pid) for process in run.processes]
    finally:
        run.kill()
    processor, memory = (max(values) for values in zip(*facts, strict=True))
    return {"seconds": seconds, "processor": processor, "mib": memory}


def spent(pid: int) -> tuple[float, float]:
    """The processor seconds of a process, and its peak memory in MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert peak
    return (int(fields[11]) + int(fields[12])) / TICK, int(peak[1]) / 1024


def whole(project: Path, *program: str) -> Facts:
    """From the start of a program until it ends."""
    began = time.perf_counter()
    run = Run(project, program)
    _, status, usage = os.wait4(run.processes[0].pid, 0)
    seconds = time.perf_counter() - began
    run.processes[0].returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise RuntimeError(f"{program} failed: {run.tail(0)}")
    processor = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "processor": processor, "mib": usage.ru_maxrss / 1024}


def modules(project: Path) -> int:
    """The modules that are loaded when the first step is printed."""
    run = Run(project, ["-c", COUNT, *TRAIN, "--output_dir", "outputs-modules"]).succeed()
    return int(re.findall(r"modules (\d+)", run.text())[-1])


def import_lightning(project: Path, folder: Path) -> None:
    """Let a project's files import the package lightning, which is in ``folder``."""
    for path in (project / "src").glob("*.py"):
        code = path.read_text()
        path.write_text(code.replace("import pytorch_lightning as", "import lightning.pytorch as"))
    for path in folder.resolve().glob("lightning*"):
        (project / "src" / path.name).symlink_to(path)


def measure(command: str, project: Path) -> Facts:
    """One start of a command of COMMANDS."""
    if command == "train.py --help":
        return whole(project, "src/train.py", "--help")
    if command == "predict.py":
        return whole(project, "src/predict.py", "--model_dir", "outputs/model", "Mittwoch")
    return first_step(project, 2 if "2 ranks" in command else 1)


COMMANDS = ("train.py, 1 rank", "train.py, 2 ranks", "predict.py", "train.py --help")


def main() -> int:
    parser = common.parser_of(__doc__, compares=True)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--lightning", type=Path, help="a folder with the package lightning")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.rounds = 1
    found: dict[str, dict[str, list[Facts]]] = {}
    order = random.Random(0)
    with common.folder() as folder:
        projects = common.projects(folder, arguments.against)
        if arguments.lightning:
            import_lightning(projects["train.py"], arguments.lightning)
        for project in projects.values():  # prepare the data, train the model, read all files once
            Run(project, ["src/train.py", "--max_steps", "3", "--resume", "never"]).succeed()
        print("modules:", {name: modules(project) for name, project in projects.items()})
        for command in arguments.commands:
            found[command] = {name: [] for name in projects}
            for _ in range(arguments.rounds):
                for name in order.sample([*projects], len(projects)):
                    found[command][name].append(measure(command, projects[name]))
            report(command, found[command])
    common.write(arguments.json, found)
    return 0


def report(command: str, measured: dict[str, list[Facts]]) -> None:
    """Print the measurements of a command, and their ratios if there are two checkouts."""
    for name, facts in measured.items():
        values = [
            f"{common.spread([each[kind] for each in facts], digits)} {unit}"
            for kind, unit, digits in (
                ("seconds", "s", 2),
                ("processor", "s of a processor", 2),
                ("mib", "MiB", 0),
            )
        ]
        print(f"{command}, {name}: {'; '.join(values)}", flush=True)
    if "before" in measured:
        pairs = [*zip(measured["train.py"], measured["before"], strict=True)]
        ratios = [
            f"{common.spread([new[kind] / old[kind] for new, old in pairs])} {unit}"
            for kind, unit in (("seconds", "time"), ("processor", "processor"), ("mib", "memory"))
        ]
        print(f"{command}, ratios: {'; '.join(ratios)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
