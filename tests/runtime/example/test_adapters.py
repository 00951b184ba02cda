"""LoRA on a classifier: its checkpoints, its saved files, and files that are rejected.

Causal models: tests/example of a language model's project, and tests/template/test_tasks.py.
"""

import copy
import io
import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import sharded_runs
import torch
from safetensors.torch import load_file, save_file

import model
import predict
import train
from small_training import same
from smlightning import adapters, files, pretrained
from smlightning.checkpoints import files as checkpoint_files
from smlightning.errors import UserError
from smlightning_sagemaker.testing.processes import run_ranks

LABELS = ["cyrillic", "greek", "latin"]
IDS = {"input_ids": torch.arange(4, 24).reshape(2, 10)}


@pytest.fixture(scope="module")
def written(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an adapter that differs from its initial values."""
    folder = tmp_path_factory.mktemp("adapter")
    net = pretrained.classifier(tiny_bert, LABELS, 4)
    for parameter in net.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    pretrained.save(net, tiny_bert, 32, folder)
    return folder


@pytest.fixture
def saved(written: Path, tmp_path: Path) -> Path:
    """A copy for a test to change."""
    return Path(shutil.copytree(written, tmp_path / "saved"))


def test_a_checkpoint_holds_only_the_trained_weights(tiny_bert: str) -> None:
    net = pretrained.classifier(tiny_bert, LABELS, 4)
    trained = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    for one in (net, copy.deepcopy(net), torch.nn.ModuleDict({"net": net})["net"]):
        state = one.state_dict()
        assert state.keys() == trained | {"base_checksum"}
        one.load_state_dict({name: tensor + 1 for name, tensor in state.items() if tensor.ndim})
        with pytest.raises(RuntimeError, match="Missing key"):
            one.load_state_dict(dict(list(state.items())[1:]))
    kinds = {name.split(".")[-2 if "classifier" in name else -3] for name in trained}
    assert kinds == {"lora_A", "lora_B", "default"}, "the head is trained whole"
    with torch.no_grad():
        next(p for p in net.parameters() if not p.requires_grad).add_(1)
    other = {**net.state_dict(), "base_checksum": torch.tensor(1)}
    with pytest.raises(UserError, match="have changed"):
        net.load_state_dict(other)


def test_a_trained_weight_is_missed_although_its_name_ends_like_a_frozen_one() -> None:
    net = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1) for name in ("head", "my_head")})
    net["head"].requires_grad_(False)
    keys = SimpleNamespace(missing_keys=["net.head.weight", "head.bias", "net.my_head.weight"])
    adapters._miss_no_base(net, keys)
    assert keys.missing_keys == ["net.my_head.weight"]


def test_peft_and_predict_py_load_the_merged_network(saved: Path, tiny_bert: str) -> None:
    from peft import AutoPeftModelForSequenceClassification
    from transformers import AutoModelForSequenceClassification

    theirs = AutoPeftModelForSequenceClassification.from_pretrained(
        saved, num_labels=3, ignore_mismatched_sizes=True
    ).eval()
    expected = theirs(**IDS).logits
    net, batch, labels = model.load(saved)
    assert labels == LABELS and type(net) is type(theirs.get_base_model())
    torch.testing.assert_close(net(**IDS).logits, expected, atol=1e-5, rtol=0)
    assert batch(["a" * 99])["input_ids"].shape[1] == 32
    # An adapter is a checkpoint like any other, and is merged when it is trained on.
    assert pretrained.tokenizer_files(str(saved))
    further = pretrained.classifier(str(saved), LABELS).eval()
    torch.testing.assert_close(further(**IDS).logits, expected, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="is an adapter already"):
        pretrained.classifier(str(saved), LABELS, 4)
    # Its head is for its labels; other labels need a new head on its base.
    with pytest.raises(UserError, match="number of labels"):
        pretrained.classifier(str(saved), LABELS[:2])
    # A whole model in the same folder replaces it, and the other way round.
    pretrained.save(further, tiny_bert, 32, saved)
    whole = AutoModelForSequenceClassification.from_pretrained(saved).eval()
    torch.testing.assert_close(whole(**IDS).logits, expected, atol=1e-5, rtol=0)
    pretrained.save(pretrained.classifier(tiny_bert, LABELS, 2), tiny_bert, 32, saved)
    assert not (saved / "model.safetensors").exists()
    with pytest.raises(UserError, match="contains the adapter's base"):
        pretrained.save(pretrained.classifier(tiny_bert, LABELS, 2), tiny_bert, 32, Path(tiny_bert))
    (name,) = predict.predict(["αβ"], predict.model_fn(saved))
    assert name


def test_an_adapter_is_not_merged_into_other_weights(tiny_bert: str, tmp_path: Path) -> None:
    """Weights of the same shapes would give wrong answers without an error."""
    base = shutil.copytree(tiny_bert, tmp_path / "theirs")
    net = pretrained.classifier(str(base), LABELS, 4)
    pretrained.save(net, str(base), 32, tmp_path / "saved")
    model.load(tmp_path / "saved")
    weights = load_file(base / "model.safetensors")
    first = next(name for name in weights if "attention" in name)
    weights[first] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="have changed"):
        model.load(tmp_path / "saved")


def changed(folder: Path, **members: Any) -> None:
    """Give an adapter's configuration these members."""
    path = folder / files.ADAPTER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def pickled(folder: Path) -> None:
    """Weights as in peft's older files: a pickle that runs code."""

    class Executes:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(folder / "executed"), "w")

    (folder / files.ADAPTER_WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Executes()))


def with_code(folder: Path) -> None:
    """A base with its own code."""
    base = folder / "theirs"
    base.mkdir()
    content = json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}})
    (base / "config.json").write_text(content)
    (base / "mine.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\nclass Mine: pass\n")
    shutil.rmtree(folder / files.ADAPTER_BASE)
    changed(folder, base_model_name_or_path=str(base))


WRONG: dict[str, Callable[[Path], None]] = {
    "megatron_core": partial(changed, megatron_core="evil.module", megatron_config={}),
    "auto_mapping": partial(
        changed, auto_mapping={"parent_library": "evil", "base_model_class": "x"}
    ),
    "is not LoRA": partial(changed, target_modules="(a+)+b"),
    "use_dora": partial(changed, use_dora=True),
    "does not fit": partial(changed, r=3),
    "is not on this machine": partial(changed, base_model_name_or_path="/nowhere/at/all"),
    "no base": partial(changed, base_model_name_or_path=None),
    "is an adapter": lambda folder: changed(folder, base_model_name_or_path=str(folder)),
    "adapter_model.safetensors": pickled,
    "contains custom code": with_code,
    "both a whole network": lambda folder: shutil.copy(
        folder / "base" / "config.json", folder / "config.json"
    ),
    "could not be read": lambda folder: (folder / "adapter_config.json").write_text("{broken"),
}


@pytest.mark.parametrize("problem", WRONG)
def test_only_a_plain_adapter_is_loaded_and_nothing_is_executed(
    problem: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 9))
    monkeypatch.syspath_prepend(str(saved))
    (saved / "evil").mkdir()
    code = f"open({str(saved / 'executed')!r}, 'w')"
    for name in ("evil/__init__.py", "evil/module.py"):
        (saved / name).write_text(code)
    WRONG[problem](saved)
    with pytest.raises(UserError, match=problem):
        model.load(saved)
    assert not (saved / "executed").exists()


def test_a_base_in_bfloat16_gives_the_numbers_of_one_in_float32(
    words: str, tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half the memory, to the last bit, also in a resumed run."""
    options = {
        "dataset": words, "data_dir": str(tmp_path / "prepared"), "max_steps": 4, "lr": 0.01,
        "model_name": tiny_bert, "lora_rank": 2, "precision": "bf16-mixed", "checkpoint_steps": 2,
    }  # fmt: skip
    bases: list[set[torch.dtype]] = []

    def shrinks(net: Any, trainer: Any) -> None:
        adapters.shrink_base(net, trainer)
        linear = [p for name, p in net.named_parameters() if ".base_layer." in name]
        bases.append({parameter.dtype for parameter in linear})
        assert all(p.dtype == torch.float32 for p in net.parameters() if p.requires_grad)

    monkeypatch.setattr(model, "shrink_base", shrinks)
    train.train(train.Options(**options, output_dir="small"))
    (middle,) = Path("small/checkpoints").glob("*-step000002-*")
    train.train(train.Options(**options, output_dir="resumed", resume=str(middle)))
    monkeypatch.setattr(model, "shrink_base", lambda *_: None)
    train.train(train.Options(**options, output_dir="large"))
    assert bases == [{torch.bfloat16}] * 2
    small, resumed, large = (
        load_file(f"{run}/model/adapter_model.safetensors") for run in ("small", "resumed", "large")
    )
    assert same(small, large) and same(resumed, large)


def test_an_adapter_is_merged_into_the_base_as_it_was_read(saved: Path, tiny_bert: str) -> None:
    weights = load_file(saved / "adapter_model.safetensors")
    trainer: Any = SimpleNamespace(precision="bf16-mixed", strategy=None)
    merged = []
    for shrunk in (False, True):
        net = pretrained.classifier(tiny_bert, LABELS, 4)
        peft.set_peft_model_state_dict(net, weights)
        if shrunk:
            adapters.shrink_base(net, trainer)
        pretrained.save(net, tiny_bert, 32, Path("merged"), merge=True)
        merged.append(load_file("merged/model.safetensors"))
    assert same(*merged)
    assert {tensor.dtype for tensor in merged[1].values()} == {torch.float32}


def test_an_adapter_whose_base_is_lost_is_saved_unmerged(
    saved: Path, tiny_bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = shutil.copytree(tiny_bert, tmp_path / "theirs")
    net = pretrained.classifier(str(base), LABELS, 4)
    peft.set_peft_model_state_dict(net, load_file(saved / "adapter_model.safetensors"))
    trainer: Any = SimpleNamespace(precision="bf16-mixed", strategy=None)
    adapters.shrink_base(net, trainer)
    shutil.rmtree(base)
    pretrained.save(net, str(base), 32, Path("unmerged"), merge=True)
    assert not Path("unmerged/model.safetensors").exists()
    adapter = "adapter_model.safetensors"
    assert same(load_file(f"unmerged/{adapter}"), load_file(saved / adapter))
    assert str(base) in capsys.readouterr().err


def without_dropout(checkpoint: str, folder: Path) -> Path:
    """A copy of a checkpoint without dropout: any number of ranks computes the same."""
    base = shutil.copytree(checkpoint, folder / "base")
    config = json.loads((base / "config.json").read_text())
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (base / "config.json").write_text(json.dumps({**config, **still}))
    return base


def test_two_sharded_ranks_train_what_one_does(words: str, tiny_bert: str, tmp_path: Path) -> None:
    base = without_dropout(tiny_bert, tmp_path)
    options = {
        "dataset": words, "data_dir": str(tmp_path / "prepared"), "max_steps": 4, "lr": 0.01,
        "model_name": str(base), "lora_rank": 2, "log_every": 1,
    }  # fmt: skip
    train.train(train.Options(**options, batch_size=16))
    sharded = {**options, "batch_size": 8, "strategy": "fsdp"}
    records = run_ranks(partial(sharded_runs.run, options=sharded), tmp_path / "ranks", 2)
    one, other = (
        load_file(folder / "outputs/model/adapter_model.safetensors")
        for folder in (Path(), tmp_path / "ranks")
    )
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, atol=1e-5, rtol=0)
    for record in records:
        assert record["held"] < 0.6 * record["elements"]
    newest = checkpoint_files.newest(tmp_path / "ranks/outputs/checkpoints")
    assert newest
    state = checkpoint_files.read(newest)
    (optimizer,) = state["optimizer_states"]
    assert len(optimizer["state"]) == len(one), "no frozen weights"
    names = checkpoint_files.companions(newest)
    shards = sum(newest.with_name(name).stat().st_size for name in names)
    assert shards < (base / "model.safetensors").stat().st_size
