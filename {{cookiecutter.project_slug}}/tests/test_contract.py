"""What train.py, the launcher and the rehearsal rely on, tried on your data.py and model.py.

small.py says which run is tried. The tests: vendor/smlightning/smlightning/testing/contract.py
"""

from smlightning.testing.contract import *  # noqa: F403
