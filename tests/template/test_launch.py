"""Images and instances of the job."""

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from projects import Project
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.job import aws, images, instances, job
from smlightning_sagemaker.preflight import requirements


def gpu_counts() -> dict[str, int | None]:
    """GPUs of each instance type that trains."""
    return {name: instances.gpus(name) for name in aws.shape("TrainingInstanceType").enum}


@pytest.mark.newest
def test_every_instance_type_has_its_gpus_counted() -> None:
    """With the newest botocore, whose new types launch/instances.py may not know yet."""
    uncounted = {name for name, gpus in gpu_counts().items() if gpus is None}
    assert uncounted == {"ml.p6e-gb200.36xlarge"}


def test_gpu_counts_agree_with_amazon_ec2() -> None:
    """moto has EC2's own answer to DescribeInstanceTypes, and takes seconds to send it."""
    known = {}
    for each in INSTANCE_TYPES.values():
        gpus = each.get("GpuInfo", {}).get("Gpus", [])
        nvidia = [gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA"]
        known[f"ml.{each['InstanceType']}"] = sum(nvidia)
    counted = {name: gpus for name, gpus in gpu_counts().items() if gpus is not None}
    compared = counted.keys() & known.keys()
    assert {name: counted[name] for name in compared} == {name: known[name] for name in compared}
    retired = {name for name, gpus in counted.items() if gpus} - compared
    assert {name.split(".")[1] for name in retired} == {"p2", "p3"}


# The oldest image rejects the most; every rehearsal resolves for the newest.
@pytest.mark.parametrize(
    "image",
    ["smddp", *(pytest.param(name, marks=pytest.mark.newest) for name in ("mpirun", "current"))],
)
def test_requirements_resolve_in_every_image_without_another_torch(
    project: Project, image: str
) -> None:
    """By uv, for the image's Python and Linux, with the image's torch in place."""
    here = projects.Project(project.path)
    wanted = job.load(here.job_file, here).replace(image=image)
    assert not list(requirements.resolved(wanted, here))
    ended = requirements.dry_run(wanted, here, images.PROFILES[image])
    versions = dict(requirements.INSTALLED.findall(ended.stderr))
    assert versions["pytorch-lightning"] == "2.6.6" and versions["transformers"] == "5.17.0"
