"""Each wire of a distributed job, cut on purpose in a stranger's code: the rehearsal's check of that name sees it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Project
from test_rehearsal import rehearse

WIRES = {  # wire: launcher, the check that has to fail, and a word of its detail
    "none": ("smddp", None, ""),
    "rank-swapped": ("pytorchddp", "node-ranks", "rank 1 is on host 1"),
    "lightning-environment": ("pytorchddp", "node-ranks", "rank 1 on host 2 says node rank 0"),
    "environment-torn-down": ("pytorchddp", "hosts-succeeded", "KeyError: 'WORLD_SIZE'"),
    "prepare-data-everywhere": ("torch_distributed", "prepare-data-once-per-node", "2 times"),
    "group-around-prepare-data": ("smddp", "smddp-contract", "new_group()"),
    "average-instead-of-sum": ("smddp", "smddp-contract", "ReduceOp"),
    "collective-averages": ("torch_distributed", "hosts-succeeded", "all-reduce over 2 ranks gave 1.5 to 1.5"),
    "weights-drift": ("torch_distributed", "weights-identical", "on ranks [1]"),
    "metrics-not-reduced": ("pytorchddp", "metrics-identical", "test/loss"),
    "every-rank-saves-safetensors": ("pytorchddp", "one-writer", "rank 1 wrote"),
    "every-rank-saves": ("pytorchddp", "one-writer", "rank 1 wrote"),
    "every-rank-alone": ("torch_distributed", "world-size", "1 on 2 ranks; expected 2"),
}


@pytest.fixture(scope="module")
def stranger(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of somebody else's code, beside our dist.py; its name has a space."""
    folder = tmp_path_factory.mktemp("strangers") / "other code"
    shutil.copytree(Path(__file__).parent / "stranger", folder)
    for path in (project.path / "src").glob("*.py"):  # dist.py and what it imports
        if not (folder / path.name).exists() and path.name != "predict.py":
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def snippet(project: Project, stranger: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run shows both faults of AWS's LightningEnvironment snippet."""
    return run(project, stranger, "pytorchddp", "lightning-environment", tmp_path_factory.mktemp("snippet"))


def run(project: Project, stranger: Path, distribution: str, wire: str, tmp_path: Path) -> dict[str, Any]:
    options = ["--hosts", "2", "--processes", "1", "--distribution", distribution, "--source-dir", str(stranger)]
    return rehearse(project, tmp_path, *options, "--", "--wire", wire)


@pytest.mark.parametrize("wire", WIRES)
def test_a_cut_wire_is_seen(
    wire: str, project: Project, stranger: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    distribution, name, word = WIRES[wire]
    if wire in ("lightning-environment", "environment-torn-down"):
        report = request.getfixturevalue("snippet")
    else:
        report = run(project, stranger, distribution, wire, tmp_path)
    failed = {check["name"]: check["detail"] for check in report["checks"] if check["verdict"] == "failed"}
    assert report["ok"] == (name is None), report["output"]
    assert word in failed[name] if name else not failed, (failed, report["output"])
