"""Documents that are not as they seem are said: files of other encodings, rows without a text.

What else is made of documents: tests/example of a language model's project.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from smlightning.data import documents, store
from smlightning.errors import UserError


def test_files_of_other_encodings_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {"a": b"\xef\xbb\xbfcaf\xc3\xa9\r\n", "b": b"caf\xe9", "c": "café".encode("utf-16")}
    files = []
    for name, content in contents.items():
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_bytes(content)
    ((texts,),) = documents.read_texts(files[:1])
    assert texts.to_pylist() == ["café\n"] and not capsys.readouterr().out
    ((texts,),) = documents.read_texts(files)
    assert texts.to_pylist()[:2] == ["café\n", "caf\ufffd"]
    said = capsys.readouterr().out
    assert said.startswith("warning: 2 of 3 files are not UTF-8") and str(files[1]) in said


def test_rows_without_a_text_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = documents.ByteTokens()
    pieces = [[pa.array(["a", "", None])], [pa.array(["bc", ""])]]
    encoded = list(documents.encode(iter(pieces), "train", tokens))
    assert sum(len(part["lengths"]) for part in encoded) == 2
    assert "3 of 5 documents of the train split have no text" in capsys.readouterr().out
    list(documents.encode(iter([[pa.array(["a"])]]), "train", tokens))
    assert not capsys.readouterr().out


SPLITS = ("train", "val", "test")


def written(folder: Path, *names: str) -> Path:
    """A folder of files that hold their own names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")
    return folder


def names_by_split(folder: Path) -> dict[str, list[str]]:
    splits = documents.text_files(str(folder))
    return {split: [path.name for path in paths] for split, paths in splits.items()}


@pytest.mark.parametrize(
    "names",
    [
        ("wiki.train.txt", "wiki.valid.txt", "wiki.test.txt"),
        ("train/a.txt", "dev/b.txt", "test/c.md"),
    ],
)
def test_text_files_are_of_the_splits_that_their_names_tell(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    found = documents.text_files(str(written(tmp_path, *names)))
    assert {split: [path.read_text() for path in paths] for split, paths in found.items()} == {
        split: [name] for split, name in zip(SPLITS, names, strict=True)
    }


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("train/a.txt", "test/b.txt", "c.txt"), "c.txt has no such name"),
        (("a-test.txt", "test.txt"), "none is named train"),
    ],
)
def test_names_of_splits_that_are_not_followed_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...], reason: str
) -> None:
    found = names_by_split(written(tmp_path, *names))
    assert list(found) == ["train"] and len(found["train"]) == len(names)
    assert reason in capsys.readouterr().err


def test_hidden_files_are_no_documents(tmp_path: Path) -> None:
    names = (".ipynb_checkpoints/a-checkpoint.txt", ".b.txt", "a.txt")
    assert names_by_split(written(tmp_path, *names)) == {"train": ["a.txt"]}


def test_texts_beside_tables_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names_by_split(written(tmp_path, "a.csv", "README.md", "LICENSE.txt")) == {}
    assert not capsys.readouterr().err
    assert names_by_split(written(tmp_path, "b.txt")) == {}
    assert "1 plain text files, as " in capsys.readouterr().err


def test_the_channel_may_hold_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(written(tmp_path, "a.txt")))
    assert [path.name for path in documents.text_files("training")["train"]] == ["a.txt"]
    assert documents.text_files("stdlib", ["stdlib"]) == {}
    assert documents.text_files("team/a-name-on-the-hub") == {}


def test_a_single_file_is_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "book.txt"
    content = "".join(f"line {number}, and more\n" for number in range(1000))
    file.write_text(content, encoding="utf-8")
    pieces = documents.read_splits(documents.text_files(str(file)), SPLITS)
    ((texts,),) = pieces["train"]
    parts = texts.to_pylist()
    assert "".join(parts) == content and len(parts) == documents.DIVIDED
    assert all(part.startswith("line ") for part in parts)
    assert max(map(len, parts)) < 1.1 * min(map(len, parts))
    assert f"{file}: divided into 20 documents" in capsys.readouterr().out
    file.write_text("one\ntwo", encoding="utf-8")
    ((texts,),) = documents.read_splits({"train": [file]}, SPLITS)["train"]
    assert texts.to_pylist() == ["one\n", "two"]
    whole = documents.read_splits({"train": [file], "val": [file], "test": [file]}, SPLITS)
    assert [len(texts) for pieces in whole.values() for (texts,) in pieces] == [1, 1, 1]


def test_a_split_without_a_text_is_refused(tmp_path: Path) -> None:
    tokens = documents.ByteTokens()
    pieces = {"train": [[pa.array([str(number) for number in range(50)])]], "val": []}
    for split, rows in pieces.items():
        store.write(tmp_path / split, documents.encode(iter(rows), split, tokens))
    with pytest.raises(UserError, match="The val split that was given has no text"):
        documents.split_documents(tmp_path, SPLITS, 0)
    shutil.rmtree(tmp_path / "val")
    chosen = documents.split_documents(tmp_path, SPLITS, 0)
    assert [len(numbers) for _, numbers in chosen.values()] == [40, 5, 5]
