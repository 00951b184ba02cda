"""Tests of any data.py and model.py: what train.py, the launcher and the rehearsal expect of them.

A project imports them in tests/test_contract.py. tests/small.py defines their small run: rewrite it
with your data.py and model.py. After a change of the data, also run `make rehearse`, which uses the
job's own data and hosts.
"""

import ast
import json
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from smlightning import run
from smlightning.options import declared_options
from smlightning.reports.log import metric_regex, name_in_test
from smlightning.training.options import TrainerOptions
from smlightning_sagemaker import project
from smlightning_sagemaker.testing import owner, recording, runs

OWNER = owner.load()
OPTIONS = OWNER.options
DECLARED = declared_options(OPTIONS.Options)


def tried_options() -> list[str]:
    """The project's own options, and the seed: each run of the contract changes one."""
    common = {field.name for field in fields(TrainerOptions)} - {"seed"}
    return sorted(DECLARED.keys() - common - OWNER.small.ELSEWHERE.keys())


@dataclass(frozen=True)
class ContractRun:
    """The small run, uninterrupted, on one rank: its folder and its record."""

    folder: Path
    record: dict[str, Any]


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small run's data."""
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="session")
def options(small_folder: Path) -> dict[str, Any]:
    """The small run's options."""
    given = OWNER.small.options(small_folder)
    unknown = sorted(set(given) - set(DECLARED))
    if unknown:
        pytest.fail(
            f"tests/small.py uses {', '.join(unknown)}, which src/options.py does not declare: "
            "rewrite it for your data (docs/model.md)",
            pytrace=False,
        )
    return given


@pytest.fixture(scope="session")
def single(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ContractRun:
    folder = tmp_path_factory.mktemp("single")
    (record,) = runs.train(folder, options)
    return ContractRun(folder, record)


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_sample_reaches_one_rank(
    world_size: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """Several ranks get the same samples as one rank, and a few repeated ones in the last batch."""
    one = runs.loaders(tmp_path / "one", options, 1)
    many = runs.loaders(tmp_path / "many", options, world_size)
    for split in ("train", "val"):
        total, given = one[split].total(), many[split].total()
        missing = (one[split] - many[split]).total()
        assert total, f"the {split} loader has no tensor whose first dimension counts samples"
        assert missing < world_size, (
            f"{missing} samples of {split} reach no rank of {world_size}, or a stream draws other "
            "random numbers on each rank: draw them from the row's number, or let tests/small.py "
            "turn them off"
        )
        assert given < total + world_size, (
            f"{split} has {total} samples, by the most frequent length of each batch's tensors; "
            f"{world_size} ranks together got {given}"
        )


def test_the_ranks_agree(options: dict[str, Any], tmp_path: Path) -> None:
    """Two ranks get different batches, and end with the same weights and metrics."""
    first, second = runs.train(tmp_path, options, world_size=2)
    assert not set(first["batches"]) & set(second["batches"])
    assert first["last"] == second["last"], "weights at the end of training"
    assert first["best"] == second["best"], "weights that were tested"
    advice = (
        "log metrics that are summed over the ranks: torchmetrics with collectives.sum_over_ranks, "
        "or sync_dist=True"
    )
    assert evaluated(first) == evaluated(second), advice


def evaluated(record: dict[str, Any]) -> list[dict[str, float]]:
    """Metrics of each validation and of the test; those of training may differ between ranks."""
    return [
        {name: value for name, value in metrics.items() if not name.startswith("train")}
        for metrics in (*record["validated"], record["metrics"])
    ]


def test_a_resumed_run_ends_as_an_uninterrupted_one(
    options: dict[str, Any], single: ContractRun, tmp_path: Path
) -> None:
    """Kills the run in the middle of the second epoch, or early if loaders resume only there."""
    uninterrupted = single.record
    batches, epochs = len(uninterrupted["batches"]), len(uninterrupted["validated"])
    assert epochs >= 2 and batches >= 12, "tests/small.py: train two epochs of six batches or more"
    per_epoch = batches // epochs
    exact = uninterrupted["exact"]
    options = {**options, "checkpoint_steps": 1} if exact else options
    runs.train(tmp_path, options, kill_at=per_epoch + (3 if exact else 2))
    (resumed,) = runs.train(tmp_path, options)
    line = re.search(r"resume: from .*, step (\d+) of", resumed["log"])
    assert line and int(line[1]) >= per_epoch + exact, resumed["log"]
    last_batches = uninterrupted["batches"][-len(resumed["batches"]) :]
    assert resumed["batches"] == last_batches, "other batches, or another order"
    for key in ("last", "best", "metrics"):
        assert resumed[key] == uninterrupted[key], f"{key} differ"


def test_the_metrics_that_options_py_names_are_there(single: ContractRun) -> None:
    monitor, log = OPTIONS.MONITOR, single.record["log"]
    assert OPTIONS.MODE in ("max", "min")
    for metrics in single.record["validated"]:
        assert monitor in metrics, f"validation logs no {monitor}"
        assert math.isfinite(metrics[monitor]), f"{monitor} is {metrics[monitor]}"
    for metric in OPTIONS.METRICS:
        assert metric != "train/loss" or logs_train_loss(single), (
            "training_step returns no loss, so METRICS of options.py has to leave out train/loss, "
            'or the model logs it: self.log("train/loss", ...)'
        )
        assert re.search(metric_regex(metric), log, re.M), f"{metric} is declared, never printed"
    logged = single.record["validated"][-1]
    # Lightning repeats what is logged by step and by epoch under a name that no line prints.
    forked = {name for name in logged if f"{name}_step" in logged or f"{name}_epoch" in logged}
    undeclared = set(logged) - forked - set(OPTIONS.METRICS)
    assert not undeclared, f"{sorted(undeclared)}: logged; name them in METRICS of options.py too"
    name, _, value = log.splitlines()[-1].rpartition(" ")
    assert name_in_test(monitor, [name]), log[-2000:]
    assert re.fullmatch(r"-?\d+\.\d{4}", value), log[-2000:]


def logs_train_loss(run: ContractRun) -> bool:
    """Whether a step returned a loss, which every run then prints, or the model logs one."""
    printed = re.search(metric_regex("train/loss"), run.record["log"], re.M)
    return bool(printed) or any(loss is not None for loss in run.record["losses"])


def test_the_best_weights_are_tested_and_saved(single: ContractRun) -> None:
    """`model.load` returns the network, or a tuple that begins with it, with the best weights."""
    values = [metrics[OPTIONS.MONITOR] for metrics in single.record["validated"]]
    best = values.index(max(values) if OPTIONS.MODE == "max" else min(values))
    trained = single.record["best"]
    assert trained == single.record["weights"][best], f"epoch {best + 1} was best, of {values}"
    loaded = OWNER.model.load(single.folder / "outputs" / "model")
    network = loaded if isinstance(loaded, torch.nn.Module) else loaded[0]
    assert not network.training, "load() returns a network in training mode: call eval()"
    saved = recording.digests(network.state_dict())
    assert saved, "the network of load() has no weights"
    for name, digest in saved.items():
        same_name = [key for key in trained if key == name or key.endswith(f".{name}")]
        assert digest in [trained[key] for key in same_name], f"{name} is not what was trained"


def test_a_trained_model_answers(single: ContractRun) -> None:
    """predict.py answers the project's sample, and each process gives the same answer."""
    first, second = runs.sample_answers(single.folder)
    assert first.strip(), "predict.py --sample prints nothing"
    assert first == second, (
        "two processes answer differently: draw nothing at random, and make no feature of hash(), "
        "which differs between processes, or of the order of a set"
    )


def another(name: str, small_folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The option with a value other than its default and the small run's."""
    if given := OWNER.small.changed(name, small_folder):
        return given
    value = options.get(name, DECLARED[name].default)
    if isinstance(value, list | tuple) and value:
        return {name: [*value[:-1], other_value(name, value[-1])]}
    if isinstance(value, dict) and value:
        key, last = [*value.items()][-1]
        return {name: {**value, key: other_value(name, last)}}
    return {name: other_value(name, value)}


def other_value(name: str, value: Any) -> Any:
    """The other boolean, another choice, a larger or smaller number."""
    kind = DECLARED[name].type
    if isinstance(value, bool):
        return not value
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    if isinstance(value, int):
        return max(value // 2, 1) if value > 1 else value + 1
    if isinstance(value, float):
        return min(8 * value, 0.9) if 0 < value < 0.9 else value / 2 or 0.5
    raise AssertionError(f"tests/small.py: let changed() return another value of {name}, a text")


@pytest.mark.parametrize("name", tried_options())
def test_every_option_changes_something(
    name: str, options: dict[str, Any], small_folder: Path, single: ContractRun, tmp_path: Path
) -> None:
    """Each option changes batches, losses, metrics, weights or files."""
    (changed,) = runs.train(tmp_path, {**options, **another(name, small_folder, options)})
    recorded = single.record.keys() - {"log"}
    differing = [key for key in recorded if changed[key] != single.record[key]]
    assert differing, (
        f"--{name} changes nothing here; use it, remove it, or name it in ELSEWHERE of "
        "tests/small.py, as one that only predict.py or draw() uses"
    )


def test_every_option_of_training_is_read() -> None:
    """src/ or `Run` reads it: an update may bring an option that train.py lacks."""
    read: set[str] = set()
    files = [path for path in project.find().src.glob("*.py") if path.name != "options.py"]
    files.append(Path(run.__file__))
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                read.add(node.attr)  # training.epochs
            elif isinstance(node, ast.Constant):
                read.add(str(node.value))  # options["epochs"]
    common = {field.name for field in fields(TrainerOptions)}
    unread = sorted(common - read)
    assert not unread, f"no file of src/ reads {', '.join(unread)}; use it in train.py"


def test_the_job_passes_preflight() -> None:
    """Preflight, without AWS and a package index, finds no error.

    ``ACCEPTED`` in tests/small.py may list keys of errors to accept, as ``--accept`` does.
    """
    pytest.importorskip("boto3", reason="the launcher's packages are not installed")
    from smlightning_sagemaker import findings, preflight
    from smlightning_sagemaker.job import job

    this = project.find()
    found, request = preflight.offline_checks(job.load(this.job_file, this), this)
    found = findings.ordered(found, getattr(OWNER.small, "ACCEPTED", ()))
    assert request and not findings.has_errors(found), [str(finding) for finding in found]


def test_the_rehearsal_passes(options: dict[str, Any], small_folder: Path, tmp_path: Path) -> None:
    """Rehearses two hosts of one process; one host of two processes if this is not Linux."""
    pytest.importorskip("sagemaker_training", reason="the rehearsal's packages are not installed")
    hosts, processes = ("2", "1") if sys.platform == "linux" else ("1", "2")
    this = project.find()
    job = this.job_file.read_text(encoding="utf-8")
    (tmp_path / "job.toml").write_text(without_hyperparameters(job), encoding="utf-8")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "smlightning_sagemaker", "rehearse", "--job"]
    command += [str(tmp_path / "job.toml")]
    command += ["--hosts", hosts, "--processes", processes, "--batches", "4"]
    command += ["--distribution", "torch_distributed", "--json", str(report)]
    for name in tomllib.loads(job).get("channels", {}):
        command.append(f"--channel={name}={small_folder}")  # in place of S3's data
    command.append("--")
    for name, value in options.items():
        if name != "epochs":
            command += [f"--{name}", str(value)]
    ended = subprocess.run(command, cwd=this.root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    checks = json.loads(report.read_text(encoding="utf-8"))["checks"]
    verdicts = {check["name"]: check["verdict"] for check in checks}
    assert verdicts["data-divided"] not in ("failed", "skipped")


def without_hyperparameters(job: str) -> str:
    """job.toml without its hyperparameters, which belong to other data than the small run's."""
    return re.sub(r"(?m)^\[hyperparameters\].*\n(?:(?!\[).*\n)*", "", job)
