"""The example's data: real, encoded, labelled and split."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from smlightning.errors import UserError

import data

GOOD = [{"text": f"word {i}", "label": "ab"[i % 2]} for i in range(30)]


def prepared(dataset: str, **options: object) -> data.Data:
    datamodule = data.Data(dataset, data_dir="prepared", **options)
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def texts_of(datamodule: data.Data, split: str = "train") -> list[str]:
    """The texts that the stored bytes of a split spell."""
    rows = datamodule.splits[split]["input_ids"]
    return [bytes(number - 1 for number in ids).decode() for ids in rows]


def labels_of(datamodule: data.Data, split: str = "train") -> list[str]:
    return [datamodule.labels[code] for code in datamodule.splits[split]["label"]]


def jsonl(name: str, *rows: object) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("\n".join(json.dumps(row) for row in rows))
    return name


def parquet(name: str, labels: list) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    texts = [f"{name} {i}" for i in range(len(labels))]
    pq.write_table(pa.table({"text": texts, "label": labels}), name)
    return name


def test_the_built_in_data_is_real() -> None:
    texts, labels = data.cldr()
    assert len(texts) > 25_000
    assert len(set(texts)) == len(texts)
    assert set(labels) == set(data.LANGUAGES) and len(data.LANGUAGES) == 30
    language = dict(zip(texts, labels, strict=True))
    for name, expected in (("Mittwoch", "de"), ("Île Christmas", "fr"), ("水曜日", "ja")):
        assert language[name] == expected


def test_given_splits_are_kept() -> None:
    jsonl("own/train.jsonl", *GOOD)
    jsonl("own/test.jsonl", *GOOD[:4])
    datamodule = prepared("own")
    assert texts_of(datamodule, "test") == [row["text"] for row in GOOD[:4]]
    everything = texts_of(datamodule, "train") + texts_of(datamodule, "validation")
    assert sorted(everything) == sorted(row["text"] for row in GOOD)


# Batches


def test_a_batch_holds_texts_and_their_labels(words: str, rows: list[tuple[str, str]]) -> None:
    datamodule = prepared(words, batch_size=50)
    batches = list(datamodule.test_dataloader())
    assert sum(int(batch["weight"].sum()) for batch in batches) == len(datamodule.splits["test"])
    batch = batches[0]
    lengths = batch["attention_mask"].sum(1)
    assert batch["input_ids"].shape == (len(lengths), lengths.max())
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    alphabets = dict(rows)
    for ids, length, label in zip(batch["input_ids"], lengths, batch["label"], strict=True):
        text = bytes((ids[:length] - 1).tolist()).decode()
        assert alphabets[text] == datamodule.labels[label]


def test_a_checkpoint_brings_its_tokenizer(words: str, tiny_bert: str) -> None:
    batch = next(iter(prepared(words, model_name=tiny_bert, max_length=6).train_dataloader()))
    assert batch["input_ids"].shape[1] == 6
    assert (batch["input_ids"][:, 0] == 2).all(), "[CLS] first"


def test_options_that_change_the_rows_change_the_folder(words: str, tiny_bert: str) -> None:
    datamodule = prepared(words)
    datamodule.setup()
    assert prepared(words).fingerprint == datamodule.fingerprint
    assert prepared(words, seed=1).path != datamodule.path
    assert prepared(words, max_length=5).fingerprint != datamodule.fingerprint
    shutil.copytree(tiny_bert, "mine")
    before = data.Data(words, model_name="mine").path
    config = Path("mine/tokenizer_config.json")
    config.write_text(config.read_text() + "\n")
    assert data.Data(words, model_name="mine").path != before


# Labels


def test_labels_keep_their_spelling_and_are_in_order_of_name() -> None:
    rows = [("NA", "02"), ("None", "01"), ("12", "NA")] * 12
    Path("a.csv").write_text("\n".join(["text,label", *(",".join(row) for row in rows)]))
    datamodule = prepared("a.csv")
    assert datamodule.labels == ["01", "02", "NA"]
    assert set(zip(texts_of(datamodule), labels_of(datamodule), strict=True)) == set(rows)


def test_a_label_has_one_name_in_files_of_different_types() -> None:
    """pandas makes floats of integers where one was missing."""
    parquet("own/a.parquet", [0, 1] * 20)
    parquet("own/b.parquet", [0.0, 1.0] * 20)
    parquet("own/c.parquet", ["0", "1"] * 20)
    assert prepared("own").labels == ["0", "1"]
    assert prepared(parquet("d.parquet", [1.5, 2.0] * 20)).labels == ["1.5", "2"]
    assert prepared(parquet("e.parquet", [True, False] * 20)).labels == ["False", "True"]


@pytest.mark.parametrize(
    ("dataset", "match"),
    [
        (lambda: jsonl("a.jsonl", *GOOD[:3]), "3 rows have 2 labels"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": None, "label": "a"}), "a.jsonl, row 31"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "x", "label": None}), "a.jsonl, row 31"),
        (lambda: jsonl("a.jsonl", {"a": "x", "b": "y"}), "the text"),
    ],
)
def test_rows_that_cannot_be_used_end_in_an_error(dataset: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        prepared(dataset())
    left = Path("prepared").glob("*") if Path("prepared").exists() else ()
    assert {path.suffix for path in left} <= {".lock"}, "nothing half-built is left"
