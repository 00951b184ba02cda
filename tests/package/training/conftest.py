"""Tests of this folder train the small model of small_training.py."""

from small_training import fit

__all__ = ["fit"]
