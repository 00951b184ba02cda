"""The packages of this environment are those that importlib.metadata finds."""

from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from smlightning_sagemaker.installed import installed


def test_modules_and_requirements_are_those_of_importlib() -> None:
    found = installed()
    expected = {name: sorted({*each}) for name, each in packages_distributions().items()}
    assert {name: sorted({*each}) for name, each in found.providers.items()} == expected
    names = {canonicalize_name(each.name): each.requires or [] for each in distributions()}
    assert {name: sorted(each) for name, each in found.requires.items()} == {
        name: sorted(each) for name, each in names.items()
    }


def test_packages_of_any_form_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel, two forms of setuptools, what an interrupted pip leaves; the first place counts."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place, needs in ((first, "rich"), (second, "numpy")):
        wheel = place / "zz_wheel-1.dist-info"
        wheel.mkdir(parents=True)
        (wheel / "METADATA").write_text(f"Name: zz-wheel\nRequires-Dist: {needs}\n\nA README\n")
        (wheel / "RECORD").write_text("zz_wheel/__init__.py,,\nzz_single.py,,\n")
    folder = first / "zz_folder-1.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Name: zz-folder\n")
    (folder / "requires.txt").write_text("rich\n")
    (folder / "top_level.txt").write_text("zz_folder\n")
    (first / "zz_file-1.egg-info").write_text("Name: zz-file\n")
    (first / "zz_left-1.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [str(first), str(second)])
    found = installed()
    assert found.requires == {"zz-wheel": ["rich"], "zz-folder": ["rich"], "zz-file": []}
    assert found.providers["zz_wheel"] == ["zz-wheel", "zz-wheel"]
    assert found.providers["zz_single"] and found.providers["zz_folder"] == ["zz-folder"]
