"""Which launcher and image a job gets, what is known of instances, and how stops are forwarded."""

import subprocess
from pathlib import Path

import pytest
from sagemaker import image_uris
from sagemaker.utils import instance_supports_kms
from small_job import GOOD

from smlightning.errors import UserError
from smlightning.launch import images, instances, launchers


@pytest.mark.parametrize(
    ("instance", "count", "launcher"),
    [
        ("ml.p4d.24xlarge", 2, "smddp"),
        ("ml.p4de.24xlarge", 1, "smddp"),
        ("ml.p5.48xlarge", 1, "torch_distributed"),
        ("ml.g5.12xlarge", 1, "torch_distributed"),
        ("ml.g5.xlarge", 2, "torch_distributed"),
        ("ml.g5.xlarge", 1, "none"),
        ("ml.m5.xlarge", 1, "none"),
        ("ml.m5.xlarge", 2, "torch_distributed"),
        ("ml.g9.48xlarge", 1, "torch_distributed"),  # unknown GPUs: torchrun uses what it finds
        ("ml.gr6.4xlarge", 1, "none"),
    ],
)
def test_auto_follows_the_instance(instance: str, count: int, launcher: str) -> None:
    wanted = GOOD.replace(instance_type=instance, instance_count=count)
    assert launchers.launcher(wanted) == launcher


@pytest.mark.parametrize("region", images.REGISTRIES)
def test_the_registry_of_a_region_is_the_sdks(region: str) -> None:
    choice = {"version": "2.8.0", "py_version": "py312", "instance_type": "ml.g5.xlarge"}
    uri = image_uris.retrieve("pytorch", region, image_scope="training", **choice)
    wanted = GOOD.replace(region=region, distribution="torch_distributed")
    assert images.image_uri(wanted) == f"{uri.split('/')[0]}/{images.CURRENT.gpu}"


def test_every_region_of_the_sdk_has_its_registry() -> None:
    config = image_uris.config_for_framework("pytorch")
    registries = config["training"]["versions"]["2.8.0"]["registries"]
    assert registries == images.REGISTRIES


def test_a_cpu_instance_gets_the_cpu_image() -> None:
    wanted = GOOD.replace(instance_type="ml.m5.xlarge", instance_count=1)
    assert images.image_uri(wanted).endswith(f"/{images.CURRENT.cpu}")


def test_a_region_without_a_registry_is_named() -> None:
    with pytest.raises(UserError) as raised:
        images.image_uri(GOOD.replace(region="eusc-de-east-1"))
    assert "eusc-de-east-1" in raised.value.problem and "image" in raised.value.cure


@pytest.mark.parametrize(
    "kind", ["p4d", "p5", "g4dn", "g5", "g6e", "trn1", "c5", "m5", "p3", "c5d"]
)
def test_disks_that_take_no_key_are_the_sdks(kind: str) -> None:
    instance = f"ml.{kind}.24xlarge"
    assert instances.nvme(instance) != instance_supports_kms(instance)


def test_torchruns_options_are_all_known() -> None:
    from torch.distributed.run import get_args_parser

    long = {
        name[2:].replace("-", "_")
        for action in get_args_parser()._actions
        for name in action.option_strings
    }
    unlike = {"help", "elp", "local_rank"}
    assert {name for name in long if len(name) > 1} - unlike <= set(launchers.TORCHRUN)


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
