"""The contract that a project's tests import, on the files that a project is generated with."""

from smlightning.testing.contract import *  # noqa: F403

del test_the_rehearsal_passes  # noqa: F821  projects of tests/template are rehearsed
del test_every_option_changes_something  # noqa: F821  test_contract_options.py
del test_the_ranks_agree, test_every_sample_reaches_one_rank  # noqa: F821  test_contract_ranks.py
