"""`Data`: WindowData of vae/ with the names of this project's options."""

import hashlib
import os
from pathlib import Path
from typing import Any

from options import Options
from smlightning.errors import UserError
from vae.data import WindowData


class Data(WindowData):
    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        chosen = Options(dataset=dataset, **options)
        super().__init__(str(find(dataset)), chosen.batch_size, chosen.num_workers, chosen.augment)
        self.prepare_data_per_node = True
        self.options = chosen

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage or "fit")
        self.fingerprint = hashlib.sha256(self.path.read_bytes()).hexdigest()


def find(dataset: str) -> Path:
    """The file of ``--dataset``; ``training`` is the channel of a SageMaker job."""
    path = Path(dataset)
    if dataset == "training":
        path = Path(os.environ.get("SM_CHANNEL_TRAINING", "")) / "windows.npz"
    if not path.is_file():
        raise UserError(f"{path} does not exist", "write it: python windows.py windows.npz")
    return path
