"""The example's network, loss and files, and Hugging Face's causal models in its place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import data
import model
import predict
import train
from small import documents, options
from smlightning.data import documents as packing
from smlightning.errors import UserError


def packed(tokens: Any, texts: list[str]) -> dict[str, torch.Tensor]:
    """One window of these documents, as `data.WindowDataset` makes it."""
    ids = []
    for text in texts:
        ids += [tokens.start, *map(int, tokens.encode([text])[0]), *tokens.end]
    rows = np.array([[*ids, tokens.start]])
    labels = torch.tensor(rows[:, 1:])
    if tokens.end:
        labels[labels == tokens.start] = data.NO_LABEL
    return {
        "input_ids": torch.tensor(rows[:, :-1]),
        "labels": labels,
        "position_ids": torch.from_numpy(packing.positions(rows[:, :-1], tokens.start)),
    }


def losses(net: Any, tokens: Any, texts: list[str]) -> torch.Tensor:
    batch = packed(tokens, texts)
    out = model.logits(net, batch["input_ids"], batch["position_ids"])
    flat = F.cross_entropy(out[0], batch["labels"][0], reduction="none")
    return flat[batch["labels"][0] != data.NO_LABEL]


def test_packed_documents_have_the_losses_that_they_have_alone() -> None:
    torch.manual_seed(0)
    net = model.ByteTransformer(width=16, layers=2, heads=2).eval()
    torch.nn.init.normal_(net.grams.weight)  # zeros would hide a wrong n-gram
    tokens, (one, other) = data.tokens_of("bytelm"), documents(2)
    alone = torch.cat([losses(net, tokens, [text]) for text in (one, other)])
    torch.testing.assert_close(losses(net, tokens, [one, other]), alone, atol=1e-5, rtol=1e-5)


def test_packed_documents_of_a_checkpoint_too(checkpoint: str) -> None:
    net, tokens = model.load(Path(checkpoint))
    texts = ["one two.", "a third text.", "the last."]
    alone = torch.cat([losses(net, tokens, [text]) for text in texts])
    torch.testing.assert_close(losses(net, tokens, texts), alone, atol=1e-5, rtol=1e-5)


def test_no_byte_sees_what_follows() -> None:
    net = model.ByteTransformer(width=16, layers=2, heads=2).eval()
    torch.nn.init.normal_(net.grams.weight)
    ids = torch.randint(1, 257, (1, 40))
    places = torch.arange(40)[None]
    other = ids.clone()
    other[0, 20:] = 7
    torch.testing.assert_close(net(ids, places)[:, :20], net(other, places)[:, :20])


def test_a_checkpoint_is_fine_tuned_saved_and_continues(checkpoint: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chosen = {name: value for name, value in options(tmp_path).items() if name != "dropout"}
    train.train(**{**chosen, "model_name": checkpoint, "max_steps": 3, "epochs": 1})
    net = AutoModelForCausalLM.from_pretrained("outputs/model")
    tokenizer = AutoTokenizer.from_pretrained("outputs/model")
    prompt = torch.tensor([[tokenizer.bos_token_id or 1, *tokenizer("beta ")["input_ids"]]])
    expected = net.generate(prompt, do_sample=False, max_new_tokens=8, pad_token_id=0)
    trained = predict.model_fn("outputs/model")
    likeliest = predict.Sampling(max_tokens=8, temperature=0)
    answer = "".join(predict.predict("beta ", trained, likeliest))
    written = tokenizer.decode(expected[0, prompt.shape[1] :], skip_special_tokens=True)
    assert answer.strip() == written.strip()
    assert {path.suffix for path in Path("outputs/model").iterdir()} <= {".json", ".safetensors"}


def test_a_continuation_is_a_function_of_its_seed(tmp_path: Path) -> None:
    train.train(**{**options(tmp_path), "max_steps": 4, "epochs": 1})
    trained = predict.model_fn("outputs/model")

    def said(seed: int, **more: Any) -> str:
        return "".join(predict.predict("al", trained, predict.Sampling(30, seed=seed, **more)))

    assert said(0) == said(0) != said(1)
    assert said(0, temperature=0.0) == said(1, temperature=0.0) == said(1, top_k=1)
    (answer,) = predict.predict_fn([{"text": "al", "max_tokens": 5, "seed": 1}], trained)
    assert isinstance(answer["continuation"], str)


@pytest.mark.parametrize("kind", ["", "{}", '{"model_type": "bytelm"}'])
def test_what_is_no_model_is_refused(kind: str) -> None:
    Path("config.json").write_text(kind)
    with pytest.raises(UserError) as refusal:
        model.load(Path())
    assert refusal.value.cure


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    made = model.Model(width=10, heads=3)
    made.trainer = SimpleNamespace(datamodule=None)  # type: ignore[assignment]
    with pytest.raises(UserError, match="--width 10"):
        made.configure_model()
