"""The contract's test of each option, kept by the files that a project is generated with."""

from smlightning.testing import contract
from smlightning.testing.contract import *  # noqa: F403

for name in dir(contract):
    if name.startswith("test_") and name != "test_every_option_changes_something":
        del globals()[name]  # test_contract.py
