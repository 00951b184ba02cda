"""The command line of predict.py; the answers of the example: example/test_train.py."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import predict
from smlightning import predictions


def test_the_arguments_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows it for rows of a table."""
    for name in ("stdin", "stdout"):  # pytest's own cannot be reconfigured
        monkeypatch.setattr(f"sys.{name}", io.TextIOWrapper(io.BytesIO()))
    made = predictions.parser("", "row", "{}")
    words = ["a", "--sample", "--model_dir", str(Path(__file__).parent)]
    assert [*predictions.texts(made.parse_args(words))] == ["a", "{}"]
    assert "[row ...]" in made.format_usage()


def test_without_a_model_a_sentence_says_so_at_once() -> None:
    """Before predict.py imports torch."""
    command = [sys.executable, "-X", "importtime", predict.__file__, "a"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and not re.search(r"\| +torch$", ended.stderr, re.M)
    assert "error: outputs/model has no trained model; train first" in ended.stderr
