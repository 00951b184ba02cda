"""The other task than the default: a project of it trains, and keeps what every project promises.

What it shares with the default one is tested there; the files that differ are named in
test_template.py.
"""

import json
import os
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


SHARDED = """
import json, sys
from pathlib import Path
from smlightning.testing import runs
for strategy in ("ddp", "fsdp"):
    options = {**json.loads(sys.argv[2]), "strategy": strategy}
    print("strategy:", strategy)
    print(runs.train(Path(sys.argv[1], strategy), options, world_size=2)[0]["log"])
"""


def test_it_is_sharded_with_the_numbers_of_ddp(writer: Project, tmp_path: Path) -> None:
    lines = [f"line {number} of the text, which goes on and on" for number in range(200)]
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::10]), encoding="utf-8")
    options = {
        "dataset": str(folder),
        "max_length": 64,
        "width": 32,
        "log_every": 1,
        "max_steps": 8,
        "batch_size": 4,
    }
    command = ["python", "-c", SHARDED, str(tmp_path), json.dumps(options)]
    said = writer.run(*command, PYTHONPATH=os.pathsep.join((".", "src", "tests"))).stdout
    ddp, fsdp = (
        [float(loss) for loss in re.findall(r"train/loss=(\S+)", of_strategy)]
        for of_strategy in said.split("strategy: fsdp")
    )
    assert len(ddp) == 8
    assert fsdp == pytest.approx(ddp, abs=2e-5)
