"""Rehearsals of training scripts that never saw this template: each slip is found, and mended."""

import shutil
from pathlib import Path

import pytest

from projects import Project
from rehearsals import failed_checks, rehearse, size

SCRIPTS = Path(__file__).parent / "scripts"
# Slips of a script: what stands there, and what should.
PLAIN_DDP = {
    "flag": ('"--shuffle", action="store_true"', '"--shuffle", type=eval, default=False'),
    "localhost": ('os.environ["MASTER_ADDR"] = "localhost"', ""),
    "download": (
        'torch.load(download(Path("data")))',
        'torch.load(download(Path(f"data-{rank}")))',
    ),
    "print": ('print(f"epoch', 'rank or print(f"epoch'),
    "checkpoint": (
        '"checkpoint.pt")',
        'os.environ["SM_MODEL_DIR"].replace("model", "checkpoints") + "/checkpoint.pt")',
    ),
}
