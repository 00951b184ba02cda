"""The network, the loss and the metrics are what they claim, however samples are padded and divided among ranks."""

import gc
import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
import model
import train
from runtime import prepared
from runtime.batches import GlobalBatches
from runtime.checkpoints import Checkpoints
from runtime.report import UserError


def batches(texts: list[str], labels: list[int], world_size: int) -> list[dict]:
    """What each rank gets of one global batch."""
    ids, lengths = data.tokenizer("bytecnn").encode(texts, 99)
    starts = lengths.cumsum() - lengths
    prepared.write(Path("train"), [{"ids": ids, "starts": starts, "lengths": lengths, "classes": np.array(labels)}])
    prepared.write(Path("rows"), [{"train": np.arange(len(texts))}])
    padded = data.BatchDataset(prepared.Rows(Path(), "train"), 0)
    orders = [GlobalBatches(lengths, len(texts), rank, world_size) for rank in range(world_size)]
    return [padded[next(iter(order))] for order in orders]


def fresh(classes: int = 3, **options: object) -> model.Model:
    torch.manual_seed(0)
    made = model.Model(**options)
    made.trainer = SimpleNamespace(datamodule=SimpleNamespace(labels=[str(i) for i in range(classes)]))  # type: ignore[assignment]
    made.configure_model()
    return made


def test_answers_do_not_depend_on_padding() -> None:
    net = model.ByteCNN(5).eval()
    torch.nn.init.normal_(net.grams.weight)  # zeros would hide a wrong n-gram
    encode = data.tokenizer("bytecnn").encode
    for text in ("a", "ab", "Île", "a longer text"):
        alone = net(**data.pad(encode([text], 99), 0))
        together = net(**data.pad(encode([text, "a far longer text than that one was"], 99), 0))
        torch.testing.assert_close(alone[0], together[0])


def test_the_network_sees_the_n_grams_of_a_text_and_no_other() -> None:
    """Each n-gram of 1 to 4 bytes that begins at the mark before the text or in the text, once."""
    net = model.ByteCNN(5)
    seen = []
    net.grams.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(**data.pad(data.tokenizer("bytecnn").encode(["abé", "a far longer one"], 99), 0))
    ids = [256, *(byte + 1 for byte in "abé".encode())]
    expected = []
    for size in range(1, 5):
        for start in range(len(ids)):
            code = 0
            for i in range(start, start + size):
                code = code * 257 + (ids[i] if i < len(ids) else 0)
            expected.append(code % net.config["buckets"] + 1)
    assert sorted(i for i in seen[0][0].tolist() if i) == sorted(expected)


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 5, 7])
def test_gradients_of_many_ranks_are_those_of_one(world_size: int, size: int) -> None:
    """DDP averages gradients over ranks; with the batch's weights and scale that is the gradient of the mean."""
    texts, labels = [f"{'xyz'[i % 3]} {i}" * (i + 1) for i in range(size)], [i % 3 for i in range(size)]
    module = fresh().eval()  # no dropout: its draws are another rank's

    def gradient(parts: list[dict]) -> torch.Tensor:
        module.zero_grad()
        (sum(module.training_step(part, 0) for part in parts) / len(parts)).backward()
        return torch.cat([p.grad.flatten() for p in module.parameters()])

    one = gradient(batches(texts, labels, 1))
    torch.testing.assert_close(gradient(batches(texts, labels, world_size)), one, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        module.training_step(batches(texts, labels, 1)[0], 0),
        torch.nn.functional.cross_entropy(
            module(batches(texts, labels, 1)[0]), batches(texts, labels, 1)[0]["label"]
        ),
    )  # fmt: skip


def test_fillers_are_counted_by_no_metric() -> None:
    texts, labels = ["x", "yy", "zzz"], [0, 1, 2]
    values = []
    for world_size in (1, 4):  # 4 ranks, 3 samples: one rank has nothing but a filler
        module = fresh().eval()
        for part in batches(texts, labels, world_size):
            module.validation_step(part, 0)
        values.append([float(v) for v in (module.mean_loss.compute(), *module.scores.compute().values())])
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_learning_rate() -> None:
    made = fresh(lr=0.1, warmup_ratio=0.1, lr_scaling="linear")
    made.trainer = SimpleNamespace(precision="32-true", world_size=4, estimated_stepping_batches=100)  # type: ignore[assignment]
    configured = made.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) == pytest.approx(0.4)
    assert rates[:10] == pytest.approx([0.04 * i for i in range(1, 11)])
    assert all(a > b for a, b in itertools.pairwise(rates[11:]))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.01}


@pytest.mark.parametrize("kind", ["bytecnn", "tiny_bert"])
def test_what_is_saved_is_what_is_loaded(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = fresh(model_name="bytecnn" if kind == "bytecnn" else request.getfixturevalue(kind), max_length=20)
    made.labels = ["ελληνικά", "b", "c"]
    made.net = model.build(made.options.model_name, made.labels).eval()
    made.save(tmp_path / "saved")
    net, batch, labels = model.load(tmp_path / "saved")
    assert labels == made.labels
    texts = ["αβγ", "a" * 50]
    assert batch(texts)["input_ids"].shape[1] == 20
    torch.testing.assert_close(model.logits(net, batch(texts)), model.logits(made.net, batch(texts)))
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} <= {".json", ".safetensors"}, "nothing is code"


def test_a_model_cut_short_is_refused_in_a_sentence(tmp_path: Path) -> None:
    made = fresh()
    made.save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="holds no trained model"):
        model.load(tmp_path)


def test_a_checkpoint_is_read_where_another_device_is_the_default(tiny_bert: str) -> None:
    """As in configure_model on a GPU: transformers would make a device map of it, for which it needs accelerate."""
    with torch.device("meta"):
        net = model.build(tiny_bert, ["a", "b"])
    assert {parameter.device.type for parameter in net.parameters()} == {"cpu"}


def test_a_checkpoints_own_greatest_length_holds(tiny_bert: str) -> None:
    assert len(data.tokenizer(tiny_bert).encode(["a" * 9999], 9999)[0]) == 512


@pytest.mark.parametrize("config", ["", "{}", '{"model_type": "bytecnn"}', '{"model_type": "nosuch"}'])
def test_what_is_no_model_is_refused_in_a_sentence(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match="holds no trained model"):
        model.load(tmp_path)


def test_a_checkpoints_own_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks standard input whether it may, and there the texts to classify come from."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoTokenizer": ["mine.Mine", None]}}
    (theirs / "config.json").write_text(json.dumps(own))
    (theirs / "tokenizer_config.json").write_text(json.dumps(own))
    (theirs / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Mine: pass\n")
    for name, use in (
        ("predict", lambda: model.load(theirs)),
        ("tokenizer", lambda: data.tokenizer(str(theirs))),
        ("network", lambda: model.build(str(theirs), ["a", "b"])),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 9))
        with pytest.raises(UserError, match="contains custom code"):
            use()
        assert not (tmp_path / "executed").exists(), name


def test_an_unknown_checkpoint_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="could not be loaded"):
        model.build(str(tmp_path), ["a", "b"])


class Crash(Exception):
    """What ends a run here."""


USE = """

class Tried(Model):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 - self.options.tried)


Model = Tried
"""


def test_an_option_is_one_line_and_its_use(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reaches the command line and the loss, and stops no older run from resuming."""
    options = ["--dataset", words, "--batch_size", "16", "--log_every", "1", "--max_steps", "3"]

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Checkpoints, "on_train_end", crash)
        train.train(**train.parse([*options, "--checkpoint_steps", "1"]))
    gc.collect()  # the run held a lock
    before = capsys.readouterr().out

    src = tmp_path / "src"
    shutil.copytree(Path(model.__file__).parent, src, ignore=shutil.ignore_patterns("__pycache__"))
    text, place = (src / "options.py").read_text(encoding="utf-8"), "    lr: PositiveFloat"
    assert text.count(place) == 1
    declared = '    tried: Ratio = option(0.0, "what is taken off the loss")\n'
    (src / "options.py").write_text(text.replace(place, declared + place), encoding="utf-8")
    with (src / "model.py").open("a", encoding="utf-8") as file:
        file.write(USE)
    code = "import json, sys, train\nfor words in sys.argv[1:]: train.train(**train.parse(json.loads(words)))"
    other = [*options, "--output_dir", "other", "--tried", "0.5"]
    command = [sys.executable, "-c", code, json.dumps(options), json.dumps(other)]
    environment = {**os.environ, "PYTHONPATH": str(src)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE).stdout
    resumed, _, changed = said.partition("test/accuracy ")
    assert "resume: from" in resumed
    losses = [re.findall(r"train/loss=(\S+)", text) for text in (before, changed)]
    assert len(losses[0]) == len(losses[1]) == 3 and losses[0] != losses[1]


def test_the_schedule_is_finite_for_one_step() -> None:
    made = fresh()
    made.trainer = SimpleNamespace(precision="32-true", world_size=1, estimated_stepping_batches=1)  # type: ignore[assignment]
    schedule = made.configure_optimizers()["lr_scheduler"]["scheduler"]
    assert all(math.isfinite(rate) and rate > 0 for rate in schedule.get_last_lr())
