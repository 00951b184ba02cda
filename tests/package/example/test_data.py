"""The example's data as the package stores it: once, in little memory, whatever the size."""

import tracemalloc
from pathlib import Path

import pytest

import data
from smlightning.data import labels, store


def test_a_verified_copy_is_opened_and_another_is_written(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = data.Data(words, data_dir="prepared")
    first.prepare_data()
    assert "240 texts" in capsys.readouterr().out
    first.setup()
    train = first.splits["train"]
    first.setup()
    assert first.splits["train"] is train, "a second setup changes nothing"
    again = data.Data(words, data_dir="prepared")
    again.prepare_data()
    assert capsys.readouterr().out == ""
    again.setup()
    assert again.labels == first.labels and again.fingerprint == first.fingerprint
    facts = again.path / store.FACTS
    facts.write_text(facts.read_text().replace("greek", "graek"))
    again.prepare_data()
    assert "240 texts" in capsys.readouterr().out, "a changed label is noticed"
    names = [path.name for path in Path("prepared").iterdir()]
    assert not [name for name in names if name.startswith(".")], "nothing half-built is left"


def test_memory_does_not_grow_with_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHUNK", 4096)
    monkeypatch.setattr(labels, "LARGEST", 100)
    peaks = []
    for rows in (40_000, 320_000):
        lines = (f"some words and number {i},{i % 3}\n" for i in range(rows))
        Path("a.csv").write_text("text,label\n" + "".join(lines))
        made = data.Data("a.csv", data_dir="prepared")
        tracemalloc.start()
        made.prepare_data()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.15 * peaks[0] < 20e6
