"""The package ``lightning``, which tests need and nothing else installs.

Its wheel holds pytorch_lightning and lightning_fabric under other names.
"""

import importlib.util
from importlib.metadata import version
from pathlib import Path

NAMES = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}
TOP = """
__version__ = {version!r}
from lightning.fabric import Fabric, seed_everything
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
"""


def copy_lightning(folder: Path) -> Path:
    """Write the package into ``folder``; returns it, for PYTHONPATH."""
    for name, other in NAMES.items():
        spec = importlib.util.find_spec(name)
        assert spec and spec.origin
        source = Path(spec.origin).parent
        for file in source.rglob("*"):
            if file.suffix not in (".py", ".info"):
                continue
            copy = folder.joinpath(*other.split("."), file.relative_to(source))
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8")
            for old, new in NAMES.items():
                text = text.replace(old, new)
            copy.write_text(text, encoding="utf-8")
    write_top(folder)
    return folder


def write_top(folder: Path, number: str = version("pytorch-lightning")) -> None:
    """Write of the package ``lightning/__init__.py``: no other file of it is read in a project."""
    path = folder / "lightning" / "__init__.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TOP.format(version=number), "utf-8")
