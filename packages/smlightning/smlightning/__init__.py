"""The machinery of a PyTorch Lightning project that trains on a laptop and on SageMaker."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  an older Python gets a sentence
    raise SystemExit(
        f"error: Python {sys.version.split()[0]} found, 3.11 or newer expected; make an "
        "environment with make setup PYTHON=python3.12"
    )

from smlightning import lazy_imports, one_lightning

__version__ = "1.1.0"

# Before Lightning is imported: in train.py, predict.py, tests, workers.
lazy_imports.install()
one_lightning.install()
