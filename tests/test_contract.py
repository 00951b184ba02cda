"""The contract tests of a generated project bite: one mutant for each property, found by that property's test."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import Project, bake

MUTANTS = {
    "every_sample_reaches_one_rank": ("data.py", "self.trainer, seed", "None, seed"),  # every rank gets everything
    "the_ranks_agree": ("model.py", "dist_sync_fn=ranks.sum_over_ranks", "dist_sync_fn=lambda state, group: [state]"),
    "a_resumed_run_ends": ("data.py", "start = self.start if split", "start = (0, 0) if split"),
    "the_metrics_that_options": ("options.py", '    "lr",\n', '    "lr",\n    "perplexity",\n'),
    "the_best_weights_are_tested_and_saved": ("model.py", "            net.load_state_dict(", "            str("),
    "a_trained_model_answers": ("predict.py", "softmax(1)", "softmax(1).uniform_()"),
    "every_option_changes_something": ("model.py", "self.options.weight_decay", "0.01"),
    "the_rehearsal_passes": ("data.py", "self.prepare_data_per_node = True", "self.prepare_data_per_node = False"),
}  # fmt: skip


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of this module's own, whose files its tests change."""
    return bake(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(contract: Project, name: str, tmp_path: Path) -> None:
    file, sound, broken = MUTANTS[name]
    mutant = Project(shutil.copytree(contract.path, tmp_path / "mutant"))
    path = mutant.path / "src" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(sound) >= 1, f"{file} no longer holds {sound!r}"
    path.write_text(text.replace(sound, broken), encoding="utf-8")
    chosen = "weight_decay" if name.startswith("every_option") else name
    found = mutant.run(
        "python", "-m", "pytest", "-n", "0", "tests/contract", "-k", chosen, "-rf", check=False, PATH=os.environ["PATH"]
    )
    failed = [line for line in found.stdout.splitlines() if line.startswith("FAILED")]
    assert failed and all(name in line for line in failed), found.stdout + found.stderr


def test_a_project_without_a_cluster(contract: Project, tmp_path: Path) -> None:
    """What docs/recipes.md says to delete for one GPU: the rest is trained, tested and typed without it."""
    made = Project(shutil.copytree(contract.path, tmp_path / "small"))
    (command,) = [line for line in made.read("docs/recipes.md").splitlines() if line.strip().startswith("rm -r ")]
    made.run(*command.split())
    collected = made.run("python", "-m", "pytest", "-n", "0", "--collect-only", "-q").stdout
    assert "tests/contract/test_contract.py" in collected and "error" not in collected.lower()
    made.run("python", "-m", "pytest", "-n", "0", "tests/contract", "-k", "metrics or best or rehearsal")
    environment = Path(sys.executable).parent.parent
    steps = made.run("make", "-n", "test", "lint", f"VENV={environment}", "-W", "pyproject.toml").stdout
    assert "--group rehearsal" not in steps and "--group launch" not in steps and "mypy src\n" in steps
