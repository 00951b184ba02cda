"""The contract tests bite: one fault for each property, found by the test of that property."""

import shutil
from pathlib import Path

import pytest

from projects import Project, bake, hide

# For each property: the file, its correct text, and a fault that replaces the text.
UNDIVIDED = ("data.py", "self.trainer,", "None,")  # every rank gets everything
NOT_SUMMED = ("model.py", "self.mean_loss.compute()", "self.mean_loss.total")  # a rank's own
UNSTEADY = ("data.py", '"train", self.options.seed)', "\"train\", __import__('os').getpid())")
UNPRINTED = ("options.py", '"lr", ', '"lr", "perplexity", ')
UNLOADED = ("model.py", "pretrained.load_own(net, directory)", "str(net)")
SILENT = ("predict.py", "predictions.texts(arguments)", "[]")
HASHED = ("predict.py", "one_line(text),", "hash(text),")  # as a feature may be
UNUSED = ("model.py", "self.options.weight_decay", "0.01")
UNUSED_IN_DATA = ("data.py", "texts, self.options.max_length)", "texts, 1000)")
ONCE = ("data.py", "self.prepare_data_per_node = True", "self.prepare_data_per_node = False")
MUTANTS = [  # faults that do not hide each other share a project, and its runs
    {
        "the_ranks_agree": NOT_SUMMED,
        "the_metrics_that_options": UNPRINTED,
        "the_best_weights_are_tested_and_saved": UNLOADED,
        "a_trained_model_answers": SILENT,
        "every_option_changes_something[weight_decay]": UNUSED,
        "every_option_changes_something[max_length]": UNUSED_IN_DATA,
    },
    {
        "every_sample_reaches_one_rank[2]": UNDIVIDED,
        "a_resumed_run_ends": UNSTEADY,
        "a_trained_model_answers": HASHED,
    },
    {"the_rehearsal_passes": ONCE},
]


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of this module's own."""
    return bake(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize(
    "faults",
    [
        MUTANTS[0],
        *(pytest.param(faults, marks=pytest.mark.long) for faults in MUTANTS[1:]),  # ranks
    ],
    ids="+".join,
)
def test_each_fault_fails_the_test_of_its_property(
    contract: Project, faults: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    """Without the packages of launcher and rehearsal their tests are skipped."""
    mutant = Project(shutil.copytree(contract.path, tmp_path / "mutant"))
    for file, sound, broken in faults.values():
        path = mutant.path / "src" / file
        text = path.read_text(encoding="utf-8")
        assert sound in text, f"{file} no longer holds {sound!r}"
        path.write_text(text.replace(sound, broken), encoding="utf-8")
    only_trains = "the_rehearsal_passes" not in faults
    absent = hide(tmp_path, "boto3", "botocore", "sagemaker_training") if only_trains else {}
    chosen = " or ".join([*faults, "preflight", "rehearsal"])
    command = ["python", "-m", "pytest", "-n", "0", "tests/test_contract.py", "-rf", "-k", chosen]
    ended = mutant.run(*command, check=False, **absent)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    failed = [line for line in ended.stdout.splitlines() if line.startswith("FAILED")]
    for name in faults:
        assert any(name in line for line in failed), f"{name} did not fail\n{ended.stdout}"
    others = "2 skipped" if only_trains else "1 passed"
    assert f"{len(faults)} failed, {others}" in ended.stdout
