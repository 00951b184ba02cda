"""What each rank imports: a server process does so once, and ranks are forked from it (`runs.py`)."""

from runtime import imports

imports.lightning()

import matplotlib.pyplot  # noqa: E402, F401
import torch.utils.tensorboard  # noqa: E402, F401

import data  # noqa: E402, F401
import model  # noqa: E402, F401
import train  # noqa: E402, F401
