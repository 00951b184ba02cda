"""Tests that your data.py and model.py do what train.py, launcher and rehearsal rely on.

small.py defines the run. The tests: vendor/smlightning/smlightning/testing/contract.py
"""

from smlightning.testing.contract import *  # noqa: F403
