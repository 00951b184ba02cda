"""The imports of every rank: a server process imports them once and forks the ranks."""

import importlib.util

from smlightning.training import imports
from smlightning_sagemaker.testing import owner

imports.lightning()

import matplotlib.pyplot  # noqa: E402, F401
import torch.utils.tensorboard  # noqa: E402, F401

from smlightning_sagemaker.testing import recording  # noqa: E402, F401

if importlib.util.find_spec("omegaconf"):  # Lightning imports it when it saves a state
    import omegaconf  # noqa: F401
if all(map(importlib.util.find_spec, owner.MODULES)):
    owner.load()
