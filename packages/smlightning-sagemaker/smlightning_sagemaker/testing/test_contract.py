"""The contract, where a project's src/ and tests/ are on the path; elsewhere nothing."""

from smlightning_sagemaker.testing import owner

if owner.is_on_the_path():
    from smlightning_sagemaker.testing.contract import *  # noqa: F403
