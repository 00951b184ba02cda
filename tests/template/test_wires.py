"""Faults in a stranger's code: each rehearsal fails the checks of its faults, and no other."""

import shutil
from pathlib import Path

import pytest

from projects import Project
from rehearsals import failed_checks, rehearse, size

# The faults of one run: the launcher, and the checks that must fail with a word of each detail.
# All but the first run are long.
RUNS = {
    "rank-swapped,data-not-divided,prepare-data-everywhere,weights-drift,metrics-not-reduced,"
    "every-rank-saves": (
        "pytorchddp",
        {
            "node-ranks": "rank 1 is on host 1",
            "data-divided": "ranks 0 and 1 both saw 16 of 16 batches",
            "prepare-data-once-per-node": "2 times",
            "weights-identical": "on ranks [1]",
            "metrics-identical": "test/loss",
            "one-writer": "rank 1 wrote",
        },
    ),
    "lightning-environment,every-rank-saves-safetensors": (  # AWS's snippet, both of its faults
        "pytorchddp",
        {
            "node-ranks": "rank 1 on host 2 reports node rank 0",
            "hosts-succeeded": "KeyError: 'WORLD_SIZE'",
            "one-writer": "rank 1 wrote",
        },
    ),
    "group-around-prepare-data": (
        "smddp",
        {
            "hosts-succeeded": "SMDDP does not support: a second process group",
            "smddp-contract": "new_group()",
        },
    ),
}


@pytest.fixture(scope="module")
def stranger(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of somebody else's code, beside our dist.py; its name has a space."""
    folder = tmp_path_factory.mktemp("strangers") / "other code"
    shutil.copytree(Path(__file__).parent / "stranger", folder)
    shutil.copy(project.path / "src" / "dist.py", folder)
    return folder


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(cut, marks=pytest.mark.long if number else [])
        for number, cut in enumerate(RUNS)
    ],
)
def test_an_injected_fault_is_found(
    cut: str, project: Project, stranger: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    distribution, expected = RUNS[cut]
    command = [*size(2, 1, distribution), "--source-dir", str(stranger)]
    report = rehearse(project, tmp_path, *command, "--", "--wires", cut, **without_sdk)
    failed = failed_checks(report)
    assert not report["ok"], report["output"]
    assert failed.keys() == expected.keys(), (failed, report["output"])
    for name, word in expected.items():
        assert word in failed[name], (name, failed, report["output"])
