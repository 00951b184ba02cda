"""The imports of every rank: a server process imports them once and forks the ranks."""

import importlib.util

import matplotlib.pyplot  # noqa: F401
import torch.utils.tensorboard  # noqa: F401

from smlightning_sagemaker.testing import (
    owner,
    recording,  # noqa: F401
)

if importlib.util.find_spec("omegaconf"):  # Lightning imports it when it saves a state
    import omegaconf  # noqa: F401
if all(map(importlib.util.find_spec, owner.MODULES)):
    owner.load()
