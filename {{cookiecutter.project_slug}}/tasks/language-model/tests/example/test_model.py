"""The example's network, loss and files, and Hugging Face's causal models in its place."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch as safetensors
import torch
from smlightning.checkpoints import files
from smlightning.data import documents as packing
from smlightning.data.store import SPLITS
from smlightning.data.tables import Piece
from smlightning.errors import UserError
from smlightning.options import parse_command_line
from smlightning.serving import RejectedRequest
from torch.nn import functional as F

import data
import model
import predict
import train
from small import documents, options


def packed(tokens: Any, texts: list[str], prompts: list[str] | None = None) -> dict[str, Any]:
    """One window of these documents, as `data.WindowDataset` makes it."""
    columns = [pa.array([*texts, "x"])]  # only the first token of the last document is used
    columns += [pa.array([*prompts, "x"])] if prompts else []
    (encoded,) = packing.encode(iter([Piece(columns, "texts")]), tokens)
    pieces = list(packing.packed(encoded, np.arange(len(texts) + 1)))
    end = sum(len(piece["ids"]) for piece in pieces[:-1]) + 1
    ids, uses = (np.concatenate([p[name] for p in pieces])[None, :end] for name in ("ids", "uses"))
    ids, first = ids.astype(np.int64), uses & packing.FIRST > 0
    return {
        "input_ids": torch.from_numpy(ids[:, :-1]),
        "labels": torch.from_numpy(np.where(uses & packing.LABEL, ids, data.NO_LABEL)[:, 1:]),
        "position_ids": torch.from_numpy(packing.positions(first[:, :-1])),
    }


def losses(net: Any, batch: dict[str, Any]) -> torch.Tensor:
    """The loss of each label of a batch."""
    out = model.logits(net, batch["input_ids"], batch["position_ids"]).detach()
    flat = F.cross_entropy(out.transpose(1, 2), batch["labels"], reduction="none")
    return flat[batch["labels"] != data.NO_LABEL]


@pytest.mark.parametrize("kind", ["bytelm", "checkpoint"])
def test_packed_documents_have_the_losses_of_single_ones(kind: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    net: Any = model.ByteTransformer(width=16, layers=2, heads=2).eval()
    torch.nn.init.normal_(net.grams.weight)  # zeros would hide a wrong n-gram
    tokens, texts = data.tokens_of("bytelm"), ["one two.", "a third text.", "the last."]
    if kind == "checkpoint":
        net, tokens = model.load(Path(checkpoint))
    alone = torch.cat([losses(net, packed(tokens, [text])) for text in texts])
    together = losses(net, packed(tokens, texts))
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_windows_have_the_losses_of_single_answers(checkpoint: str) -> None:
    """All windows of all splits together have each answer once."""
    net, _ = model.load(Path(checkpoint))
    tokens = data.tokens_of(checkpoint, prompted=True)
    rows = [(f"what {text[:9]}", text[:15]) for text in documents(30)]
    table = [json.dumps({"ask": prompt, "text": answer}) for prompt, answer in rows]
    Path("asked.jsonl").write_text("\n".join(table))
    given = data.Data("asked.jsonl", model_name=checkpoint, max_length=64, prompt_column="ask")
    given.prepare_data()
    given.setup()
    windows = [losses(net, batch) for split in SPLITS for batch in given._loader(split)]
    alone = [losses(net, packed(tokens, [answer], [prompt])) for prompt, answer in rows]
    together, expected = torch.cat(windows).sort().values, torch.cat(alone).sort().values
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-5)


def fine_tuning(checkpoint: str, tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Options of a run of four steps."""
    of_bytelm = ("layers", "width", "heads", "dropout")
    chosen = {name: value for name, value in options(tmp_path).items() if name not in of_bytelm}
    return {**chosen, "model_name": checkpoint, "max_steps": 4, "epochs": 1, **more}


def test_a_checkpoint_is_fine_tuned_saved_and_continues(checkpoint: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    train.train(train.Options(**fine_tuning(checkpoint, tmp_path)))
    net = AutoModelForCausalLM.from_pretrained("outputs/model")
    tokenizer = AutoTokenizer.from_pretrained("outputs/model")
    prompt = torch.tensor([[tokenizer.bos_token_id or 1, *tokenizer("beta ")["input_ids"]]])
    expected = net.generate(prompt, do_sample=False, max_new_tokens=8, pad_token_id=0)
    trained = predict.model_fn("outputs/model")
    likeliest = predict.Sampling(max_tokens=8, temperature=0)
    answer = "".join(predict.predict("beta ", trained, likeliest))
    written = tokenizer.decode(expected[0, prompt.shape[1] :], skip_special_tokens=True)
    assert answer.strip() == written.strip()
    suffixes = {path.suffix for path in Path("outputs/model").iterdir()}
    assert suffixes <= {".json", ".safetensors", ".jinja"}, "nothing is code"


def test_lora_keeps_little_resumes_exactly_and_is_merged(checkpoint: str, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    base = shutil.copytree(checkpoint, tmp_path / "base")
    chosen = fine_tuning(str(base), tmp_path, lora_rank=2, checkpoint_steps=2, num_workers=0)
    train.train(train.Options(**chosen))
    last, middle = (next(Path("outputs/checkpoints").glob(f"*-step00000{n}-*")) for n in (4, 2))
    kept = files.read(last)["state_dict"]
    adapter = safetensors.load_file("outputs/model/adapter_model.safetensors")
    (checksum,) = {name for name in kept if "lora_" not in name}
    assert checksum == "net.base_checksum" and len(kept) == len(adapter) + 1
    assert last.stat().st_size < base.joinpath("model.safetensors").stat().st_size
    again = {**chosen, "resume": str(middle), "output_dir": "again"}
    train.train(train.Options(**{**again, "merge": True}))
    resumed = files.read(next(Path("again/checkpoints").glob("*-step000004-*")))["state_dict"]
    assert all(torch.equal(kept[name], resumed[name]) for name in kept)
    # predict.py, peft and transformers load the adapter on its base, and the merged model.
    batch = {"input_ids": torch.arange(3, 30)[None], "position_ids": torch.arange(27)[None]}
    ours, _ = model.load(Path("outputs/model"))
    theirs = AutoPeftModelForCausalLM.from_pretrained("outputs/model").eval()
    merged = AutoModelForCausalLM.from_pretrained("again/model").eval()
    expected = theirs(**batch).logits
    untrained = AutoModelForCausalLM.from_pretrained(checkpoint).eval()(**batch).logits
    assert (untrained - expected).abs().max() > 1e-3
    for net in (ours, merged):
        torch.testing.assert_close(net(**batch).logits, expected, atol=1e-5, rtol=0)
    likeliest = {"input_ids": batch["input_ids"], "do_sample": False, "max_new_tokens": 8}
    continued = theirs.generate(**likeliest, pad_token_id=0)
    assert torch.equal(merged.generate(**likeliest, pad_token_id=0), continued)
    # Other weights under the same name.
    AutoModelForCausalLM.from_pretrained("again/model").save_pretrained(base)
    with pytest.raises(UserError, match="have changed"):
        train.train(train.Options(**{**again, "output_dir": "third"}))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"lora_rank": 2}, "--lora_rank is for Hugging Face models"),
        ({"width": 10, "heads": 3}, "--width 10 is not a multiple of --heads 3"),
        ({"model_name": "gpt2", "layers": 4}, "--layers is for bytelm"),
        ({"prompt_column": "question"}, "--prompt_column and --text_column are for tables"),
    ],
)
def test_options_that_conflict_are_rejected(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_command_line(train.Options, [f"--{name}={value}" for name, value in values.items()])


def test_a_model_of_prompts_answers_as_it_was_trained(tmp_path: Path) -> None:
    chosen = {**options(tmp_path), "prompt_column": "prompt", "max_length": 160, "max_steps": 2}
    train.train(train.Options(**chosen))
    trained = predict.model_fn("outputs/model")
    assert trained[1].prompted
    assert trained[1].beginning("a") == [0, ord("a") + 1, ord("\n") + 1]
    (answer,) = predict.predict_fn([{"text": "a", "max_tokens": 3}], trained)
    assert len(answer["continuation"]) <= 3


def test_a_continuation_is_a_function_of_its_seed(tmp_path: Path) -> None:
    train.train(train.Options(**{**options(tmp_path), "max_steps": 4, "epochs": 1}))
    trained = predict.model_fn("outputs/model")

    def continued(seed: int, **more: Any) -> str:
        return "".join(predict.predict("al", trained, predict.Sampling(30, seed=seed, **more)))

    assert continued(0) == continued(0) != continued(1)
    likeliest = continued(0, temperature=0.0)
    assert likeliest == continued(1, temperature=0.0) == continued(1, top_k=1)
    (answer,) = predict.predict_fn([{"text": "al", "max_tokens": 5, "seed": 1}], trained)
    assert isinstance(answer["continuation"], str)


@pytest.mark.parametrize("kind", ["bytelm", "checkpoint"])
def test_a_cache_changes_no_logits(kind: str, checkpoint: str) -> None:
    """Also where the byte transformer's window moves."""
    torch.manual_seed(0)
    net: Any = model.ByteTransformer(width=16, layers=2, heads=2, max_length=24).eval()
    torch.nn.init.normal_(net.grams.weight)  # zeros would hide a wrong n-gram
    if kind == "checkpoint":
        net, _ = model.load(Path(checkpoint))
    first, *more = torch.randint(3, 29, (40,)).split([9, *[1] * 31])
    ids = first.tolist()
    following = predict.next_logits(net, ids)
    for token in more:
        window = torch.tensor([ids if kind == "checkpoint" else ids[-24:]])
        expected = model.logits(net, window, torch.arange(window.shape[1])[None])[0, -1]
        torch.testing.assert_close(next(following), expected, atol=1e-5, rtol=1e-5)
        ids += token.tolist()


@pytest.mark.parametrize("kind", ["bytelm", "checkpoint"])
def test_pieces_are_the_text_of_all_tokens(
    kind: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net: Any = model.ByteTransformer(width=16, layers=1, heads=2).eval()
    tokens = data.tokens_of("bytelm")
    ids = [byte + 1 for byte in "a ñ €\U0001f600 \n b".encode()] + [256, 98, 240]  # not UTF-8
    if kind == "checkpoint":
        net, tokens = model.load(Path(checkpoint))
        ids = tokens.encode(["one two a third text. the last"])[0]
    left = [*ids, tokens.start]
    monkeypatch.setattr(predict, "draw", lambda *_: left.pop(0))
    pieces = list(predict.predict("a", (net, tokens)))
    assert "".join(pieces) == tokens.decode(ids) and len(pieces) > 5


def test_all_records_of_a_request_share_a_maximum_of_tokens() -> None:
    for counts in ([2**62], [2000, 49]):
        with pytest.raises(RejectedRequest) as caught:
            predict.predict_fn([{"text": "a", "max_tokens": many} for many in counts], None)
        assert caught.value.status == 400 and str(sum(counts)) in str(caught.value)


def test_a_request_is_answered_before_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Incomplete answers are marked."""
    net = model.ByteTransformer(width=16, layers=1, heads=2, max_length=2048).eval()
    trained = net, data.tokens_of("bytelm")
    request = {"text": "a", "max_tokens": 1000, "temperature": 1e9}
    monkeypatch.setattr(predict, "draw", lambda *_: 98)
    (whole,) = predict.predict_fn([request], trained)
    assert whole == {"continuation": "a" * 1000}
    now = iter(range(1000))
    monkeypatch.setattr(predict, "SECONDS", 20)
    monkeypatch.setattr(predict, "time", SimpleNamespace(monotonic=lambda: next(now)))
    answers = predict.predict_fn([request, request], trained)
    assert answers == [
        {"continuation": "a" * 20, "incomplete": True},
        {"continuation": "", "incomplete": True},
    ]


def test_a_text_longer_than_the_positions_is_rejected_and_a_continuation_ends_there(
    checkpoint: str,
) -> None:
    trained = predict.model_fn(checkpoint)
    sampling = predict.Sampling(max_tokens=99, temperature=1e-320)
    continuation = "".join(predict.predict("a" * 60, trained, sampling))
    assert len(continuation) <= 4, "of 64 positions, the start and the text use 61"
    with pytest.raises(UserError, match="64"):
        list(predict.predict("a" * 64, trained))


@pytest.mark.parametrize(
    "record",
    [
        5, {}, {"text": 5}, {"text": "a", "max_new_tokens": 5}, {"text": "a", "max_tokens": 2.5},
        {"text": "a", "max_tokens": True}, {"text": "a", "temperature": float("nan")},
        {"text": "a", "temperature": "hot"}, {"text": "a", "top_k": -1},
        {"text": "a", "seed": 2**64}, {"text": "a", "seed": None},
    ],
)  # fmt: skip
def test_a_wrong_record_is_rejected(record: Any) -> None:
    with pytest.raises(UserError):
        predict.parsed(record)
