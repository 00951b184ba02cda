"""The example's data: real, encoded, labelled, split by numbers alone; bad labels are refused."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data
from smlightning.data import store
from smlightning.errors import UserError

GOOD = [{"text": f"word {i}", "label": "ab"[i % 2]} for i in range(30)]


def prepared(dataset: str, **options: object) -> data.Data:
    datamodule = data.Data(dataset, data_dir="prepared", **options)
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def texts_of(datamodule: data.Data, split: str = "train") -> list[str]:
    """The texts that the stored bytes of a split spell."""
    rows = datamodule.splits[split]
    ids = rows.arrays["ids"]
    spans = zip(rows.column("starts").tolist(), rows.column("lengths").tolist(), strict=True)
    return [bytes(ids[start : start + length] - 1).decode() for start, length in spans]


def labels_of(datamodule: data.Data, split: str = "train") -> list[str]:
    return [datamodule.labels[code] for code in datamodule.splits[split].column("labels")]


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


# Splits


def split(labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    chunks = list(data.split_rows(labels, list(data.SPLITS), seed))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in data.SPLITS}


@pytest.mark.parametrize("seed", range(50))
def test_one_row_in_ten_of_every_label_is_held_out(seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(1 + seed % 6, size=random.integers(1, 300))
    labels = np.unique(numbers, return_inverse=True)[1]
    parts = split(labels, seed)
    again = split(labels, seed)
    assert all((parts[name] == again[name]).all() for name in parts), "a function of the seed"
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(labels)))
    for label, count in enumerate(np.bincount(labels)):
        assert label in labels[parts["train"]], "training knows every label"
        for name in ("val", "test"):
            held_out = (labels[parts[name]] == label).sum()
            assert abs(held_out - (count - 1) / data.HOLD_OUT) < 1


@pytest.mark.parametrize("chunk", [1 << 18, 1000])
def test_of_large_data_fewer_are_held_out(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LARGEST", 100)
    monkeypatch.setattr(store, "CHUNK", chunk)
    labels = np.arange(10_000) % 3
    one, other = split(labels, 0), split(labels, 1)
    for name in ("val", "test"):
        assert len(one[name]) == 100
        assert min(np.bincount(labels[one[name]])) > 25
    assert not set(one["val"]) & set(one["test"])
    assert len(set(one["val"]) & set(other["val"])) < 20, "another seed draws other rows"
    assert len(set(one["val"] % 100)) > 50, "not one row in so many"


def test_splits_that_are_given_are_kept() -> None:
    jsonl("own/train.jsonl", *GOOD)
    jsonl("own/test.jsonl", *GOOD[:4])
    datamodule = prepared("own")
    assert texts_of(datamodule, "test") == [row["text"] for row in GOOD[:4]]
    everything = texts_of(datamodule, "train") + texts_of(datamodule, "val")
    assert sorted(everything) == sorted(row["text"] for row in GOOD)


# Batches


def test_a_batch(words: str, rows: list[tuple[str, str]]) -> None:
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


def test_the_checkpoints_own_tokenizer(words: str, tiny_bert: str) -> None:
    batch = next(iter(prepared(words, model_name=tiny_bert, max_length=6).train_dataloader()))
    assert batch["input_ids"].shape[1] == 6
    assert (batch["input_ids"][:, 0] == 2).all(), "[CLS] first"


def test_what_changes_the_rows_changes_the_place(words: str, tiny_bert: str) -> None:
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


def test_labels_are_in_order_of_name_and_text_as_it_is_written() -> None:
    rows = [("NA", "02"), ("None", "01"), ("12", "NA")] * 12
    Path("a.csv").write_text("\n".join(["text,label", *(",".join(row) for row in rows)]))
    datamodule = prepared("a.csv")
    assert datamodule.labels == ["01", "02", "NA"]
    assert set(zip(texts_of(datamodule), labels_of(datamodule), strict=True)) == set(rows)


def test_a_label_has_one_name_whatever_type_a_file_gives_it() -> None:
    """pandas makes floats of integers where one was missing."""
    parquet("own/a.parquet", [0, 1] * 20)
    parquet("own/b.parquet", [0.0, 1.0] * 20)
    parquet("own/c.parquet", ["0", "1"] * 20)
    assert prepared("own").labels == ["0", "1"]
    assert prepared(parquet("d.parquet", [1.5, 2.0] * 20)).labels == ["1.5", "2"]
    assert prepared(parquet("e.parquet", [True, False] * 20)).labels == ["False", "True"]


def test_a_test_split_without_labels_is_left_out() -> None:
    jsonl("own/train.jsonl", *GOOD)
    jsonl("own/test.jsonl", {"text": "x", "label": None}, {"text": "y", "label": None})
    datamodule = prepared("own")
    assert sum(len(rows) for rows in datamodule.splits.values()) == len(GOOD)


def unseen() -> str:
    jsonl("own/train.jsonl", *GOOD)
    jsonl("own/test.jsonl", *GOOD, {"text": "x", "label": "c"})
    return "own"


def test_blanks_around_a_label_are_no_part_of_it() -> None:
    rows = [{**row, "label": f" {row['label']} "} for row in GOOD]
    assert prepared(jsonl("a.jsonl", *GOOD, *rows)).labels == ["a", "b"]


MANY = [{"text": "x", "label": i} for i in range(1200)]


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        (lambda: jsonl("a.jsonl", *GOOD[:3]), "test split is empty"),
        (lambda: parquet("a.parquet", []), "split is empty"),
        (lambda: jsonl("a.jsonl", *GOOD[::2]), "single label, 'a'"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": None, "label": "a"}), "Row 31"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "", "label": "a"}), "text is empty"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "x", "label": None}), "Row 31"),
        (lambda: parquet("a.parquet", [1.0, 0.0, 1.0, 0.0, math.nan]), "Row 5"),
        (lambda: parquet("a.parquet", [[1], [2]]), "'label' is a list"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "x", "label": "a\x1b[2J"}), "Row 31"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "x", "label": "a\nb"}), "Row 31"),
        (lambda: jsonl("a.jsonl", *MANY), "1,200 different values"),
        (lambda: jsonl("a.jsonl", *MANY[:120]), "120 different values"),  # a swapped column
        (unseen, "'c' of the test split"),
        (lambda: jsonl("a.jsonl", {"a": "x", "b": "y"}), "none is the text"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(dataset: Any, found: str) -> None:
    with pytest.raises(UserError) as refusal:
        prepared(dataset())
    assert found in refusal.value.problem and refusal.value.cure
    left = Path("prepared").glob("*") if Path("prepared").exists() else ()
    assert {path.suffix for path in left} <= {".lock"}, "nothing half-built is left"
