"""The example's data as the package stores it: once, in little memory, whatever the size."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

import data
from smlightning.data import splits


@pytest.mark.long
def test_memory_does_not_grow_with_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's, numpy's and Arrow's memory; the pages of mapped files are the system's."""
    monkeypatch.setattr(splits, "CHUNK", 4096)
    monkeypatch.setattr(splits, "LARGEST", 100)
    peaks, pools = [], []
    for rows in (100, 40_000, 320_000):  # the first also imports
        lines = (f"some words and number {i},{i % 3}\n" for i in range(rows))
        Path("a.csv").write_text("text,label\n" + "".join(lines))
        made = data.Data("a.csv", data_dir="prepared")
        tracemalloc.start()
        made.prepare_data()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        pools.append(pa.default_memory_pool().max_memory())
    assert peaks[2] - peaks[1] < 0.1 * Path("a.csv").stat().st_size
    assert pools[2] < 1.5 * pools[1]
