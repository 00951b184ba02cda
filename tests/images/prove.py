"""Proves each row of the table of images with the image's own Python, torch and toolkits.

    make images                        # every profile; the tables go to build/images.md
    make images ARGS="smddp current"   # these
    make images ARGS=--record          # every profile, kept in record.json and docs/images.md

pip fills an environment for each profile (environment.py) from src/requirements.txt and the tools'
wheel. A generated project is trained there on one rank, a BERT on two, and sharded where torch can.
Each run is stopped, resumed to the same bits, saved, and answered by predict.py. The project is
rehearsed under each launcher. The package's tests of private APIs and of malicious files run, too,
and the example's first losses are compared with tests/runtime/example/losses.json, or recorded.
tests/tools fails for a profile whose versions are not in the record.
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
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from images.environment import image_python
from isolation import listed
from projects import ALPHABETS, TEMPLATE, bake, weights, write_words
from smlightning_sagemaker.job.images import LIMITS, PROFILES, Profile
from smlightning_sagemaker.rehearsal import ports
from smlightning_sagemaker.testing.checkpoints import write_bert

RECORD = Path(__file__).with_name("record.json")
PAGE = TEMPLATE / "docs" / "images.md"
BUILD = TEMPLATE / "build"

SECONDS = 600  # of the slowest single step, on a busy machine
STEPS = ("train", "stop", "resume", "save", "predict")
TESTS = "private APIs of libraries, malicious files"
FILES = (
    "tests/runtime/test_upgrades.py",
    "tests/runtime/test_torch_files.py",
    "tests/runtime/example/test_losses.py",
)


class Failed(Exception):
    """A step did not do what it has to; its text is the evidence."""


@dataclass(frozen=True)
class Training:
    """A kind of training and a number of ranks."""

    kind: str  # whole or FSDP
    ranks: int
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass
class Row:
    """The result of a training or a rehearsal: seconds for each step that succeeded."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    problem: str = ""  # of the first step that failed


@dataclass(frozen=True)
class Environment:
    """A profile's Python, with a project and data for it."""

    profile: Profile
    python: Path
    folder: Path
    project: Path
    data: dict[str, Path]

    def variables(self) -> dict[str, str]:
        """Those of a process outside any job, which imports the project's own wheels."""
        clean = listed(os.environ)
        for name in ("SMLIGHTNING_PROJECT", "PYTHONPATH"):
            clean.pop(name, None)
        path = os.pathsep.join([str(self.python.parent), clean.get("PATH", os.defpath)])
        own = {"PATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        return {**clean, **own}

    def run(self, words: Sequence[str], folder: Path, log: Path) -> int:
        """A command's exit status; what it prints goes to the log."""
        with log.open("w") as output:
            return subprocess.run(
                words,
                cwd=folder,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            ).returncode


# Trainings


def trainings(profile: Profile, data: dict[str, Path]) -> list[Training]:
    """The trainings of which a profile has to be capable."""
    common = {"max_steps": 240, "checkpoint_steps": 20, "log_every": 5}
    words = {"dataset": data["words"], "batch_size": 8, **common}
    two = {**words, "batch_size": 4}
    found = [
        Training("whole", 1, words),
        Training("whole", 2, {**two, "model_name": data["bert"]}),
    ]
    if not any(profile.limits({"strategy": "fsdp"})):
        found.append(Training("FSDP", 2, {**two, "strategy": "fsdp"}))
    return found


def prove_training(environment: Environment, training: Training) -> Row:
    """Train, stop and resume it; compare the models, and let predict.py answer with one."""
    row = Row(training.name)
    place = environment.folder / training.name.replace(", ", "-").replace(" ", "-")
    place.mkdir(parents=True)
    steps = {
        "train": lambda: train(environment, training, place, "undisturbed"),
        "stop": lambda: stop(environment, training, place, "resumed"),
        "resume": lambda: resume(environment, training, place, "resumed"),
        "save": lambda: compare(place),
        "predict": lambda: predict(environment, place),
    }
    for name, step in steps.items():
        started = time.monotonic()
        try:
            step()
        except (Failed, OSError, subprocess.TimeoutExpired) as failure:
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
    words += [str(environment.project / "src" / "train.py")]
    options = {**training.options, "output_dir": output, "data_dir": output.parent / "prepared"}
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words


def train(environment: Environment, training: Training, place: Path, name: str) -> str:
    """Runs a training without interruption, and returns its log."""
    log = place / f"{name}.log"
    with ports.claimed() as port:
        words = command(environment, training, place / name, port)
        status = environment.run(words, place, log)
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
            env=environment.variables(),
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
    one, other = weights(place / "undisturbed"), weights(place / "resumed")
    differ = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    if differ or not one:
        raise Failed(f"{len(differ)} of {len(one)} tensors differ: {differ[:3]}")


def predict(environment: Environment, place: Path) -> None:
    """predict.py answers with the saved model."""
    log = place / "predict.log"
    script = environment.project / "src" / "predict.py"
    words = [str(environment.python), str(script), "--model_dir", str(place / "resumed" / "model")]
    status = environment.run([*words, "abc"], place, log)
    if status or not re.search(r"(?m)^abc.+", log.read_text()):
        raise Failed(f"status {status}\n{log.read_text()[-3000:]}")


# Rehearsals and tests


def prove_launcher(environment: Environment, launcher: str) -> Row:
    """Rehearse under a launcher: on two hosts, and on one with a real mpirun."""
    row = Row(launcher)
    profile = environment.profile
    job = environment.folder / f"{launcher}.toml"
    text = (environment.project / "job.toml").read_text()
    instance = "ml.p4d.24xlarge" if launcher == "smddp" else "ml.g5.12xlarge"
    text = replaced(text, "image", profile.name)
    job.write_text(replaced(text, "instance_type", instance))
    sizes = {"none": [(1, 1)], "torch_distributed": [(2, 2)]}.get(launcher, [(2, 2), (1, 2)])
    short = {
        **trainings(profile, environment.data)[0].options,
        "max_steps": 12,
        "checkpoint_steps": 5,
    }
    for hosts, processes in sizes:
        started = time.monotonic()
        size = f"{hosts} × {processes}"
        report = environment.folder / f"{launcher}-{hosts}.json"
        words = [str(environment.python), "-m", "smlightning_sagemaker", "rehearse", "--job"]
        words += [str(job)]
        words += ["--hosts", str(hosts), "--processes", str(processes)]
        words += ["--distribution", launcher, "--json", str(report), "--"]
        for name, value in short.items():
            words += [f"--{name}", str(value)]
        log = report.with_suffix(".log")
        status = environment.run(words, environment.project, log)
        verdict = judge_report(status, report, profile)
        if verdict:
            row.problem = f"{size}: {verdict}\n{log.read_text()[-3000:]}"
            return row
        row.seconds[size] = round(time.monotonic() - started, 1)
    return row


def judge_report(status: int, path: Path, profile: Profile) -> str:
    """Reason why the rehearsal proves nothing; empty if it proves the image."""
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
    text, count = re.subn(f"(?m)^{key} = .*", f'{key} = "{value}"', toml)
    assert count == 1, key
    return text


def prove_tests(environment: Environment) -> Row:
    """The package's own tests that depend on torch's version."""
    chosen = [str(TEMPLATE / file) for file in FILES]
    words = [str(environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    words += ["-c", str(TEMPLATE / "pyproject.toml"), "--rootdir", str(TEMPLATE)]
    return tested(environment, TESTS, [*words, *chosen], TEMPLATE)


def tested(environment: Environment, name: str, words: Sequence[str], folder: Path) -> Row:
    """The result of a command that runs tests."""
    row = Row(name)
    log = environment.folder / f"{name.replace(' ', '-')}.log"
    started = time.monotonic()
    if environment.run(words, folder, log):
        row.problem = log.read_text()[-4000:]
        return row
    row.seconds["tests"] = round(time.monotonic() - started, 1)
    return row


# Data, projects, environments


def write_data(folder: Path) -> dict[str, Path]:
    """Words in three alphabets, and a BERT of two layers."""
    folder.mkdir(parents=True)
    bert = write_bert(folder / "bert", "".join(ALPHABETS.values()))
    return {"words": write_words(folder / "words.csv"), "bert": Path(bert)}


def prove(
    profile: Profile,
    folder: Path,
    python_for: Callable[[Profile, Path], Path] = image_python,
    tests: Sequence[Callable[[Environment], Row]] = (prove_tests,),
) -> dict[str, Any]:
    """Everything that a profile has to do, and the results.

    Args:
        python_for: makes an environment for the profile and a project.
    """
    started = time.monotonic()
    project = bake(folder).path
    python = python_for(profile, project)
    data = write_data(folder / "data")
    environment = Environment(profile, python, folder, project, data)
    built = time.monotonic() - started
    print(f"{profile.name}: environment ready after {built:.0f} s", flush=True)
    rows: list[Row] = []
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(prove_training, environment, t) for t in trainings(profile, data)]
        for launcher in profile.launchers:
            jobs.append(pool.submit(prove_launcher, environment, launcher))
        jobs += [pool.submit(test, environment) for test in tests]
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
    }


def versions(environment: Environment) -> dict[str, str]:
    """Version of each package in the environment, and of Python."""
    code = (
        "import json, platform; from importlib.metadata import version\n"
        "names = ['torch', 'sagemaker-training', 'sagemaker-pytorch-training', 'pytorch-lightning',"
        " 'transformers', 'datasets']\n"
        "print(json.dumps({'python': platform.python_version()} | {n: version(n) for n in names}))"
    )
    ended = subprocess.run(
        [str(environment.python), "-c", code], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return {name: version.partition("+")[0] for name, version in found.items()}


def show(profile: Profile, row: Row) -> None:
    took = ", ".join(f"{name} {seconds:g} s" for name, seconds in row.seconds.items())
    verdict = f"FAILED {row.problem}" if row.problem else took
    print(f"{profile.name}: {row.name}: {verdict}", flush=True)


# The record and its page


def page(record: dict[str, Any]) -> str:
    """The record as a page of the documents."""
    lines = [
        "# Tests of each image",
        "",
        "`make images ARGS=--record` writes this page. Each row ran with the Python, torch and",
        "toolkits that `job/images.py` lists for the image. They came from package indexes:",
        "AWS's own builds, GPUs, NCCL and SMDDP were not available. Numbers are seconds, two",
        "trainings at a time on a busy CPU: they are not a benchmark. *save* is the time of a",
        "check: the saved model of the resumed run equals that of the undisturbed run, bit for",
        "bit.",
    ]
    for found in record.values():
        named = ", ".join(
            f"{name} {version}" for name, version in sorted(found["versions"].items())
        )
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
        profile = PROFILES.get(found["profile"])  # none: of images.newest
        for limit in LIMITS if profile else ():
            if profile and profile.version < limit.before:
                words = [f"--{name} {str(value).lower()}" for name, value in limit.options.items()]
                lines += ["", f"Rejected by preflight: `{' '.join(words)}` (torch {limit.why})."]
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = parse()
    if arguments.record:
        os.environ["RECORD_LOSSES"] = "1"
    record = {
        name: prove(PROFILES[name], cleared(BUILD / "images" / name)) for name in arguments.profile
    }
    (BUILD / "images.md").write_text(page(record), encoding="utf-8")
    failed = failures(record)
    if arguments.record and not failed:
        keep(record)
    print(*(f"failed: {line}" for line in failed), sep="\n")
    print(f"{len(record)} images, {len(failed)} failures; {BUILD / 'images.md'}")
    return 1 if failed else 0


def failures(record: dict[str, Any]) -> list[str]:
    rows = [(name, row) for name, found in record.items() for row in found["rows"]]
    return [f"{name}: {row['name']}" for name, row in rows if row["problem"]]


def keep(record: dict[str, Any]) -> None:
    """Put results in the place of earlier ones, in the record and on the page."""
    kept = {**json.loads(RECORD.read_text()), **record}
    RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    sorted_record = json.loads(RECORD.read_text())
    PAGE.write_text(page(in_order(sorted_record)), encoding="utf-8")


def in_order(record: dict[str, Any]) -> dict[str, Any]:
    """The profiles of the table, then those of images.newest."""
    names = [*PROFILES, *sorted(record.keys() - PROFILES.keys())]
    return {name: record[name] for name in names}


def parse() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("make images", description=__doc__, formatter_class=form)
    names = f"of {', '.join(PROFILES)} (all)"
    parser.add_argument("profile", nargs="*", help=names)
    parser.add_argument("--record", action="store_true", help="keep the results in the repository")
    arguments = parser.parse_args()
    arguments.profile = arguments.profile or list(PROFILES)
    if unknown := set(arguments.profile) - set(PROFILES):
        parser.error(f"no such profile: {', '.join(unknown)}; known: {', '.join(PROFILES)}")
    return arguments


def cleared(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
