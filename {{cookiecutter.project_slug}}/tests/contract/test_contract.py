"""What train.py, launch/ and rehearsal/ rely on, tried on whatever data.py and model.py hold.

tests/small.py says which run is tried: rewrite it with your data.py and model.py, and leave this folder as it is.
"""

import json
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

import data
import model
import small
from contract import runs
from options import METRICS, MODE, MONITOR, OPTIONS, DataOptions, ModelOptions
from runtime import command_line
from runtime.report import metric_regex, of_the_test

PROJECT = Path(data.__file__).parent.parent
DECLARED = command_line.declared(OPTIONS)
OWN = sorted({each.name for cls in (DataOptions, ModelOptions) for each in fields(cls)} - small.ELSEWHERE.keys())


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small run's data lies."""
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="session")
def options(place: Path) -> dict[str, Any]:
    return small.options(place)


@pytest.fixture(scope="session")
def alone(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The small run, uninterrupted, on one rank: its folder, and what it recorded."""
    folder = tmp_path_factory.mktemp("alone")
    (record,) = runs.train(folder, options)
    return folder, record


def test_every_sample_reaches_one_rank(options: dict[str, Any], tmp_path: Path) -> None:
    """The ranks' batches together are those of one rank; a filler may even out the last."""
    one = runs.loaders(tmp_path / "1", options, 1)
    for world_size in (2, 3):
        many = runs.loaders(tmp_path / str(world_size), options, world_size)
        for split in ("train", "val"):
            assert one[split], f"the {split} loader gave no tensor with samples along its first dimension"
            missing, given = (one[split] - many[split]).total(), many[split].total()
            assert missing < world_size, f"{missing} samples of {split} reach no rank of {world_size}"
            assert given < one[split].total() + world_size, (
                f"{one[split].total()} samples of {split}, and {world_size} ranks together were given {given}"
            )


def test_the_ranks_agree(options: dict[str, Any], tmp_path: Path) -> None:
    """Two ranks see different batches, end with the same weights, and report the same metrics."""
    first, second = runs.train(tmp_path, options, world_size=2)
    assert not set(first["batches"]) & set(second["batches"])
    assert first["last"] == second["last"] and first["best"] == second["best"]
    tested = [{k: v for k, v in rank["metrics"].items() if not k.startswith("train")} for rank in (first, second)]
    assert first["validated"] == second["validated"] and tested[0] == tested[1], (  # a training metric is a rank's own
        "log metrics that are summed over the ranks: torchmetrics with ranks.sum_over_ranks, or sync_dist=True"
    )


def test_a_resumed_run_ends_as_an_uninterrupted_one(
    options: dict[str, Any], alone: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Killed in the middle of the second epoch; at its beginning where the loader cannot start in the middle."""
    batches = len(alone[1]["batches"])
    assert len(alone[1]["validated"]) >= 2 and batches >= 12, "small.py: two epochs with six batches or more, please"
    per_epoch = batches // len(alone[1]["validated"])
    exact = hasattr(data.Data(**command_line.select(DataOptions, command_line.complete(OPTIONS, options))), "start")
    often = {"checkpoint_steps": 1} if exact else {}
    runs.train(tmp_path, {**options, **often}, kill_at=per_epoch + (3 if exact else 2))
    (resumed,) = runs.train(tmp_path, {**options, **often})
    said = re.search(r"resume: from .*, step (\d+) of", resumed["log"])
    assert said and int(said[1]) >= per_epoch + exact, resumed["log"]
    assert resumed["batches"] == alone[1]["batches"][-len(resumed["batches"]) :], "other batches, or another order"
    for what in ("last", "best", "metrics"):
        assert resumed[what] == alone[1][what], f"{what} differ"


def test_the_metrics_that_options_py_names_are_there(alone: tuple[Path, dict[str, Any]]) -> None:
    _, record = alone
    assert MODE in ("max", "min")
    assert all(MONITOR in validated for validated in record["validated"]), f"validation logs no {MONITOR}"
    values = [validated[MONITOR] for validated in record["validated"]]
    assert all(map(math.isfinite, values)), f"{MONITOR} is {values}"
    for metric in METRICS:
        assert re.search(metric_regex(metric), record["log"], re.M), f"{metric} is declared and never printed"
    monitored = of_the_test(MONITOR)
    assert re.fullmatch(rf"{monitored} -?\d+\.\d{{4}}", record["log"].splitlines()[-1]), record["log"][-2000:]


def test_the_best_weights_are_tested_and_saved(alone: tuple[Path, dict[str, Any]]) -> None:
    """`model.load` gives the network, first if it gives more, with the weights of the best epoch."""
    folder, record = alone
    values = [validated[MONITOR] for validated in record["validated"]]
    best = values.index(max(values) if MODE == "max" else min(values))
    assert record["best"] == record["weights"][best], f"epoch {best + 1} was best, of {values}"
    loaded = model.load(folder / "outputs" / "model")
    network = loaded if isinstance(loaded, torch.nn.Module) else loaded[0]
    assert not network.training, "load() gives a network in evaluation mode"
    mine = runs.digests(network.state_dict())
    assert mine
    for name, digest in mine.items():
        trained = [d for key, d in record["best"].items() if key == name or key.endswith(f".{name}")]
        assert digest in trained, f"{name} is not what was trained"


def test_a_trained_model_answers(alone: tuple[Path, dict[str, Any]]) -> None:
    """The rehearsal asks for the same, with the project's own sample."""
    first, second = (runs.sample_answers(alone[0]) for _ in range(2))
    assert first.strip() and first == second


def another(name: str, place: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The option with a value that is neither its default nor the small run's."""
    if given := small.changed(name, place):
        return given
    value, kind = options.get(name, DECLARED[name].default), DECLARED[name].type
    if isinstance(value, bool):
        return {name: not value}
    if isinstance(value, list | tuple) and value:
        return {name: [*value[:-1], *another(name, place, {name: value[-1]}).values()]}
    if get_origin(kind) is Literal:
        return {name: next(choice for choice in get_args(kind) if choice != value)}
    if isinstance(value, int):
        return {name: max(value // 2, 1) if value > 1 else value + 1}
    if isinstance(value, float):
        return {name: min(8 * value, 0.9) if 0 < value < 0.9 else value / 2 or 0.5}
    raise AssertionError(f"tests/small.py: let changed() give another value of {name}, a text")


@pytest.mark.parametrize("name", OWN)
def test_every_option_changes_something(
    name: str, options: dict[str, Any], place: Path, alone: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Batches, losses, metrics, weights or files; an option that changes none of them reaches nothing."""
    (changed,) = runs.train(tmp_path, {**options, **another(name, place, options)})
    same = [what for what in alone[1] if what != "log" and changed[what] == alone[1][what]]
    assert len(same) < len(alone[1]) - 1, f"--{name} changes nothing; use it, or remove it"


@pytest.mark.skipif(not (PROJECT / "launch").is_dir(), reason="the project has no launch/")
def test_the_job_passes_preflight() -> None:
    """As far as it can be judged without an account and an index of packages.

    ``ACCEPTED`` in tests/small.py, where it is, names keys whose refusal you know to be wrong, as ``--accept`` does.
    """
    from launch import findings, job, preflight

    found, made = preflight.offline_checks(job.load(PROJECT / "job.toml"))
    found = findings.ordered(found, getattr(small, "ACCEPTED", ()))
    assert made and not findings.refused(found), [str(finding) for finding in found]


@pytest.mark.skipif(not (PROJECT / "rehearsal").is_dir(), reason="the project has no rehearsal/")
def test_the_rehearsal_passes(options: dict[str, Any], place: Path, tmp_path: Path) -> None:
    hosts = "2" if sys.platform == "linux" else "1"
    pairs = [word for name, value in options.items() if name != "epochs" for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "rehearsal", "--hosts", hosts, "--processes", "1" if hosts == "2" else "2"]
    command += ["--distribution", "torch_distributed", "--batches", "4", "--json", str(tmp_path / "report.json")]
    job = (PROJECT / "job.toml").read_text(encoding="utf-8")
    command += [f"--channel={name}={place}" for name in tomllib.loads(job).get("channels", {})]  # not S3's
    table = re.compile(r"^\[hyperparameters\].*\n(?:(?!\[).*\n)*", re.M)  # of other data than the small run's
    (tmp_path / "job.toml").write_text(table.sub("", job), encoding="utf-8")
    command += ["--job", str(tmp_path / "job.toml")]
    found = subprocess.run([*command, "--", *pairs], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert verdicts["data-divided"] not in ("failed", "skipped")
