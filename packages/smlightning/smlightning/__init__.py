"""The machinery of a PyTorch Lightning project that trains on a laptop and on SageMaker."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  an older Python gets a sentence
    raise SystemExit(
        f"error: Python {sys.version.split()[0]} found, 3.11 or newer expected; make an "
        "environment with make setup PYTHON=python3.12"
    )

__version__ = "1.1.0"
