"""Proves each row of the table of images with the image's own Python, torch and toolkits.

    make images                        # every profile; the tables go to build/images.md
    make images ARGS="smddp current"   # these
    make images ARGS=--record          # every profile, kept in record.json and docs/images.md

In an environment of each profile (smlightning/rehearsal/image.py): both tasks, whole, by LoRA and
sharded where torch can, on one rank and two, are trained, stopped, resumed to the same bits, saved
and answered by predict.py; both are rehearsed under each launcher; the package's guards and its
hostile checkpoints are tried; and the names that the code uses of torch are looked up. A profile
that is not in the record with the versions of the table is not offered: tests/package/launch
fails.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from images import torch_names

TEMPLATE = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("record.json")
PAGE = TEMPLATE / "docs" / "images.md"
BUILD = TEMPLATE / "build"
sys.path.insert(0, str(torch_names.CODE[0].parent))

from isolation import listed  # noqa: E402
from smlightning import ports  # noqa: E402
from smlightning.launch.images import LIMITS, PROFILES, Profile  # noqa: E402
from smlightning.rehearsal import image  # noqa: E402
from smlightning.testing.checkpoints import write_bert  # noqa: E402

SECONDS = 600  # of the slowest single step, on a busy machine
STEPS = ("train", "stop", "resume", "save", "predict")
TEXT_TASK, LANGUAGE_TASK = "text-classification", "language-model"
# Tests that have to hold under each torch: the guards of private names, and files from others.
TESTS = "guards of private names, hostile files"
FILES = ("smlightning/testing/test_upgrades.py", "tests/package/test_torch_files.py")


class Failed(Exception):
    """A step did not do what it has to; its text is the evidence."""


@dataclass(frozen=True)
class Training:
    """What is trained on so many ranks."""

    task: str
    kind: str  # whole, LoRA or FSDP
    ranks: int
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.task}, {self.kind}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass
class Row:
    """What was found of a training or a rehearsal: seconds for each step that succeeded."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    problem: str = ""  # of the first step that failed


@dataclass(frozen=True)
class Environment:
    """A profile's Python, with projects of both tasks and data for them."""

    profile: Profile
    python: Path
    folder: Path
    projects: dict[str, Path]
    data: dict[str, Path]

    def variables(self, task: str) -> dict[str, str]:
        """Those of a process outside any job, which imports the project's own package."""
        package = self.projects[task] / "vendor" / "smlightning"
        clean = listed(os.environ)
        clean.pop("SMLIGHTNING_PROJECT", None)
        path = os.pathsep.join([str(self.python.parent), clean.get("PATH", os.defpath)])
        own = {"PYTHONPATH": str(package), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}
        return {**clean, **own, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, task: str, words: Sequence[str], folder: Path, log: Path) -> int:
        """A command's exit status; what it prints goes to the log."""
        with log.open("w") as output:
            return subprocess.run(
                words,
                cwd=folder,
                env=self.variables(task),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            ).returncode


# Trainings


def trainings(profile: Profile, data: dict[str, Path]) -> Iterator[Training]:
    """Those that a profile has to be capable of."""
    words = {"dataset": data["words"], "max_steps": 240, "checkpoint_steps": 20, "log_every": 5}
    texts = {"dataset": data["texts"], "max_steps": 240, "checkpoint_steps": 20, "log_every": 5}
    texts["max_length"] = 32
    models = [
        (TEXT_TASK, "whole", {**words, "batch_size": 8}),
        (TEXT_TASK, "LoRA", {**words, "batch_size": 8, "model_name": data["bert"], "lora_rank": 2}),
        (LANGUAGE_TASK, "whole", {**texts, "batch_size": 4, "width": 32, "layers": 2}),
        (
            LANGUAGE_TASK,
            "LoRA",
            {**texts, "batch_size": 4, "model_name": data["llama"], "lora_rank": 2},
        ),
    ]
    for ranks in (1, 2):
        for task, kind, options in models:
            per_rank = {"batch_size": options["batch_size"] // ranks}
            yield Training(task, kind, ranks, {**options, **per_rank})
    if not any(profile.limits({"strategy": "fsdp"})):
        for task, kind, options in models:
            if kind == "whole":
                yield Training(task, "FSDP", 2, {**options, "strategy": "fsdp"})


def prove_training(environment: Environment, training: Training) -> Row:
    """Train it, then stop and resume it, and compare, load and ask what it saved."""
    row = Row(training.name)
    place = environment.folder / training.name.replace(", ", "-").replace(" ", "-")
    place.mkdir(parents=True)
    steps = {
        "train": lambda: train(environment, training, place, "undisturbed"),
        "stop": lambda: stop(environment, training, place, "resumed"),
        "resume": lambda: resume(environment, training, place, "resumed"),
        "save": lambda: compare(place),
        "predict": lambda: predict(environment, training, place),
    }
    for name, step in steps.items():
        started = time.monotonic()
        try:
            step()
        except (Failed, subprocess.TimeoutExpired) as failure:
            row.problem = f"{name}: {failure}"
            return row
        row.seconds[name] = round(time.monotonic() - started, 1)
    return row


def command(environment: Environment, training: Training, output: Path, port: int) -> list[str]:
    """One process, or torchrun's of this torch."""
    words = [str(environment.python)]
    if training.ranks > 1:
        words += ["-m", "torch.distributed.run", "--nproc_per_node", str(training.ranks)]
        words += ["--master_port", str(port)]
    words += [str(environment.projects[training.task] / "src" / "train.py")]
    options = {**training.options, "output_dir": output, "data_dir": output.parent / "prepared"}
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words


def train(environment: Environment, training: Training, place: Path, name: str) -> str:
    """What an undisturbed run prints."""
    log = place / f"{name}.log"
    with ports.claimed() as port:
        words = command(environment, training, place / name, port)
        status = environment.run(training.task, words, place, log)
    text = log.read_text()
    if status or not text.splitlines() or not text.splitlines()[-1].startswith("test/"):
        raise Failed(f"status {status}\n{text[-3000:]}")
    return text


def stop(environment: Environment, training: Training, place: Path, name: str) -> None:
    """Send SIGTERM in the middle of training; the run ends with a checkpoint and no model."""
    log = place / f"{name}-stopped.log"
    with ports.claimed() as port, log.open("w") as output:
        process = subprocess.Popen(
            command(environment, training, place / name, port),
            cwd=place,
            env=environment.variables(training.task),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + SECONDS
            while "step=" not in log.read_text():
                if process.poll() is not None or time.monotonic() > until:
                    raise Failed(f"no step before its end\n{log.read_text()[-3000:]}")
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # torchrun's ranks, too
            process.wait()
    if not status or not list((place / name / "checkpoints").glob("*")):
        raise Failed(f"status {status}, no checkpoint\n{log.read_text()[-3000:]}")
    if (place / name / "model").exists() and list((place / name / "model").glob("*.safetensors")):
        raise Failed("training had ended before it was stopped: more steps are needed")


def resume(environment: Environment, training: Training, place: Path, name: str) -> None:
    """The same command again goes on where the run was stopped."""
    text = train(environment, training, place, name)
    if "resum" not in text:
        raise Failed(f"it did not resume\n{text[-3000:]}")


def compare(place: Path) -> None:
    """The model of the resumed run is that of the undisturbed one, bit for bit."""
    from safetensors.numpy import load_file

    files = sorted((place / "undisturbed" / "model").glob("*.safetensors"))
    if not files:
        raise Failed("no weights were saved")
    for path in files:
        one, other = load_file(path), load_file(place / "resumed" / "model" / path.name)
        differ = [key for key in one if one[key].tobytes() != other[key].tobytes()]
        if one.keys() != other.keys() or differ:
            raise Failed(f"{path.name}: {len(differ)} of {len(one)} tensors differ: {differ[:3]}")


def predict(environment: Environment, training: Training, place: Path) -> None:
    """predict.py answers with the saved model."""
    log = place / "predict.log"
    script = environment.projects[training.task] / "src" / "predict.py"
    words = [str(environment.python), str(script), "--model_dir", str(place / "resumed" / "model")]
    status = environment.run(training.task, [*words, "abc"], place, log)
    if status or not re.search(r"(?m)^abc.+", log.read_text()):
        raise Failed(f"status {status}\n{log.read_text()[-3000:]}")


# Rehearsals and tests


def prove_launcher(environment: Environment, name: str, task: str, launcher: str) -> Row:
    """Rehearse a task under a launcher: on two hosts, and on one under a real mpirun or alone."""
    row = Row(name)
    profile = environment.profile
    job = environment.folder / f"{task}-{launcher}.toml"
    text = (environment.projects[task] / "job.toml").read_text()
    instance = "ml.p4d.24xlarge" if launcher == "smddp" else "ml.g5.12xlarge"
    text = replaced(text, "image", profile.name)
    job.write_text(replaced(text, "instance_type", instance))
    sizes = {"none": [(1, 1)], "torch_distributed": [(2, 2)]}.get(launcher, [(2, 2), (1, 2)])
    options = next(
        trainings(profile, environment.data)
        if task == TEXT_TASK
        else (t for t in trainings(profile, environment.data) if t.task == task)
    ).options
    short = {**options, "max_steps": 12, "checkpoint_steps": 5}
    for hosts, processes in sizes:
        started = time.monotonic()
        size = f"{hosts} × {processes}"
        report = environment.folder / f"{task}-{launcher}-{hosts}.json"
        words = [str(environment.python), "-m", "smlightning", "rehearse", "--job", str(job)]
        words += ["--hosts", str(hosts), "--processes", str(processes)]
        words += ["--distribution", launcher, "--json", str(report), "--"]
        for name, value in short.items():
            words += [f"--{name}", str(value)]
        log = report.with_suffix(".log")
        status = environment.run(task, words, environment.projects[task], log)
        verdict = judge_report(status, report, profile, launcher, hosts)
        if verdict:
            row.problem = f"{size}: {verdict}\n{log.read_text()[-3000:]}"
            return row
        row.seconds[size] = round(time.monotonic() - started, 1)
    return row


def judge_report(status: int, path: Path, profile: Profile, launcher: str, hosts: int) -> str:
    """What speaks against a rehearsal; empty for nothing."""
    if status or not path.is_file():
        return f"status {status}"
    report = json.loads(path.read_text())
    versions = report["versions"]
    if versions["torch"].partition("+")[0] != profile.torch:
        return f"it ran with torch {versions['torch']}"
    if versions["toolkit"] != profile.toolkit:
        return f"it ran with sagemaker-training {versions['toolkit']}"
    failed = [check["name"] for check in report["checks"] if check["verdict"] == "failed"]
    return f"failed checks: {failed}" if failed or not report["ok"] else ""


def replaced(toml: str, key: str, value: str) -> str:
    """The file with another text as the value of a key."""
    lines = toml.splitlines()
    [number] = [n for n, line in enumerate(lines) if line.startswith(f"{key} = ")]
    lines[number] = f'{key} = "{value}"'
    return "\n".join(lines) + "\n"


def prove_tests(environment: Environment) -> Row:
    """The package's own tests that depend on torch's version."""
    row = Row(TESTS)
    log = environment.folder / "tests.log"
    started = time.monotonic()
    package = torch_names.CODE[0].parent
    chosen = [str(package / FILES[0]), str(TEMPLATE / FILES[1])]
    words = [str(environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    words += ["-c", str(TEMPLATE / "pyproject.toml"), "--rootdir", str(TEMPLATE)]
    status = environment.run(TEXT_TASK, [*words, *chosen], TEMPLATE, log)
    if status:
        row.problem = log.read_text()[-4000:]
        return row
    row.seconds["tests"] = round(time.monotonic() - started, 1)
    return row


def names(python: Path) -> torch_names.Names:
    """What this Python's torch has of the modules whose names the code uses."""
    wanted = json.dumps(list(torch_names.in_code("torch")))
    words = [str(python), "-W", "ignore", torch_names.__file__]
    ended = subprocess.run(words, input=wanted, text=True, capture_output=True, check=True)
    found: torch_names.Names = json.loads(ended.stdout)
    return found


# Data, projects, environments


def write_data(folder: Path, project: Path) -> dict[str, Path]:
    """Words in three alphabets, short texts, and a BERT and a Llama of two layers."""
    draw = random.Random(0)
    alphabets = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}
    lines = ["text,label"]
    for label, alphabet in alphabets.items():
        for _ in range(200):
            lines.append(f"{''.join(draw.choices(alphabet, k=draw.randint(1, 12)))},{label}")
    folder.mkdir(parents=True)
    words = folder / "words.csv"
    words.write_text("\n".join(lines), encoding="utf-8")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(10):
        sentences = (" ".join(draw.choices(("one", "two", "three"), k=9)) for _ in range(80))
        (texts / f"{number}.txt").write_text("\n".join(sentences), encoding="utf-8")
    place = project / "tests" / "example" / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_of_the_task", place)
    assert spec and spec.loader
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    bert = write_bert(folder / "bert", "".join(alphabets.values()))
    llama = fixtures.make_checkpoint(folder / "llama", "llama")
    return {"words": words, "texts": texts, "bert": Path(bert), "llama": Path(llama)}


def generate(folder: Path) -> dict[str, Path]:
    """A project of each task with default answers."""
    from cookiecutter.main import cookiecutter

    projects = {}
    for task in (TEXT_TASK, LANGUAGE_TASK):
        answers = {"task": task, "project_slug": task}
        path = cookiecutter(
            str(TEMPLATE), no_input=True, output_dir=str(folder), extra_context=answers
        )
        projects[task] = Path(path)
    return projects


def add_pytest(python: Path) -> None:
    """What the package's tests need, which is no part of an image."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    image.run([*pip, "pytest", "pytest-timeout", "pytest-xdist"], python.parent)


def prove(profile: Profile, folder: Path, keyword: str = "") -> dict[str, Any]:
    """Everything that is asked of a profile, and what was found."""
    started = time.monotonic()
    projects = generate(folder)
    python = image.image_python(profile, projects[TEXT_TASK])
    add_pytest(python)
    data = write_data(folder / "data", projects[LANGUAGE_TASK])
    environment = Environment(profile, python, folder, projects, data)
    built = time.monotonic() - started
    print(f"{profile.name}: environment ready after {built:.0f} s", flush=True)
    rows: list[Row] = []
    questions: dict[str, Callable[[], Row]] = {}
    for training in trainings(profile, data):
        questions[training.name] = partial(prove_training, environment, training)
    for task in projects:
        for launcher in profile.launchers:
            name = f"{task}, {launcher}"
            questions[name] = partial(prove_launcher, environment, name, task, launcher)
    questions[TESTS] = partial(prove_tests, environment)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(ask) for name, ask in questions.items() if keyword in name]
        for job in jobs:
            row = job.result()
            rows.append(row)
            show(profile, row)
    return {
        "profile": profile.name,
        "versions": versions(environment),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(time.monotonic() - started),
        "rows": [asdict(row) for row in rows],
        "names": names(python),
    }


def versions(environment: Environment) -> dict[str, str]:
    """Those in the environment, by package; its Python's as `python`."""
    code = (
        "import json, platform; from importlib.metadata import version\n"
        "names = ['torch', 'sagemaker-training', 'sagemaker-pytorch-training', 'pytorch-lightning',"
        " 'transformers', 'datasets', 'peft']\n"
        "print(json.dumps({'python': platform.python_version()} | {n: version(n) for n in names}))"
    )
    ended = subprocess.run(
        [str(environment.python), "-c", code], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return {name: version.partition("+")[0] for name, version in found.items()}


def same_names(found: torch_names.Names, recorded: torch_names.Names) -> bool:
    """Whether both have and lack the same of the names that the code uses.

    Others may differ: builds with and without CUDA hold different ones.
    """
    return all(
        torch_names.missing(name, found) == torch_names.missing(name, recorded)
        for name in torch_names.in_code("torch")
    )


def show(profile: Profile, row: Row) -> None:
    took = ", ".join(f"{name} {seconds:g} s" for name, seconds in row.seconds.items())
    verdict = f"FAILED {row.problem}" if row.problem else took
    print(f"{profile.name}: {row.name}: {verdict}", flush=True)


# The record and its page


def page(record: dict[str, Any]) -> str:
    """The record as a page of the documents."""
    lines = [
        "# What each image was proven with",
        "",
        "`make images ARGS=--record` writes this page. Each row ran in an environment with the",
        "image's Python and torch and the toolkits of the table in `launch/images.py`, all from",
        "package indexes. AWS's own builds, GPUs, NCCL and SMDDP were not available. Numbers are",
        "seconds, two trainings at a time on a busy CPU: they are not a benchmark. *save*",
        "compares the resumed run's model with the undisturbed run's, bit for bit.",
    ]
    for found in record.values():
        named = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        lines += ["", f"## {found['profile']}", ""]
        lines += [f"{named}. {found['machine']}, {found['day']}, {found['seconds']} s in all.", ""]
        lines += ["| trained | " + " | ".join(STEPS) + " |", "|---" * (len(STEPS) + 1) + "|"]
        for row in found["rows"]:
            if "train" in row["seconds"]:
                cells = [f"{row['seconds'].get(step, 'failed')}" for step in STEPS]
                lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
        lines += ["", "| rehearsed, hosts × processes | seconds |", "|---|---|"]
        for row in found["rows"]:
            if "train" not in row["seconds"]:
                took = ", ".join(f"{size}: {s:g}" for size, s in row["seconds"].items())
                lines.append(f"| {row['name']} | {took} |")
        impossible = [
            limit for limit in LIMITS if PROFILES[found["profile"]].version < limit.before
        ]
        for limit in impossible:
            options = " ".join(
                f"--{name} {str(value).lower()}" for name, value in limit.options.items()
            )
            lines += ["", f"Rejected by preflight: `{options}` (torch {limit.why})."]
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = parse()
    kept: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if arguments.names:
        projects = generate(cleared(BUILD / "images" / "names"))
        for name in arguments.profile:
            python = image.image_python(PROFILES[name], projects[TEXT_TASK])
            kept.setdefault(name, {})["names"] = names(python)
        write(kept)
        return 0
    record = {
        name: prove(PROFILES[name], cleared(BUILD / "images" / name), arguments.k)
        for name in arguments.profile
    }
    (BUILD / "images.md").write_text(page(record), encoding="utf-8")
    failed = [
        f"{name}: {row['name']}"
        for name, found in record.items()
        for row in found["rows"]
        if row["problem"]
    ]
    if arguments.record and not failed:
        kept |= record
        write(kept)
        PAGE.write_text(page({name: kept[name] for name in PROFILES}), encoding="utf-8")
    for name, found in record.items():
        if not same_names(found["names"], kept[name]["names"]):
            failed.append(f"{name}: torch has other names than record.json says")
    print(*(f"failed: {line}" for line in failed), sep="\n")
    proven = record.keys() - {line.partition(":")[0] for line in failed}
    asked = "asked in part" if arguments.k else "proven"
    print(f"{len(proven)} of {len(record)} images {asked}; {BUILD / 'images.md'}")
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make images",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("profile", nargs="*", help=f"of {', '.join(PROFILES)} (all)")
    add(
        "-k", default="", metavar="TEXT", help="only trainings and rehearsals with it in their name"
    )
    add("--record", action="store_true", help="keep the results in the repository")
    add("--names", action="store_true", help="only record which names each torch has")
    arguments = parser.parse_args()
    arguments.profile = arguments.profile or list(PROFILES)
    if unknown := set(arguments.profile) - set(PROFILES):
        parser.error(f"no such profile: {', '.join(sorted(unknown))}; known: {', '.join(PROFILES)}")
    if arguments.k and arguments.record:
        parser.error("--record keeps whole rows, and -k leaves out parts: give one of them")
    return arguments


def cleared(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write(record: dict[str, Any]) -> None:
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
