"""The contract that a project's tests import, on the files that a project is generated with."""

from smlightning_sagemaker.testing.contract import *  # noqa: F403

del test_the_rehearsal_passes  # noqa: F821  projects of tests/template are rehearsed
