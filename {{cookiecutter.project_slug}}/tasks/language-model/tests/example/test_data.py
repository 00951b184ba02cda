"""The example's data: real text, split by document, packed into windows without padding."""

import json
from pathlib import Path

import pytest
from smlightning.data import tables
from smlightning.data.store import SPLITS
from smlightning.errors import UserError

import data
from small import documents


def prepared(dataset: str, **options: object) -> data.Data:
    datamodule = data.Data(dataset, **{"data_dir": "prepared", "max_length": 16, **options})
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def texts(*rows: str) -> str:
    Path("texts.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    return "texts.jsonl"


def documents_in(datamodule: data.Data, split: str) -> list[str]:
    """The texts of a split's documents, decoded from the stored bytes."""
    ids = datamodule.splits[split].arrays["ids"].tolist()
    whole = "".join("\0" if number == 0 else chr(number - 1) for number in ids)
    return whole.split("\0")[1:]


def test_the_built_in_text_is_real_and_divided_by_file() -> None:
    files = data.standard_library().files
    assert sum(file.stat().st_size for file in files) > 0.8 * data.BUILTIN_BYTES
    assert not [file for file in files if "test" in file.parts]
    splits = tables.read(data.standard_library(), [tables.Column("text")])
    (piece,) = splits["train"]
    assert piece.columns[0][0].as_py() == files[0].read_text(encoding="utf-8")


def test_each_document_is_in_one_split() -> None:
    rows = documents(50)
    datamodule = prepared(texts(*rows, ""))
    parts = {split: documents_in(datamodule, split) for split in SPLITS}
    assert sorted(row for part in parts.values() for row in part) == sorted(rows)
    assert len(parts["val"]) == len(parts["test"]) == 5
    assert prepared("texts.jsonl", seed=1).fingerprint != datamodule.fingerprint


def test_a_batch_is_the_text_and_what_follows() -> None:
    datamodule = prepared(texts(*documents(50)), batch_size=4)
    stream = datamodule.splits["train"].arrays["ids"]
    windows = [batch for batch in datamodule.train_dataloader()]
    assert sum(int(batch["weight"].sum()) for batch in windows) == (len(stream) - 1) // 16
    batch = windows[0]
    assert batch["input_ids"].shape == batch["labels"].shape == (4, 16)
    assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()
    starts = batch["input_ids"] == 0
    assert (batch["position_ids"][starts] == 0).all()
    counted = batch["position_ids"][:, 1:] == batch["position_ids"][:, :-1] + 1
    assert (counted | starts[:, 1:]).all()


def questions(count: int = 40) -> str:
    """A table of prompts and answers."""
    rows = [{"ask": f"what is {row}", "answer": row} for row in documents(count)]
    Path("asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "asked.jsonl"


def test_only_answers_are_labels() -> None:
    datamodule = prepared(questions(), prompt_column="ask", max_length=300, batch_size=1)
    spelled = []
    for batch in datamodule.train_dataloader():
        labels = batch["labels"][0]
        answers = "".join(chr(n - 1) if n else "\n" for n in labels[labels >= 0].tolist())
        spelled += answers.splitlines()
        assert float(batch["scale"]) == pytest.approx(1 / datamodule.facts["labelled"]["train"])
    assert len(spelled) == 32 and set(spelled) < set(documents(40))
    stream = datamodule.splits["train"].arrays["ids"]
    assert f"what is {spelled[0]}\n{spelled[0]}" in "".join(chr(max(n, 1) - 1) for n in stream)
    with pytest.raises(UserError, match="are for tables"):
        data.Data("stdlib", prompt_column="ask")


def test_a_chat_template_writes_prompts_and_answers(checkpoint: str) -> None:
    from transformers import AutoTokenizer

    tokens, tokenizer = data.tokens_of(checkpoint, True), AutoTokenizer.from_pretrained(checkpoint)
    (encoded,) = tokens.answers(["what"], ["that"])
    if not tokenizer.chat_template:
        expected = [tokens.start, *tokenizer("what\nthat")["input_ids"], tokenizer.eos_token_id]
        assert encoded.ids.tolist() == expected and encoded.unlabelled == 6
        assert tokens.beginning("what") == expected[:6]
        return
    turns = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "that"}]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert whole == "<s>user. what. assistant. that</s>"
    expected = tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert encoded.ids.tolist() == expected and encoded.unlabelled == len(expected) - 5
    assert tokens.beginning("what") == expected[:-5]
    tokens.tokenizer.chat_template = "never ends"  # type: ignore[attr-defined]
    (unended,) = tokens.answers(["what"], ["that"])
    assert unended.ids[-1] == tokens.end[0]


def test_a_checkpoints_own_tokens(checkpoint: str) -> None:
    datamodule = prepared(texts(*documents(50)), model_name=checkpoint)
    tokens = data.tokens_of(checkpoint)
    ids = datamodule.splits["test"].arrays["ids"].tolist()
    assert ids[0] == tokens.start and ids.count(tokens.start) == 5
    first = ids[1 : ids.index(tokens.start, 1) - len(tokens.end)]
    assert tokens.decode(first) in documents(50)
    batch = next(iter(datamodule.test_dataloader()))
    assert (batch["labels"] == tokens.start).any() is not bool(tokens.end)
    assert datamodule.tokens_per_byte["test"] == pytest.approx(1, abs=0.05)


def test_windows_longer_than_the_positions_are_rejected(checkpoint: str) -> None:
    with pytest.raises(UserError, match="64 positions"):
        prepared(texts(*documents(50)), model_name=checkpoint, max_length=65)
