"""What is said where an owner's files have replaced the example's, and of a wrong command."""

import sys
from pathlib import Path

import pytest

import smlightning


def test_an_older_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Path(smlightning.__file__).read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match="or newer expected"):
        exec(compile(code, "smlightning", "exec"), {})  # noqa: S102
