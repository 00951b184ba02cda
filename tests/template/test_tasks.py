"""A project with a language model trains, and keeps what every project promises."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import forked
from projects import Project, bake
from rehearsals import rehearse, size, verdicts
from smlightning_sagemaker.testing.processes import free_port

RUNS = (("bytes", 0), ("llama", 0), ("llama", 4), ("gpt2", 4))  # LoRA's rank, or 0
PROMISES = (
    "reaches_one_rank[2] or ranks_agree or resumed_run or metrics_that or best or answers or width"
)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a language model."""
    return bake(tmp_path_factory.mktemp("task"), task="language-model")


def test_the_projects_own_tests_and_its_contract_pass(writer: Project) -> None:
    chosen = f"example or {PROMISES}"
    writer.run("python", "-m", "pytest", "-n", "0", "tests", "-k", chosen)


@pytest.mark.long
def test_a_lost_host_resumes_to_equal_weights(writer: Project, texts: Path, tmp_path: Path) -> None:
    """Sharded on two hosts, of which the second is killed."""
    command = [*size(2, 1, "torch_distributed"), "--lose-host", "2", "--", "--strategy", "fsdp"]
    command += ["--dataset", str(texts), "--width", "32", "--max_length", "64"]
    report = rehearse(writer, tmp_path, *command, "--batch_size", "1")
    of_checks = verdicts(report)
    assert report["exit_status"] == 0 and set(of_checks.values()) == {"passed"}, report["output"]
    assert {"resumes-from-checkpoint", "weights-as-undisturbed"} <= of_checks.keys()
    assert "test/bits_per_byte" in report["ranks"][0]["metrics"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files of plain text, from which windows are made in no time."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [f"line {number} of the text, which goes on and on" for number in range(200)]
    for number in range(10):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::10]), encoding="utf-8")
    return folder


@pytest.mark.long
def test_fsdp_has_the_numbers_of_ddp(writer: Project, texts: Path, tmp_path: Path) -> None:
    """On two ranks: the byte transformer, and a Llama and a GPT-2, whole and by LoRA."""
    place = writer.path / "tests" / "example" / "conftest.py"
    make_checkpoint = runpy.run_path(str(place))["make_checkpoint"]
    models = {
        "bytes": {"width": 32},
        "llama": {"model_name": make_checkpoint(tmp_path / "llama", "llama")},
        "gpt2": {"model_name": make_checkpoint(tmp_path / "gpt2", "gpt2")},
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
    """Train in ``folder`` with each name, port and options; return rank 0's outputs."""
    code = f"import os; os.chdir({str(folder)!r}); import causal_runs; causal_runs.main()"
    environment = project.environment(project.path / "src", Path(__file__).parent)
    said = forked.run_on_ranks(code, folder, environment, 2, json.dumps(trainings))
    _, *parts = said[0].split("run of ")
    return {part.partition("\n")[0]: part for part in parts}
