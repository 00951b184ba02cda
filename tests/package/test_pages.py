"""Messages, comments and docstrings point to pages that a project has."""

import re
from pathlib import Path

import smlightning

PROJECT = Path(smlightning.__file__).parents[3]


def test_pages_that_messages_point_to_exist() -> None:
    found = {
        page
        for folder in ("vendor/smlightning/smlightning", "src", "tasks")
        for path in (PROJECT / folder).rglob("*.py")
        for page in re.findall(r"(?<![\w/])docs/\w+\.md", path.read_text(encoding="utf-8"))
    }
    assert found
    assert [page for page in found if not (PROJECT / page).is_file()] == []
