"""``predict.py --sample`` with the model that the rehearsed job has left."""

import subprocess
import sys
from pathlib import Path

from smlightning.cluster.location import DEFAULT_PORT
from smlightning.rehearsal.environment import container_environment
from smlightning.rehearsal.evidence import Attempt
from smlightning.rehearsal.plan import Plan

TIMEOUT = 120  # seconds


def program(attempt: Attempt) -> Path:
    """predict.py beside the first host's train.py."""
    return attempt.hosts[0].base / "code" / "predict.py"


def predict_sample(plan: Plan, attempt: Attempt) -> "subprocess.CompletedProcess[str] | None":
    """How predict.py ended; None: it had not after TIMEOUT seconds."""
    host = attempt.hosts[0]
    variables = container_environment(plan, attempt.folder, host, DEFAULT_PORT, False)
    variables["PYTHONPATH"] = ""  # without the stubs
    command = [sys.executable, str(program(attempt)), "--model_dir", str(host.base / "model")]
    try:
        return subprocess.run(
            [*command, "--sample"],
            cwd=attempt.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return None
