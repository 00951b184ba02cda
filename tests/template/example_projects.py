"""Projects that hold the files of an example, and their runs that are killed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from projects import Project, bake

CHANNEL = "s3://bucket/data/"
CONTRACT = ["python", "-m", "pytest", "-n", "0", "tests/test_contract.py", "--basetemp"]


def bake_example(folder: Path, *sources: Path) -> Project:
    """Generate a project whose files the ones in ``sources`` replace; it reads one channel."""
    made = bake(folder)
    shutil.rmtree(made.path / "tests" / "example")
    for source in sources:
        shutil.copytree(source, made.path / source.name, dirs_exist_ok=True)
    job = made.read("job.toml").replace("# epochs = 10", 'dataset = "training"')
    job = job.replace('# training = "s3://my-bucket/my-data/"', f'training = "{CHANNEL}"')
    (made.path / "job.toml").write_text(job, "utf-8")
    return made


# The killed runs train 14 batches at most. Five epochs have 15 or more: each run is killed in time.
KILLS = """
import json, sys
from pathlib import Path
import small
from smlightning_sagemaker.testing import runs
place = Path(sys.argv[1])
options = {**small.options(place), "checkpoint_steps": 1, "epochs": 5}
whole = runs.train(place / "whole", options, world_size=2)
for batches in (3, 4, 2, 3, 2):
    runs.train(place / "killed", options, world_size=2, kill_at=batches)
resumed = runs.train(place / "killed", options, world_size=2)
print(json.dumps({
    "equal": [[one[key] == other[key] for key in ("last", "best", "metrics")]
              for one, other in zip(whole, resumed)],
    "batches": [len(run[0]["batches"]) for run in (whole, resumed)],
    "first_loss": whole[0]["losses"][0],
}))
"""


def assert_five_kills_change_no_bit(project: Project, folder: Path) -> float:
    """Train on two ranks, whole in ``folder``/whole and killed five times.

    Returns:
        The loss of the first batch.
    """
    path = os.pathsep.join((".", "src", "tests"))
    printed = project.run("python", "-c", KILLS, str(folder), PYTHONPATH=path).stdout
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert found["equal"] == [[True] * 3] * 2
    whole, resumed = found["batches"]
    assert 0 < resumed <= whole - 2  # the second kill waits for the checkpoint of step 2
    return found["first_loss"]
