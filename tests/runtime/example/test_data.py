"""The example's data as the package stores it: once, in little memory, whatever the size."""

import tracemalloc
from pathlib import Path

import pytest

import data
from smlightning.data import labels, store


def test_memory_does_not_grow_with_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHUNK", 4096)
    monkeypatch.setattr(labels, "LARGEST", 100)
    peaks = []
    for rows in (100, 40_000, 320_000):  # the first also imports
        lines = (f"some words and number {i},{i % 3}\n" for i in range(rows))
        Path("a.csv").write_text("text,label\n" + "".join(lines))
        made = data.Data("a.csv", data_dir="prepared")
        tracemalloc.start()
        made.prepare_data()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.15 * peaks[1] < 20e6
