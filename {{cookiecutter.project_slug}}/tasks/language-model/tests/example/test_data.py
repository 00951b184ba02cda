"""The example's data: real text, split by document, packed into windows without padding."""

import json
from pathlib import Path

import numpy as np
import pytest

import data
from small import documents
from smlightning.data import documents as packing
from smlightning.errors import UserError


def prepared(dataset: str, **options: object) -> data.Data:
    made = data.Data(dataset, **{"data_dir": "prepared", "max_length": 16, **options})
    made.prepare_data()
    made.setup()
    return made


def texts(*rows: str) -> str:
    Path("texts.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    return "texts.jsonl"


def documents_in(made: data.Data, split: str) -> list[str]:
    """What the stored bytes of a split spell, document by document."""
    ids = made.splits[split].arrays["ids"].tolist()
    whole = "".join("\0" if number == 0 else chr(number - 1) for number in ids)
    return whole.split("\0")[1:]


def test_the_built_in_text_is_real_and_divided_by_file() -> None:
    files = data.standard_library()
    assert sum(file.stat().st_size for file in files) > 0.8 * data.BUILTIN_BYTES
    assert not [file for file in files if "test" in file.parts]
    whole = "".join(pieces[0][0].as_py() for pieces in packing.read_texts(files[:1]))
    assert whole == files[0].read_text(encoding="utf-8", errors="replace")


def test_each_document_is_in_one_split() -> None:
    rows = documents(50)
    made = prepared(texts(*rows, ""))
    parts = {split: documents_in(made, split) for split in data.SPLITS}
    assert sorted(row for part in parts.values() for row in part) == sorted(rows)
    assert len(parts["val"]) == len(parts["test"]) == 5
    assert prepared("texts.jsonl", seed=1).fingerprint != made.fingerprint


def test_a_batch_is_the_text_and_what_follows() -> None:
    made = prepared(texts(*documents(50)), batch_size=4)
    stream = made.splits["train"].arrays["ids"]
    windows = [batch for batch in made.train_dataloader()]
    assert sum(int(batch["weight"].sum()) for batch in windows) == (len(stream) - 1) // 16
    batch = windows[0]
    assert batch["input_ids"].shape == batch["labels"].shape == (4, 16)
    assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()
    starts = batch["input_ids"] == 0
    assert (batch["position_ids"][starts] == 0).all()
    counted = batch["position_ids"][:, 1:] == batch["position_ids"][:, :-1] + 1
    assert (counted | starts[:, 1:]).all()


def test_positions_begin_anew_with_each_document() -> None:
    ids = np.array([[5, 5, 0, 7, 7], [0, 3, 3, 0, 0]])
    assert packing.positions(ids, 0).tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 0, 0]]


def test_plain_text_files_are_documents() -> None:
    for number, row in enumerate(documents(20)):
        Path(f"folder/{number}").parent.mkdir(exist_ok=True)
        Path(f"folder/{number}.txt").write_text(row)
    made = prepared("folder")
    assert sum(len(documents_in(made, split)) for split in data.SPLITS) == 20


def test_a_checkpoints_own_tokens(checkpoint: str) -> None:
    made = prepared(texts(*documents(50)), model_name=checkpoint)
    tokens = data.tokens_of(checkpoint)
    ids = made.splits["test"].arrays["ids"].tolist()
    assert ids[0] == tokens.start and ids.count(tokens.start) == 5
    first = ids[1 : ids.index(tokens.start, 1) - len(tokens.end)]
    assert tokens.decode(first) in documents(50)
    batch = next(iter(made.test_dataloader()))
    assert (batch["labels"] == tokens.start).any() is not bool(tokens.end)
    assert made.tokens_per_byte["test"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("rows", [[""], ["one"], ["a", "b", "c", "d"]])
def test_too_little_text_is_refused(rows: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        prepared(texts(*rows))
    assert refusal.value.cure
