"""The example's network, loss, metrics and files, however samples are padded and divided."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from smlightning.data import text
from smlightning.data.batches import GlobalBatches
from smlightning.errors import UserError
from torch.nn import functional as F

import model

BYTES = text.ByteTokenizer()


def configured(classes: int = 3, **options: Any) -> model.Model:
    torch.manual_seed(0)
    module = model.Model(**options)
    labels = [str(number) for number in range(classes)]
    trainer: Any = SimpleNamespace(datamodule=SimpleNamespace(labels=labels))
    module.trainer = trainer
    module.configure_model()
    return module


def rank_batches(texts: list[str], labels: list[int], world_size: int) -> list[dict[str, Any]]:
    """Each rank's part of one global batch."""
    parts = []
    for rank in range(world_size):
        lengths = [len(string) for string in texts]
        (batch,) = GlobalBatches(lengths, len(texts), rank, world_size)
        part = text.batch([texts[row] for row in batch.rows], BYTES, 99)
        label = torch.tensor([labels[row] for row in batch.rows])
        parts.append({**part, "label": label, "weight": batch.weight(), "scale": batch.scale})
    return parts


# The network


def test_the_logits_do_not_depend_on_padding() -> None:
    net = model.ByteCNN(5).eval()
    torch.nn.init.normal_(net.grams.weight)  # zeros would hide a wrong n-gram
    for string in ("a", "ab", "Île", "a longer text"):
        alone = net(**text.batch([string], BYTES, 99))
        together = net(**text.batch([string, "a far longer text than that one"], BYTES, 99))
        torch.testing.assert_close(alone[0], together[0])


def test_the_network_sees_the_n_grams_of_a_text_and_no_other() -> None:
    """Each of 1 to 4 bytes that begins at the mark before the text or in the text, once."""
    net = model.ByteCNN(5)
    seen: list[torch.Tensor] = []
    net.grams.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(**text.batch(["abé", "a far longer one"], BYTES, 99))
    ids = [256, *(byte + 1 for byte in "abé".encode()), 0, 0, 0]
    expected = []
    for size in range(1, 5):
        for start in range(len(ids) - 3):
            code = 0
            for number in ids[start : start + size]:
                code = code * 257 + number
            expected.append(code % net.config["buckets"] + 1)
    assert sorted(number for number in seen[0][0].tolist() if number) == sorted(expected)


# The loss and the metrics


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 5, 7])
def test_gradients_of_many_ranks_are_those_of_one(world_size: int, size: int) -> None:
    """DDP averages gradients over ranks; with weights and scale that is the mean's gradient."""
    texts = [f"{'xyz'[i % 3]} {i}" * (i + 1) for i in range(size)]
    labels = [i % 3 for i in range(size)]
    module = configured().eval()  # no dropout: its draws are another rank's

    def gradient(parts: list[dict[str, Any]]) -> torch.Tensor:
        module.zero_grad()
        losses = [module.training_step(part, 0) for part in parts]
        torch.stack(losses).mean().backward()
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    (whole,) = rank_batches(texts, labels, 1)
    mean = F.cross_entropy(module(whole), whole["label"])
    torch.testing.assert_close(module.training_step(whole, 0), mean)
    one = gradient([whole])
    many = gradient(rank_batches(texts, labels, world_size))
    torch.testing.assert_close(many, one, atol=1e-6, rtol=1e-5)


def test_fillers_are_counted_by_no_metric() -> None:
    results = []
    for world_size in (1, 4):  # 4 ranks, 3 samples: one rank has nothing but a filler
        module = configured().eval()
        for part in rank_batches(["x", "yy", "zzz"], [0, 1, 2], world_size):
            module.validation_step(part, 0)
        values = [module.mean_loss.compute(), *module.confusion.compute().flatten()]
        results.append([float(value) for value in values])
    assert results[0] == pytest.approx(results[1], abs=1e-6)


def test_linear_scaling_multiplies_the_learning_rate_by_the_ranks() -> None:
    highest = {}
    for scaling in ("none", "linear"):
        module = configured(lr=0.1, warmup_ratio=0.0, lr_scaling=scaling)
        module.trainer = SimpleNamespace(  # type: ignore[assignment]
            precision="32-true", world_size=4, estimated_stepping_batches=100
        )
        highest[scaling] = module.configure_optimizers()["optimizer"].param_groups[0]["lr"]
    assert highest == pytest.approx({"none": 0.1, "linear": 0.4})


# Its files


@pytest.mark.parametrize("kind", ["bytecnn", "tiny_bert"])
def test_what_is_saved_is_what_is_loaded(kind: str, request: pytest.FixtureRequest) -> None:
    name = kind if kind == "bytecnn" else request.getfixturevalue(kind)
    module = configured(model_name=name, max_length=20)
    module.labels = ["ελληνικά", "b", "c"]
    module.net = model.build(name, module.labels).eval()
    module.save(Path("saved"))
    net, batch, labels = model.load(Path("saved"))
    assert labels == module.labels
    texts = batch(["αβγ", "a" * 50])
    assert texts["input_ids"].shape[1] == 20
    torch.testing.assert_close(model.logits(net, texts), model.logits(module.net, texts))
    suffixes = {path.suffix for path in Path("saved").iterdir()}
    assert suffixes <= {".json", ".safetensors"}, "nothing is code"


def test_a_truncated_model_is_rejected() -> None:
    configured().save(Path("saved"))
    file = Path("saved/model.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="saved"):
        model.load(Path("saved"))


@pytest.mark.parametrize("kind", ["", "{}", '{"model_type": "bytecnn"}', '{"model_type": "x"}'])
def test_a_wrong_configuration_is_rejected(kind: str) -> None:
    Path("config.json").write_text(kind)
    with pytest.raises(UserError):
        model.load(Path())
