"""Checks of a planned deployment before anything is uploaded: secrets, and the code."""

from pathlib import Path

from smlightning_sagemaker.findings import Finding, ordered
from smlightning_sagemaker.job.deploy_plan import Deployment
from smlightning_sagemaker.preflight import secrets, source


def check(deployment: Deployment, src: Path) -> list[Finding]:
    """Findings in the code that would be uploaded, and in the members of [create].

    AWS reports missing permissions and a quota that is too small when `deploy` creates something;
    `deploy` then removes what it has created.
    """
    found = secrets.created(deployment.options.create, deployment.requests)
    return ordered([*found, *source.uploaded(src, source.SERVING)])
