"""Tests that your data.py and model.py do what train.py, launcher and rehearsal rely on.

small.py defines the run. The tests: smlightning_sagemaker/testing/contract.py in the tools' wheel
"""

from smlightning_sagemaker.testing.contract import *  # noqa: F403
