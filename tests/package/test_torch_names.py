"""Each name of torch in the code exists in the torch of every image.

tests/images/record.json has the names of each image's torch, written by `make images`.
"""

import ast
import json
from pathlib import Path

import pytest

from images import torch_names
from smlightning.cluster.location import SHARDING_NEEDS
from smlightning.launch.images import PROFILES

RECORD = json.loads((Path(torch_names.__file__).with_name("record.json")).read_text())
NEWER = {"fsdp2.py": SHARDING_NEEDS}  # files that an older torch never imports


def lacking(names: dict[tuple[str, ...], list[Path]], profile: str) -> list[str]:
    """Names of torch that a profile's torch lacks, with the files that use them."""
    torch = RECORD[profile]["names"]
    found = []
    for name, files in names.items():
        users = [
            path for path in files if NEWER.get(path.name, (0, 0)) <= PROFILES[profile].version
        ]
        part = users and torch_names.missing(name, torch)
        if part:
            found.append(f"{part} ({', '.join(path.name for path in users)})")
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_each_name_of_torch_is_in_the_images_torch(profile: str) -> None:
    names = torch_names.in_code("torch")
    assert len(names) > 100
    assert not lacking(names, profile)


def test_an_older_torch_imports_no_file_that_needs_a_newer_one() -> None:
    """Nothing imports them but functions that check torch's version first."""
    for path in torch_names.files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                imported = ast.unparse(node)
                assert not [name for name in NEWER if name.removesuffix(".py") in imported], path
