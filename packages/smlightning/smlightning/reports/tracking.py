"""One run on a tracking server for all attempts of a training: its ID lies with the checkpoints.

SageMaker copies their folder to S3, and restores it for a restart and for a job that continues
another one's checkpoints.
"""

import importlib.util
import uuid
from collections.abc import MutableMapping
from pathlib import Path

from smlightning.files import atomic_write


class RunIds:
    """The IDs of this run on tracking servers, one file for each kind of server.

    Args:
        directory: of the checkpoints.
        goes_on: whether this run continues the one whose IDs lie there.
    """

    def __init__(self, directory: Path, goes_on: bool) -> None:
        self._directory = directory
        self._goes_on = goes_on

    def file(self, server: str) -> Path:
        """The file with the run's ID on this kind of server."""
        return self._directory / f"{server}-run"

    def known(self, server: str) -> str:
        """The ID of the run that goes on; empty for a new run."""
        file = self.file(server)
        return file.read_text() if self._goes_on and file.is_file() else ""

    def keep(self, server: str, run_id: str) -> None:
        """Write the ID for the next attempt."""
        with atomic_write(self.file(server)) as file:
            file.write_text(run_id)


def set_wandb_run(ids: RunIds, env: MutableMapping[str, str]) -> None:
    """Let wandb continue the run of the attempt before, unless the variables are set. On rank 0.

    With WANDB_RESUME=allow, wandb continues the run of WANDB_RUN_ID, or creates it
    (https://docs.wandb.ai/guides/track/environment-variables).
    """
    if "WANDB_RUN_ID" in env or importlib.util.find_spec("wandb") is None:
        return
    run_id = ids.known("wandb")
    if not run_id:
        run_id = uuid.uuid4().hex
        ids.keep("wandb", run_id)
    env["WANDB_RUN_ID"] = run_id
    env.setdefault("WANDB_RESUME", "allow")
