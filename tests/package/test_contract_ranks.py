"""The contract's tests of several ranks, kept by the files that a project is generated with."""

from smlightning.testing import contract
from smlightning.testing.contract import *  # noqa: F403

HERE = {"test_the_ranks_agree", "test_every_sample_reaches_one_rank"}
for name in dir(contract):
    if name.startswith("test_") and name not in HERE:
        del globals()[name]  # test_contract.py
