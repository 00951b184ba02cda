"""The channel of a job that ``--dataset training`` reads.

Preflight reads the name, so this file imports nothing heavy.
"""

import os
from pathlib import Path

from smlightning.errors import UserError

CHANNEL = "training"
VARIABLE = f"SM_CHANNEL_{CHANNEL.upper()}"  # SageMaker's toolkit sets it to the folder


def channel_folder() -> Path:
    """The folder of the channel; UserError outside a job that has one."""
    found = os.environ.get(VARIABLE, "")
    if not found:
        raise UserError(
            f"--dataset {CHANNEL} reads the job's channel, but {VARIABLE} is not set",
            f"pass a path; in a job, add {CHANNEL} under [channels]",
        )
    return Path(found)
