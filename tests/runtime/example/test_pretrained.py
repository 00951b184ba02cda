"""A Hugging Face checkpoint is read, never executed, and rejected with an error."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import data
import model
from smlightning.errors import UserError
from smlightning.pretrained import PretrainedTokenizer


def test_a_checkpoints_own_greatest_length_holds(tiny_bert: str) -> None:
    ids, lengths = PretrainedTokenizer(tiny_bert).encode(["a" * 9999], 9999)
    assert len(ids) == 512 and lengths.tolist() == [512]


def test_a_network_is_read_where_another_device_is_the_default(tiny_bert: str) -> None:
    """transformers would take a default GPU for a device map, and require accelerate."""
    with torch.device("meta"):
        net = model.build(tiny_bert, ["a", "b"])
    assert {parameter.device.type for parameter in net.parameters()} == {"cpu"}
    assert net.training, "from_pretrained gives evaluation mode"
    assert net.config.num_labels == 2


def test_weights_that_are_no_safetensors_are_rejected(tiny_bert: str, tmp_path: Path) -> None:
    net = model.build(tiny_bert, ["a", "b"])
    net.config.save_pretrained(tmp_path)
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no file named model\.safetensors"):
        model.build(str(tmp_path), ["a", "b"])


USES: dict[str, Callable[[str], object]] = {
    "predict": lambda folder: model.load(Path(folder)),
    "tokenizer": data.tokenizer,
    "network": lambda folder: model.build(folder, ["a", "b"]),
}


@pytest.mark.parametrize("use", USES)
def test_a_checkpoints_own_code_is_never_run(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would ask standard input, which has the texts to classify."""
    folder = Path("theirs")
    folder.mkdir()
    classes = {"AutoConfig": "mine.Mine", "AutoTokenizer": ["mine.Mine", None]}
    content = json.dumps({"model_type": "mine", "auto_map": classes})
    (folder / "config.json").write_text(content)
    (folder / "tokenizer_config.json").write_text(content)
    executed = Path("executed").absolute()
    (folder / "mine.py").write_text(f"open({str(executed)!r}, 'w')\nclass Mine: pass\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 9))
    with pytest.raises(UserError) as caught:
        USES[use](str(folder))
    assert "contains custom code" in caught.value.problem
    assert not executed.exists()


def test_a_checkpoint_with_an_adapter_is_rejected(tiny_bert: str) -> None:
    """transformers would have peft load it, if peft is installed."""
    shutil.copytree(tiny_bert, "adapted")
    Path("adapted", "adapter_config.json").write_text('{"megatron_core": "antigravity"}')
    with pytest.raises(UserError, match="is an adapter of peft"):
        model.build("adapted", ["a", "b"])


def test_a_checkpoint_without_a_tokenizer_is_an_error(tiny_bert: str) -> None:
    """transformers would build one with five tokens, and every token would be unknown."""
    Path("bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        Path("bare", name).write_bytes(Path(tiny_bert, name).read_bytes())
    with pytest.raises(UserError) as caught:
        PretrainedTokenizer("bare")
    assert "'bare'" in caught.value.problem and "tokenizer.json" in caught.value.hint
