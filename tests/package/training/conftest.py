"""Tests of this folder train the small model of small_training.py."""

import lightning_first  # noqa: F401
from small_training import fit

__all__ = ["fit"]
