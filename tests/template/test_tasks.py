"""The other task than the default: a project of it trains, and keeps what every project promises.

What it shares with the default one is tested there; the files that differ are named in
test_template.py.
"""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import forked
from projects import Project, bake
from smlightning.testing.processes import free_port

CHECKPOINTS = ("llama", "gpt2")
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


def test_it_is_sharded_with_the_numbers_of_ddp(
    writer: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The byte transformer, and a Llama and a GPT-2, all of them or by LoRA, on two ranks."""
    monkeypatch.syspath_prepend(str(writer.path / "tests" / "example"))
    make_checkpoint = importlib.import_module("conftest").make_checkpoint
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [f"line {number} of the text, which goes on and on" for number in range(200)]
    for number in range(10):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::10]), encoding="utf-8")
    models = {
        "bytes": {"width": 32},
        **{kind: {"model_name": make_checkpoint(tmp_path / kind, kind)} for kind in CHECKPOINTS},
    }
    common = {"dataset": str(folder), "max_length": 64, "log_every": 1, "batch_size": 4}
    trainings = []
    for name, model in models.items():
        for rank in (0, 4) if name in CHECKPOINTS else (0,):
            for strategy in ("ddp", "fsdp"):
                chosen = {**common, **model, "lora_rank": rank, "strategy": strategy}
                label = f"{name}-{rank}-{strategy}"
                trainings.append((label, free_port(), {**chosen, "max_steps": 8 - rank}))
    logs = on_two_ranks(writer, tmp_path, trainings)
    for label, log in logs.items():
        if label.endswith("-ddp"):
            assert losses(log) and len(losses(log)) == 8 - 4 * ("-4-" in label)
            sharded = losses(logs[label.replace("-ddp", "-fsdp")])
            assert sharded == pytest.approx(losses(log), abs=2e-5), label
    for kind in CHECKPOINTS:
        one, other = (
            load_file(tmp_path / f"{kind}-4-{strategy}" / "model" / "adapter_model.safetensors")
            for strategy in ("ddp", "fsdp")
        )
        assert one.keys() == other.keys() and len(one) >= 16
        assert max(abs(one[name] - other[name]).max() for name in one) < 1e-5


def losses(log: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"train/loss=(\S+)", log)]


def on_two_ranks(
    project: Project, folder: Path, trainings: list[tuple[str, int, dict[str, Any]]]
) -> dict[str, str]:
    """What rank 0 printed of each training of a name, port and options, in ``folder``."""
    code = f"import os; os.chdir({str(folder)!r}); import causal_runs; causal_runs.main()"
    ranks = []
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        variables = {name: str(value) for name, value in place.items()}
        environment = project.environment(
            project.path / "src", Path(__file__).parent, MASTER_ADDR="127.0.0.1", **variables
        )
        log = folder / f"log-{rank}"
        ranks.append(forked.start(code, log, environment, json.dumps(trainings)))
    ended = [rank.wait(300) for rank in ranks]
    assert [status for status, _ in ended] == [0, 0], ended
    _, *parts = ended[0][1].split("training ")
    return {part.partition("\n")[0]: part for part in parts if "\n" in part}
