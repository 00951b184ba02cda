"""Choice of launcher and image for a job, facts about instances, forwarding of stops."""

import re
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest
import sagemaker_training
from sagemaker import image_uris

import checkout
from small_job import GOOD, PROJECT
from smlightning.errors import UserError
from smlightning_sagemaker.job import aws, images, instances, launchers
from smlightning_sagemaker.preflight.launcher import without_image

WRITTEN = date(2026, 11, 24)  # the day of the table of images


@pytest.mark.parametrize(
    ("instance", "count", "launcher"),
    [
        ("ml.p4d.24xlarge", 2, "torch_distributed"),
        ("ml.g5.12xlarge", 1, "torch_distributed"),
        ("ml.g5.xlarge", 1, "none"),
        ("ml.g5.xlarge", 2, "torch_distributed"),  # the default job
        ("ml.m5.xlarge", 1, "none"),
        ("ml.m5.xlarge", 2, "torch_distributed"),
        ("ml.g9.48xlarge", 1, "torch_distributed"),  # unknown GPUs: torchrun uses what it finds
    ],
)
def test_auto_follows_the_instance(instance: str, count: int, launcher: str) -> None:
    wanted = GOOD.replace(instance_type=instance, instance_count=count)
    assert launchers.launcher(wanted) == launcher


@pytest.mark.parametrize("count", [1, 2])
def test_auto_chooses_a_patched_image_without_known_holes(count: int) -> None:
    for kind in aws.shape("TrainingInstanceType").enum:
        wanted = GOOD.replace(instance_type=kind, instance_count=count)
        if without_image(kind):
            continue
        chosen = images.profile(wanted)
        assert chosen and chosen.patched_until and chosen.patched_until >= WRITTEN
        assert not chosen.holes


@pytest.mark.parametrize("profile", images.PROFILES.values(), ids=images.PROFILES)
def test_a_profile_is_what_its_tag_says(profile: images.Profile) -> None:
    repository, _, tag = profile.gpu.partition(":")
    described = images.AwsImage("", "", repository, f"{tag}-x").profile  # no profile's own tag
    assert described and described.version == profile.version
    assert (described.python, described.cuda) == (profile.python, profile.cuda)
    assert described.launchers == profile.launchers


@pytest.mark.parametrize(
    ("tag", "torch"),
    [
        ("pytorch-training:2.7.0-gpu-py312-cu128-ubuntu22.04-sagemaker", "2.7.0"),
        ("pytorch:2.99-cpu-amzn2023-sagemaker", "2.99.0"),
    ],
)
def test_the_torch_of_an_image_follows_from_its_tag(tag: str, torch: str) -> None:
    profile = images.profile(GOOD.replace(image=f"{AWS_REGISTRY}/{tag}"))
    assert profile and profile.torch == torch


@pytest.mark.parametrize("profile", images.PROFILES.values(), ids=images.PROFILES)
def test_job_toml_describes_profiles_as_the_table_does(profile: images.Profile) -> None:
    comment = re.search(rf"(?m)^# {profile.name}: (torch .*)$", PROJECT.job_file.read_text())
    assert comment
    assert f"torch {profile.torch}," in comment[1]
    assert f"patched until {profile.patched_until}" in comment[1]


def test_the_rehearsal_installs_the_toolkit_of_the_current_image() -> None:
    packages = tomllib.loads((checkout.PACKAGES[1] / "pyproject.toml").read_text())["project"]
    pins = packages["optional-dependencies"]["rehearsal"]
    assert pins == [f"sagemaker-training=={images.CURRENT.toolkit}"]


def test_efa_is_set_by_the_toolkit_for_the_types_in_its_own_list() -> None:
    listed = set(sagemaker_training.SM_EFA_NCCL_INSTANCES) - {"ml.p5e.48xlarge"}
    assert {kind for kind in listed if not without_image(kind)} == images.EFA_SET
    with_rdma = {
        kind for kind in sagemaker_training.SM_EFA_RDMA_INSTANCES if not without_image(kind)
    }
    assert all(map(instances.efa, with_rdma))


def test_every_region_of_the_sdk_has_its_registry() -> None:
    config = image_uris.config_for_framework("pytorch")
    registries = config["training"]["versions"]["2.8.0"]["registries"]
    assert registries.items() <= images.REGISTRIES.items()  # of SDK v3


@pytest.mark.parametrize("profile", images.PROFILES.values(), ids=images.PROFILES)
def test_the_sdk_knows_the_images_of_the_profiles(profile: images.Profile) -> None:
    for name in filter(None, (profile.gpu, profile.cpu)):
        found = images.aws_image(f"{AWS_REGISTRY}/{name}")
        assert found and found.is_listed, name


def test_the_european_sovereign_cloud_has_its_registry() -> None:
    uri = images.image_uri(GOOD.replace(region="eusc-de-east-1"))
    assert re.fullmatch(r"\d{12}\.dkr\.ecr\.eusc-de-east-1\.amazonaws\.eu/pytorch:.+", uri)


def test_a_region_without_a_registry_is_an_error() -> None:
    with pytest.raises(UserError) as raised:
        images.image_uri(GOOD.replace(region="xx-nowhere-1"))
    assert "xx-nowhere-1" in raised.value.problem and "image" in raised.value.hint


@pytest.mark.parametrize("status", [0, 3])
def test_the_stop_forwarding_entry_ends_with_the_scripts_own_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    start = tmp_path / "start_with_right_hostname.sh"
    start.write_text(f"#!/bin/sh\nexit {status}\n")
    start.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for _ in range(3):
        assert subprocess.run(launchers.FORWARDING).returncode == status


MIRROR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mirror"
AWS_REGISTRY = "763104351884.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.mark.parametrize("profile", images.PROFILES.values(), ids=images.PROFILES)
@pytest.mark.parametrize("end", ["", "-v1.3", "-2026-01-21-20-04-11", f"@sha256:{'0' * 64}"])
@pytest.mark.parametrize("registry", [MIRROR, AWS_REGISTRY, images.PUBLIC])
def test_a_profiles_image_is_known_by_its_tag(
    profile: images.Profile, end: str, registry: str
) -> None:
    """In AWS's registry, in a mirror of it, and as one build."""
    wanted = GOOD.replace(image=f"{registry}/{profile.gpu}{end}")
    assert images.profile(wanted) == profile
    assert images.image_uri(wanted) == wanted.image


@pytest.mark.parametrize("image", ["mine:1", f"{images.SMDDP.gpu}-mine", "pytorch-training:2.8.0"])
def test_an_image_of_the_owners_own_is_unknown(image: str) -> None:
    assert images.profile(GOOD.replace(image=f"{MIRROR}/{image}")) is None
