"""The other task than the default: a project of it trains, and keeps what every project promises.

What it shares with the default one is tested there; the files that differ are named in
test_template.py.
"""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import forked
from projects import Project, bake
from rehearsals import rehearse, size, verdicts
from smlightning.testing.processes import free_port

RUNS = (("bytes", 0), ("llama", 0), ("llama", 4), ("gpt2", 0), ("gpt2", 4))  # and LoRA's rank
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("distribution", "strategy"),
    [
        ("torch_distributed", "ddp"),
        ("torch_distributed", "fsdp"),
        ("pytorchddp", "ddp"),
        ("smddp", "ddp"),
    ],
)
def test_it_is_rehearsed_under_each_launcher(
    distribution: str, strategy: str, writer: Project, texts: Path, tmp_path: Path
) -> None:
    """On 2 hosts × 2 processes, whole and sharded; smddp's is the stand-in, and carries no fsdp."""
    command = [*size(2, 2, distribution), "--", "--dataset", str(texts), "--strategy", strategy]
    command += ["--width", "32", "--max_length", "64", "--batch_size", "4", "--max_steps", "6"]
    report = rehearse(writer, tmp_path, *command)
    assert report["exit_status"] == 0 and report["ok"], report["output"]
    assert set(verdicts(report).values()) == {"passed"}
    ranks = report["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert len({rank["weights"] for rank in ranks}) == 1
    assert "test/bits_per_byte" in ranks[0]["metrics"]
    assert ("SMDDP" in report["stubs"]) == (distribution == "smddp")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files of plain text, from which windows are made in no time."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [f"line {number} of the text, which goes on and on" for number in range(200)]
    for number in range(10):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::10]), encoding="utf-8")
    return folder


@pytest.mark.long
def test_it_is_sharded_with_the_numbers_of_ddp(
    writer: Project, texts: Path, tmp_path: Path
) -> None:
    """The byte transformer, and a Llama and a GPT-2, all of them or by LoRA, on two ranks."""
    place = writer.path / "tests" / "example" / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_of_the_task", place)
    assert spec and spec.loader
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    models = {
        "bytes": {"width": 32},
        "llama": {"model_name": fixtures.make_checkpoint(tmp_path / "llama", "llama")},
        "gpt2": {"model_name": fixtures.make_checkpoint(tmp_path / "gpt2", "gpt2")},
    }
    options = {"dataset": str(texts), "max_length": 64, "log_every": 1, "batch_size": 4}
    options["checkpoint_steps"] = 3
    trainings = []
    for name, lora_rank in RUNS:
        for strategy in ("ddp", "fsdp"):
            chosen = {**options, **models[name], "lora_rank": lora_rank, "strategy": strategy}
            label = f"{name}-{lora_rank}-{strategy}"
            trainings.append((label, free_port(), {**chosen, "max_steps": 6}))
    middle = {"resume": "llama-4-fsdp/checkpoints/*-step000003-*.ckpt"}
    resumed = {**options, **models["llama"], "lora_rank": 4, "max_steps": 6, **middle}
    trainings.append(("ddp", free_port(), {**resumed, "strategy": "ddp"}))
    trainings.append(("fsdp", free_port(), {**resumed, "strategy": "fsdp"}))
    logs = on_two_ranks(writer, tmp_path, trainings)
    for name, lora_rank in RUNS:
        ddp, fsdp = (logs[f"{name}-{lora_rank}-{strategy}"] for strategy in ("ddp", "fsdp"))
        assert len(losses(ddp)) == 6
        assert losses(fsdp) == pytest.approx(losses(ddp), abs=2e-5), name
    for name in ("llama", "gpt2"):
        assert gap(tmp_path / f"{name}-4-ddp", tmp_path / f"{name}-4-fsdp") < 1e-5
    assert gap(tmp_path / "fsdp", tmp_path / "llama-4-fsdp") == 0, "resumed exactly"
    assert gap(tmp_path / "ddp", tmp_path / "llama-4-fsdp") < 1e-5


def gap(*folders: Path) -> float:
    """The largest difference between two adapters' weights."""
    one, other = (load_file(folder / "model/adapter_model.safetensors") for folder in folders)
    assert one.keys() == other.keys() and len(one) >= 16
    return float(max(abs(one[name] - other[name]).max() for name in one))


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
    statuses, said = forked.wait_for_all(ranks, 300)
    assert statuses == (0, 0), said
    _, *parts = said[0].split("run of ")
    return {part.partition("\n")[0]: part for part in parts}
