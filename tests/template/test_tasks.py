"""The other task than the default: a project of it trains, and keeps what every project promises.

What it shares with the default one is tested there; the files that differ are named in
test_template.py.
"""

import re
from pathlib import Path

import pytest

from projects import Project, bake

PROMISES = "reaches_one or ranks_agree or resumed_run or metrics_that or best or answers or width"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a language model."""
    return bake(tmp_path_factory.mktemp("task"), task="language-model")


def test_a_language_model_keeps_the_contract(writer: Project) -> None:
    command = ["python", "-m", "pytest", "-n", "0", "tests/test_contract.py", "-k", PROMISES]
    ended = writer.run(*command)
    assert re.search(r"\b8 passed", ended.stdout), ended.stdout


def test_the_language_models_own_tests_pass(writer: Project) -> None:
    writer.run("python", "-m", "pytest", "-n", "0", "tests/example")


def test_it_is_sharded_with_the_numbers_of_ddp(writer: Project, tmp_path: Path) -> None:
    lines = [f"line {number} of the text, which goes on and on" for number in range(200)]
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::10]), encoding="utf-8")
    options = ["--dataset", str(folder), "--max_length", "64", "--width", "32", "--log_every", "1"]
    options += ["--max_steps", "8", "--batch_size", "4"]
    losses = {}
    for strategy in ("ddp", "fsdp"):
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
        output = ["--strategy", strategy, "--output_dir", str(tmp_path / strategy)]
        said = writer.run(*torchrun, "2", "src/train.py", *options, *output).stdout
        losses[strategy] = [float(loss) for loss in re.findall(r"train/loss=(\S+)", said)]
    assert len(losses["ddp"]) == 8
    assert losses["fsdp"] == pytest.approx(losses["ddp"], abs=2e-5)
