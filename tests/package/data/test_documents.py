"""Documents that are not as they seem are said: files of other encodings, rows without a text.

What else is made of documents: tests/example of a language model's project.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from smlightning.data import documents


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
