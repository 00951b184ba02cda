"""A profile is offered once `make images` has proven it with the versions of the table."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from images import prove
from smlightning_sagemaker.job.images import PROFILES

RECORD: dict[str, Any] = json.loads(prove.RECORD.read_text())
WORKFLOW = Path(prove.__file__).parents[2] / ".github" / "workflows" / "images.yml"


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_was_proven_with_the_versions_of_the_table(name: str) -> None:
    profile, versions = PROFILES[name], RECORD[name]["versions"]
    assert versions["torch"] == profile.torch
    assert versions["python"].startswith(f"{profile.python}.")
    assert versions["sagemaker-training"] == profile.toolkit
    assert versions["sagemaker-pytorch-training"] == profile.pytorch_toolkit


@pytest.mark.parametrize("name", PROFILES)
def test_the_record_of_each_profile_is_complete(name: str) -> None:
    """Whole and sharded, every step; each of its launchers."""
    profile = PROFILES[name]
    rows = {row["name"]: row for row in RECORD[name]["rows"]}
    assert not [row["problem"] for row in rows.values() if row["problem"]]
    trainings = [training.name for training in prove.trainings(profile, PLACES)]
    assert len(trainings) == (2 if any(profile.limits({"strategy": "fsdp"})) else 3)
    for training in trainings:
        assert set(rows[training]["seconds"]) == set(prove.STEPS), training
    for launcher in profile.launchers:
        assert rows[launcher]["seconds"]
    assert rows[prove.TESTS]["seconds"]


PLACES = dict.fromkeys(("words", "bert"), Path("anywhere"))


def test_the_page_shows_the_record() -> None:
    assert prove.PAGE.read_text(encoding="utf-8") == prove.page(prove.in_order(RECORD))


def test_a_scheduled_workflow_proves_every_profile_on_its_python() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    rows = workflow["jobs"]["image"]["strategy"]["matrix"]["include"]
    assert {row["profile"]: row["python"] for row in rows} == {
        profile.name: profile.python for profile in PROFILES.values()
    }
