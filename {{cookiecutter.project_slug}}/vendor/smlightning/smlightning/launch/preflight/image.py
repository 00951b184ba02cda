"""The image of a job against its region, instances and launcher."""

import re
from collections.abc import Iterator
from datetime import date

from smlightning.launch import images, instances, launchers
from smlightning.launch.findings import Finding, cure_for_unknown_name, error, skipped, warning
from smlightning.launch.images import Profile
from smlightning.launch.job import Job
from smlightning.project import Project

ECR = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com")


def image(job: Job, project: Project) -> Iterator[Finding]:
    """A profile of this project, or an image in the job's region."""
    profile = images.profile(job)
    if profile:
        yield from profile_fits(job, profile)
        yield from cuda_fits(job, profile)
        yield from patched(profile, date.today())
    elif "/" in job.image:
        yield from image_of_owner(job)
    else:
        problem = f'"{job.image}" is neither a profile nor an image\'s URI'
        yield error("image", problem, cure_for_unknown_name(job.image, ["auto", *images.PROFILES]))


def image_of_owner(job: Job) -> Iterator[Finding]:
    """An image's URI: what can be told from its address."""
    address = ECR.match(job.image)
    if not address and not from_private_registry(job):
        yield error(
            "image",
            f'"{job.image}" is not in Amazon ECR',
            "push it to Amazon ECR; a registry in your VPC needs "
            'TrainingRepositoryAccessMode = "Vpc" in '
            "[request.AlgorithmSpecification.TrainingImageConfig]",
        )
    elif address and address[1] != job.region:
        problem = f"it is in {address[1]} and the job in {job.region}"
        yield error("image", problem, "name the one in the job's region")
    elif instances.gpus(job.instance_type) != 0 and names_cpu(job.image):
        problem = f"its tag says CPU, and the GPUs of {job.instance_type} would idle"
        yield error("image", problem, "take a GPU image")
    yield skipped(
        "image",
        "Python, torch and launcher of an image of your own are not known",
        "rehearse with them",
    )


def from_private_registry(job: Job) -> bool:
    algorithm = job.request.get("AlgorithmSpecification", {})
    access = algorithm.get("TrainingImageConfig", {})
    return bool(access.get("TrainingRepositoryAccessMode") == "Vpc")


def names_cpu(uri: str) -> bool:
    return bool(re.search(r"[:.-]cpu\b", uri.rpartition("/")[2]))


def profile_fits(job: Job, profile: Profile) -> Iterator[Finding]:
    """The image has the launcher, and is for the instance's kind of processor."""
    launcher = launchers.launcher(job)
    if launcher not in profile.launchers:
        fitting = [name for name, other in images.PROFILES.items() if launcher in other.launchers]
        problem = f"{profile.name} (torch {profile.torch}) cannot start {launcher}"
        yield error("image", problem, f'set image = "{fitting[0]}"')
    elif instances.gpus(job.instance_type) == 0 and not profile.cpu:
        problem = f"{profile.name} is an image for GPUs and {job.instance_type} has none"
        yield error("image", problem, 'set image = "auto"')


def cuda_fits(job: Job, profile: Profile) -> Iterator[Finding]:
    """CUDA 12 dropped Kepler (p2), 13 Volta (p3); Blackwell (p6, g7) began with 12.8."""
    family = instances.family(job.instance_type)
    version = ".".join(map(str, profile.cuda))
    problem = f"CUDA {version} of {profile.name} does not support the GPUs of {family}"
    if family == "p2":
        yield error("image", problem, "take a newer instance")
    elif family.startswith("p3") and profile.cuda >= (13, 0):
        yield error("image", problem, 'take a newer instance, or image = "smddp"')
    elif family.startswith(("p6", "g7")) and profile.cuda < (12, 8):
        yield error("image", problem, 'set image = "current"')


def patched(profile: Profile, today: date) -> Iterator[Finding]:
    """AWS still patches the image."""
    if today <= profile.patched_until:
        return
    problem = (
        f"{profile.name} (torch {profile.torch}) has had no security patches "
        f"since {profile.patched_until}"
    )
    cure = "update this project"
    if profile.name == "smddp":
        cure = (
            'set distribution = "torch_distributed" and image = "current" if SMDDP is not worth it'
        )
    yield warning("image", problem, cure)
