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
    """Write the package into ``folder``, with its metadata; returns it, for PYTHONPATH."""
    number = version("pytorch-lightning")
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
    (folder / "lightning" / "__init__.py").write_text(TOP.format(version=number), "utf-8")
    metadata = folder / f"lightning-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.4\nName: lightning\nVersion: {number}\n", "utf-8")
    return folder
