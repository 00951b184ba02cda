"""A Hugging Face checkpoint is read, never executed, and rejected with an error."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import data
import model
from smlightning import pretrained
from smlightning.errors import UserError
from smlightning.outline import outline
from smlightning.pretrained import PretrainedTokenizer

CLASSIFIER = "AutoModelForSequenceClassification"


def test_a_checkpoints_own_greatest_length_holds(tiny_bert: str) -> None:
    ids, lengths = PretrainedTokenizer(tiny_bert).encode(["a" * 9999], 9999)
    assert len(ids) == 512 and lengths.tolist() == [512]


def test_a_network_is_read_where_another_device_is_the_default(tiny_bert: str) -> None:
    """transformers would take a default GPU for a device map, and require accelerate."""
    with torch.device("meta"):
        net = pretrained.network(CLASSIFIER, tiny_bert, num_labels=2)
    assert {parameter.device.type for parameter in net.parameters()} == {"cpu"}
    assert net.training, "from_pretrained gives evaluation mode"
    assert net.config.num_labels == 2


def test_a_classifier_of_images_needs_no_tokenizer(tmp_path: Path) -> None:
    kind, trained = "AutoModelForImageClassification", tmp_path / "trained"
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}
    config = transformers.ResNetConfig(layer_type="basic", num_labels=3, **sizes)
    getattr(transformers, kind).from_config(config).save_pretrained(tmp_path)
    pretrained.classifier(str(tmp_path), ["b", "a"], kind=kind).save_pretrained(trained)
    assert pretrained.load_classifier(trained, kind)[1] == ["b", "a"]
    with pytest.raises(FileNotFoundError):  # transformers would search the hub
        pretrained.load_classifier(Path("no-such-owner/no-such-model"), kind)


def test_weights_that_are_no_safetensors_are_rejected(tiny_bert: str, tmp_path: Path) -> None:
    net = pretrained.network(CLASSIFIER, tiny_bert, num_labels=2)
    net.config.save_pretrained(tmp_path)
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no file named model\.safetensors"):
        pretrained.network(CLASSIFIER, str(tmp_path))


def test_an_outline_of_a_checkpoint_has_its_shapes_and_reads_no_weights(tiny_bert: str) -> None:
    shutil.copytree(tiny_bert, "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    whole = pretrained.network(CLASSIFIER, tiny_bert, num_labels=4)
    with outline():
        shapes = pretrained.network(CLASSIFIER, "bare", num_labels=4)
    described = [
        [(name, p.shape, p.dtype) for name, p in net.named_parameters()] for net in (whole, shapes)
    ]
    assert described[0] == described[1]
    assert all(parameter.is_meta for parameter in shapes.parameters())
    assert shapes.training and shapes.config.num_labels == 4
    for (name, buffer), (_, other) in zip(
        whole.named_buffers(), shapes.named_buffers(), strict=True
    ):
        assert torch.equal(buffer, other), name


USES: dict[str, Callable[[str], object]] = {
    "predict": lambda folder: model.load(Path(folder)),
    "tokenizer": data.tokenizer,
    "network": lambda folder: pretrained.network(CLASSIFIER, folder),
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
        pretrained.network(CLASSIFIER, "adapted", num_labels=2)


def test_a_checkpoint_without_a_tokenizer_is_an_error(tiny_bert: str) -> None:
    """transformers would build one with five tokens, and every token would be unknown."""
    Path("bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        Path("bare", name).write_bytes(Path(tiny_bert, name).read_bytes())
    with pytest.raises(UserError) as caught:
        PretrainedTokenizer("bare")
    assert "'bare'" in caught.value.problem and "tokenizer.json" in caught.value.cure
