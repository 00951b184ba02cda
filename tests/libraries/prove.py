"""Proves each row of the table of libraries: models of other people's, in a generated project.

    make libraries                              # every library
    make libraries ARGS="chemprop lightly"      # these
    make libraries ARGS="--record"              # kept in record.json and on the page

For each library, pip fills an environment that keeps the versions of this one (environment.py). A
generated project gets the files of project/, and parts/NAME.py: the library's own module and data.
It is trained on one rank, on two by torchrun, there stopped and resumed, and rehearsed on two
hosts; the contract tests judge it; script/train.py, a plain script of the library, is rehearsed.
`test_libraries.py` compares record and page.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from isolation import listed
from libraries.environment import library_python
from libraries.libraries import LIBRARIES, Library
from projects import TEMPLATE, bake
from smlightning_sagemaker.rehearsal import ports

HERE = Path(__file__).parent
RECORD = HERE / "record.json"
PAGE = TEMPLATE / "docs" / "libraries.md"
BEGIN, END = "<!-- table: make libraries -->", "<!-- end of the table -->"
SECONDS = 400  # of the slowest single command, on a busy machine
OPTIONS = {"epochs": 3, "batch_size": 8, "log_every": 1}
STOP_AT = 4  # steps: within the first epoch of two ranks, or soon after


class Failed(Exception):
    """A cell is not what it has to be; its text is the sentence that the user reads."""


@dataclass
class Row:
    """What a library's cells say: yes, or a sentence; and the seconds that each took."""

    name: str
    versions: dict[str, str]
    cells: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    day: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Project:
    """A generated project with a library's files, and the Python that has the library."""

    python: Path
    folder: Path  # of the project, of runs and logs
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "project"

    def run(self, words: Sequence[str], log: str, **variables: str) -> str:
        """What a command of the project's Python prints.

        Raises:
            Failed: it ends with another status than 0, or not in time.
        """
        paths = [*sys.path, *filter(None, [variables.pop("PYTHONPATH", "")])]
        packages = [path for path in paths if Path(path).is_relative_to(TEMPLATE / "packages")]
        clean = listed(os.environ)
        clean.pop("SMLIGHTNING_PROJECT", None)
        path = os.pathsep.join([str(self.python.parent), clean.get("PATH", os.defpath)])
        own = {"PATH": path, "PYTHONPATH": os.pathsep.join(packages), "OMP_NUM_THREADS": "1"}
        own |= {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "MPLCONFIGDIR": str(self.folder)}
        file = self.folder / f"{log}.log"
        with file.open("w") as output:
            process = subprocess.Popen(
                [str(self.python), *words],
                cwd=self.path,
                env={**clean, **own, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                raise Failed(f"not done after {SECONDS} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # torchrun's ranks, too
                process.wait()
        text = file.read_text(encoding="utf-8", errors="replace")
        if status:
            raise Failed(sentence(text))
        return text


def sentence(text: str) -> str:
    """The line of a log that says what is wrong: the error's, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[rank \d+\] )?error\b|E   |FAILED", line)]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return [*errors[:1], *raised[-1:], *lines[-1:], "no output"][0]


# The cells


def train(project: Project, name: str, ranks: int = 1, **variables: str) -> str:
    """The log of train.py, whose results are in the folder ``name``."""
    words = ["src/train.py", "--output_dir", str(project.folder / name)]
    for option, value in project.options.items():
        words += [f"--{option}", str(value)]
    if ranks == 1:
        return project.run(words, name, **variables)
    with ports.claimed() as port:
        torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
        return project.run([*torchrun, "--master_port", str(port), *words], name, **variables)


def one_rank(project: Project) -> str:
    return _trained(train(project, "one"))


def two_ranks(project: Project) -> str:
    return _trained(train(project, "two", ranks=2))


def _trained(log: str) -> str:
    if not re.search(r"^\S*test\S* (-?\d\S*|nan)$", log, re.M):
        raise Failed(sentence(log))
    return "yes"


def resumed(project: Project) -> str:
    """Two ranks, stopped by SIGTERM within an epoch: the weights of the run that was not."""
    undisturbed = (project.folder / "two.log").read_text(encoding="utf-8")
    try:
        train(project, "resumed", ranks=2, STOP_AT=str(STOP_AT))
    except Failed:
        (project.folder / "resumed.log").rename(project.folder / "stopped.log")
    else:
        raise Failed("it had ended before it was stopped")
    log = train(project, "resumed", ranks=2)
    resumes = re.search(r"resume: from .*, step (\d+) of", log)
    if not resumes:
        raise Failed("it began anew")
    named = [line for line in log.splitlines() if "inexact" in line]
    last = [re.findall(r"last weights .*", text)[-1:] for text in (undisturbed, log)]
    one, other = (
        load_file(project.folder / name / "model/model.safetensors") for name in ("two", "resumed")
    )
    differ = [key for key in one if one[key].tobytes() != other[key].tobytes()]
    if named:
        return f"`inexact`: {named[0].partition('inexact')[2].strip(': ')}"
    if last[0] != last[1] or not last[0] or differ:
        raise Failed(f"other weights, no line: {last}, {len(differ)} of {len(one)} saved differ")
    return "exact"


def contract(project: Project) -> str:
    """The contract's tests, but for the rehearsal, which has a column, and the lock."""
    words = ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "tests/test_contract.py"]
    words += ["-k", "not rehearsal and not preflight", "--tb=short"]
    words += ["--basetemp", str(project.folder / "contract")]
    try:
        project.run(words, "contract")
    except Failed:
        text = (project.folder / "contract.log").read_text(encoding="utf-8")
        failed = [
            line.partition("::")[2] for line in text.splitlines() if re.match("FAILED|ERROR", line)
        ]
        raise Failed("; ".join(failed) or sentence(text)) from None
    return "yes"


def rehearsed(project: Project) -> str:
    words = ["--", *(f"--{option}={value}" for option, value in project.options.items())]
    return _rehearse(project, "rehearsal", words)


def script(project: Project) -> str:
    folder = project.folder / "script"
    shutil.copytree(HERE / "script", folder)
    shutil.copy(project.path / "src" / "parts.py", folder)
    listed_packages = (project.folder / "library.txt").read_text() + "pytorch-lightning\n"
    (folder / "requirements.txt").write_text(listed_packages)
    if "unused" in (project.folder / "unused.txt").read_text():
        replaced(folder / "train.py", '"ddp"', '"ddp_find_unused_parameters_true"')
    return _rehearse(project, "own-script", ["--source-dir", str(folder)])


def _rehearse(project: Project, name: str, more: list[str]) -> str:
    report = project.folder / f"{name}.json"
    words = ["-m", "smlightning_sagemaker", "rehearse", "--hosts", "2", "--processes", "1"]
    words += ["--distribution", "torch_distributed", "--batches", "4", "--json", str(report)]
    try:
        project.run([*words, *more], name)
    except Failed as failure:
        if not report.is_file():
            raise
        checks = json.loads(report.read_text(encoding="utf-8"))["checks"]
        failed = [
            f"{each['name']}: {each['detail']}" for each in checks if each["verdict"] == "failed"
        ]
        raise Failed("; ".join(failed) or str(failure)) from None
    return "yes"


CELLS: dict[str, Callable[[Project], str]] = {
    "one rank": one_rank,
    "two ranks": two_ranks,
    "stopped, resumed": resumed,
    "contract tests": contract,
    "rehearsal": rehearsed,
    "its own script, rehearsed": script,
}


# A library


def make_project(library: Library, python: Path, folder: Path) -> Project:
    """A generated project with the library's files in place of its own."""
    made = bake(folder / "baked").path
    project = Project(python, folder, {**OPTIONS, **library.options})
    made.rename(project.path)
    shutil.rmtree(project.path / "tests" / "example")
    shutil.copytree(HERE / "project", project.path, dirs_exist_ok=True)
    source = project.path / "src"
    shutil.copy(HERE / "parts" / f"{library.name}.py", source / "parts.py")
    names = f"LOGGED = {library.logged}\nMONITOR = {library.monitor!r}\n"
    names += f"RUN = {library.options}\n"
    (source / "names.py").write_text(names)
    (folder / "unused.txt").write_text("unused" if library.unused else "")
    if library.unused:
        field = '"find_unused_parameters": '
        replaced(source / "dist.py", f"{field}False", f"{field}True")
    listed_packages = "".join(f"{package}\n" for package in library.packages)
    (folder / "library.txt").write_text(listed_packages)
    with (source / "requirements.txt").open("a") as file:  # the rehearsal hides other packages
        file.write(listed_packages)
    return project


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def prove(library: Library, environments: Path, folder: Path, cells: Sequence[str]) -> Row:
    """Fill the cells of a library's row."""
    python = library_python(library, environments)
    row = Row(library.name, versions_of(library, environments))
    row.day = datetime.now(UTC).date().isoformat()
    row.machine = f"{os.cpu_count()} cores, {platform.machine()}"
    folder.mkdir(parents=True, exist_ok=True)
    project = make_project(library, python, folder)
    for name in cells:
        started = time.monotonic()
        try:
            row.cells[name] = CELLS[name](project)
        except (Failed, OSError, IndexError) as failure:
            row.cells[name] = f"no: {shortened(str(failure), folder)}"
        row.seconds[name] = round(time.monotonic() - started, 1)
        print(f"{library.name}, {name}: {row.cells[name]} ({row.seconds[name]} s)", flush=True)
    return row


def shortened(text: str, folder: Path) -> str:
    return re.sub(r"\s+", " ", text.replace(str(folder), "…"))[:600]


def versions_of(library: Library, environments: Path) -> dict[str, str]:
    """The installed version of the library, of torch and of Lightning."""
    (own,) = (environments / library.name / "lib").glob("python*/site-packages")
    found = {each.name: each.version for each in distributions(path=[str(own), *sys.path])}
    names = [library.package.partition("[")[0], "torch", "pytorch-lightning"]
    normal = {name.lower().replace("_", "-"): version for name, version in found.items()}
    return {name: normal[name.lower().replace("_", "-")] for name in names}


# The page


def table(record: dict[str, Any]) -> str:
    """The page's table: a row for each library; a sentence becomes a note below it."""
    lines = [["library", *CELLS], ["---"] * (1 + len(CELLS))]
    notes: list[str] = []
    for library in LIBRARIES:
        if library.name not in record:
            continue
        row = record[library.name]
        version = row["versions"][library.package.partition("[")[0]]
        line = [f"{library.package.partition('[')[0]} {version}"]
        for name in CELLS:
            says = row["cells"][name]
            if ": " in says:
                verdict, _, says = says.partition(": ")
                notes.append(f"{library.name}, {name}: {says}")
                line.append(f"{verdict} ({len(notes)})")
            else:
                line.append(says)
        lines.append(line)
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    if notes:
        text += "\n" + "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    know = [["library", "what to know"], ["---", "---"]]
    know += [[library.name, library.know] for library in LIBRARIES if library.know]
    return text + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in know)


def write_page(record: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(record)}\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [library.name for library in LIBRARIES]
    parser.add_argument("libraries", nargs="*", default=[])
    parser.add_argument("--record", action="store_true", help="keep the rows in record.json")
    parser.add_argument("--cells", nargs="*", default=[*CELLS], choices=[*CELLS])
    parser.add_argument("--environments", type=Path, default=Path(sys.prefix) / "libraries")
    parser.add_argument("--keep", type=Path, help="an empty folder for projects, runs, logs")
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.libraries} - {*known}):
        parser.error(f"found {', '.join(unknown)}; expected some of {', '.join(known)}")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for library in LIBRARIES:
            if arguments.libraries and library.name not in arguments.libraries:
                continue
            folder = (arguments.keep or Path(temporary)).resolve() / library.name

            rows.append(prove(library, arguments.environments, folder, arguments.cells))
    if arguments.record:
        record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
        for row in rows:
            old = record.get(row.name, {"cells": {}, "seconds": {}})
            new = asdict(row)
            for key in ("cells", "seconds"):
                new[key] = {**old[key], **new[key]}
            record[row.name] = new
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        write_page(record)
    return int(any(cell.startswith("no") for row in rows for cell in row.cells.values()))


if __name__ == "__main__":
    sys.exit(main())
