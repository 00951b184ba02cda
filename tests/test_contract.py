"""The contract tests of a generated project bite: one mutant for each property, found by that property's test."""

import shutil
import sys
from pathlib import Path

import pytest
from conftest import Project, bake

# Of each property: the file, what is sound in it, and a fault in its place.
UNDIVIDED = ("data.py", "self.trainer, seed", "None, seed")  # every rank gets everything
NOT_SUMMED = ("model.py", "self.mean_loss.compute()", "self.mean_loss.total")  # a rank's own
NO_START = ("data.py", "start = self.start if split", "start = (0, 0) if split")
UNPRINTED = ("options.py", '    "lr",\n', '    "lr",\n    "perplexity",\n')
UNLOADED = ("model.py", "            net.load_state_dict(", "            str(")
SILENT = ("predict.py", "args.text += [SAMPLE] * args.sample", "")
UNUSED = ("model.py", "self.options.weight_decay", "0.01")
ONCE = ("data.py", "self.prepare_data_per_node = True", "self.prepare_data_per_node = False")
MUTANTS = [  # faults that do not hide each other share a project, and its runs
    {"every_sample_reaches_one_rank": UNDIVIDED},
    {"the_ranks_agree": NOT_SUMMED},
    {
        "a_resumed_run_ends": NO_START,
        "the_metrics_that_options": UNPRINTED,
        "a_trained_model_answers": SILENT,
        "every_option_changes_something[weight_decay]": UNUSED,
    },
    {"the_best_weights_are_tested_and_saved": UNLOADED, "the_rehearsal_passes": ONCE},
]


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of this module's own."""
    return bake(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize("faults", MUTANTS, ids="+".join)
def test_each_fault_is_found_by_the_test_of_its_property(contract: Project, faults: dict, tmp_path: Path) -> None:
    mutant = Project(shutil.copytree(contract.path, tmp_path / "mutant"))
    for file, sound, broken in faults.values():
        path = mutant.path / "src" / file
        text = path.read_text(encoding="utf-8")
        assert sound in text, f"{file} no longer holds {sound!r}"
        path.write_text(text.replace(sound, broken), encoding="utf-8")
    chosen = " or ".join("weight_decay" if "[" in name else name for name in faults)
    found = mutant.run("python", "-m", "pytest", "-n", "0", "tests/contract", "-k", chosen, "-rf", check=False)
    failed = [line for line in found.stdout.splitlines() if line.startswith("FAILED")]
    for name in faults:
        assert any(name in line for line in failed), f"{name} did not notice\n{found.stdout}{found.stderr}"


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
