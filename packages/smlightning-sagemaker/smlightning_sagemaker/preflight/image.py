"""Checks of the image against region, instances and launcher."""

import json
import re
from collections.abc import Iterator
from datetime import date
from functools import partial

from smlightning.errors import UserError
from smlightning.options import parse_command_line
from smlightning_sagemaker.findings import (
    Finding,
    cure_for_unknown_name,
    error,
    first_of,
    skipped,
    warning,
)
from smlightning_sagemaker.job import aws, images, instances, launchers
from smlightning_sagemaker.job.images import AwsImage, Profile
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

TRAINING = ("pytorch", "pytorch-training")  # AWS's repositories whose images train PyTorch
LIGHTNING_NEEDS = (2, 1)  # the oldest torch of the pytorch-lightning in src/requirements.txt


def image(job: Job, project: Project) -> Iterator[Finding]:
    """A profile of this project, or an image in the job's region."""
    if job.image == "auto" or job.image in images.PROFILES:
        yield from of_profile(job, images.profile(job))
    elif "/" in job.image:
        yield from image_of_owner(job)
    else:
        problem = f'"{job.image}" is neither a profile nor an image\'s URI'
        yield error("image", problem, cure_for_unknown_name(job.image, ["auto", *images.PROFILES]))


def address(job: Job) -> Iterator[Finding]:
    """An image's address: it is one, in a registry that SageMaker reaches, in the job's region."""
    uri = job.image
    ecr = images.ECR.match(uri)
    region = ecr[2] if ecr else job.region
    yield from first_of(
        (
            not images.REFERENCE.fullmatch(uri),
            error(
                "image",
                f'"{uri}" is not the address of an image',
                "as in <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>",
            ),
        ),
        (
            not ecr and not images.aws_image(uri) and not from_private_registry(job),
            error(
                "image",
                f'"{uri}" is not in Amazon ECR',
                "push it to Amazon ECR; a registry in your VPC needs "
                'TrainingRepositoryAccessMode = "Vpc" in '
                "[request.AlgorithmSpecification.TrainingImageConfig]",
            ),
        ),
        (
            region != job.region and job.region in aws.regions(),
            error(
                "image",
                f"it is in {region} and the job in {job.region}",
                "use the one in the job's region",
            ),
        ),
    )


def of_profile(job: Job, profile: Profile | None) -> Iterator[Finding]:
    """An image's launchers, GPUs and known faults; none for an unknown image."""
    if profile:
        yield from profile_fits(job, profile)
        yield from cuda_fits(job, profile)
        yield from holes(job, profile, date.today())


def image_of_owner(job: Job) -> Iterator[Finding]:
    """An image's URI: problems that its address shows."""
    image = images.aws_image(job.image)
    wrong = list(address(job))
    if wrong:
        yield from wrong
    elif instances.gpus(job.instance_type) != 0 and names_cpu(job.image):
        problem = f"its tag says CPU, and the GPUs of {job.instance_type} would idle"
        yield error("image", problem, "use a GPU image")
    elif image:
        yield from image_of_aws(job, image)
        return
    elif profile := images.profile(job):
        yield from of_profile(job, profile)
        return
    yield skipped(
        "image",
        "the Python, torch and launcher of your own image are not known here",
        "rehearse with the same versions",
    )
    if job.forward_stop and not image:
        yield error(
            "forward_stop",
            "it runs start_with_right_hostname.sh of AWS's images; in an image without this script "
            "the job ends at once with status 127",
            "set it to false, unless your image has the script",
        )


def image_of_aws(job: Job, image: AwsImage) -> Iterator[Finding]:
    """One of AWS's own images: account, repository and tag."""
    name = f"{image.repository}:{image.tag}"
    account = images.REGISTRIES.get(image.region)
    torch = image.torch or (0, 0)
    take = 'set image = "auto", or use one of pytorch or pytorch-training'
    wrong = partial(error, "image")
    without_toolkit = image.repository == "pytorch" and "sagemaker" not in image.tag
    findings = first_of(
        (
            image.account and image.account != account,
            wrong(
                f"AWS keeps its images for {image.region} in account {account}, not in "
                f"{image.account}",
                "correct the account",
            ),
        ),
        ("arm64" in name, wrong(f"{name} is for ARM, and {job.instance_type} is x86", take)),
        (
            "inference" in image.repository or image.repository == "ray",
            wrong(f"{name} is for inference, and starts no training", take),
        ),
        (
            image.repository not in TRAINING,
            skipped(
                "image",
                f"the contents of {name} are not known here",
                "rehearse with its versions",
            ),
        ),
        (not image.torch, wrong(f"{name} has no version of torch", 'as in "pytorch:2.13-…"')),
        (
            "-ec2" in image.tag or without_toolkit,
            wrong(
                f"{name} is for EC2, without SageMaker's toolkit",
                "use the tag that ends in -sagemaker",
            ),
        ),
        (
            torch < LIGHTNING_NEEDS,
            wrong(
                f"{name} has torch {'.'.join(map(str, torch))}, and Lightning here needs 2.1 or "
                "newer",
                take,
            ),
        ),
    )
    problem = next(findings, None)
    yield from of_profile(job, image.profile) if problem is None else [problem]


def from_private_registry(job: Job) -> bool:
    algorithm = job.request.get("AlgorithmSpecification", {})
    access = algorithm.get("TrainingImageConfig", {})
    return bool(access.get("TrainingRepositoryAccessMode") == "Vpc")


def names_cpu(uri: str) -> bool:
    return bool(re.search(r"[:.-]cpu\b", uri.rpartition("/")[2]))


def profile_fits(job: Job, profile: Profile) -> Iterator[Finding]:
    """The image has the launcher, and is for the instance's kind of processor."""
    launcher = launchers.launcher(job)
    fitting = [name for name, other in images.PROFILES.items() if launcher in other.launchers]
    yield from first_of(
        (
            launcher not in profile.launchers,
            error(
                "image",
                f"{profile.name} (torch {profile.torch}) cannot start {launcher}",
                f'set image = "{fitting[0]}"',
            ),
        ),
        (
            instances.gpus(job.instance_type) == 0 and not profile.cpu,
            error(
                "image",
                f"{profile.name} is an image for GPUs and {job.instance_type} has none",
                'set image = "auto"',
            ),
        ),
    )


def cuda_fits(job: Job, profile: Profile) -> Iterator[Finding]:
    """CUDA 12 dropped Kepler (p2), 13 Volta (p3); Blackwell (p6, g7) began with 12.8."""
    if profile.cuda is None:
        return
    version = ".".join(map(str, profile.cuda))
    family = instances.family(job.instance_type)
    problem = f"CUDA {version} of {profile.name} does not support the GPUs of {family}"
    if family == "p2":
        yield error("image", problem, "use a newer instance")
    elif family.startswith("p3") and profile.cuda >= (13, 0):
        yield error("image", problem, 'use a newer instance, or image = "smddp"')
    elif family.startswith(("p6", "g7")) and profile.cuda < (12, 8):
        yield error("image", problem, 'set image = "current"')


def holes(job: Job, profile: Profile, today: date) -> Iterator[Finding]:
    """One warning for the security of an image that AWS no longer patches, or with known holes."""
    reasons = [f"lets a malicious file {harm}" for harm in profile.holes]
    cures = [f"set {other_image(job)}"]
    if profile.holes:
        cures.insert(0, "load only your own files in it, and let only your team write to its S3")
    if profile.patched_until and today > profile.patched_until:
        reasons.insert(0, f"has had no security patches since {profile.patched_until}")
    if reasons:
        problem = f"{profile.name} (torch {profile.torch}) {', '.join(reasons)}"
        yield warning("image", problem, "; or ".join(cures))


def other_image(job: Job) -> str:
    """The settings that give the job this project's own image, without SMDDP."""
    return " and ".join(f'{name} = "{value}"' for name, value in own_image(job).items())


def own_image(job: Job) -> dict[str, str]:
    """Keys of job.toml that give the job this project's own image, without SMDDP."""
    if launchers.launcher(job) == "smddp":
        return {"distribution": "torch_distributed", "image": "auto"}
    return {"image": "auto"}


def options(job: Job, project: Project) -> Iterator[Finding]:
    """The image's torch can run the options of train.py, where several processes train."""
    profile = images.profile(job)
    is_one = instances.gpus(job.instance_type) in (0, 1) and job.instance_count == 1
    if profile is None or is_one or launchers.launcher(job) == "none":
        return
    try:
        words = [f"--{name}={value}" for name, value in job.hyperparameters.items()]
        declared = parse_command_line(project.options().cls, words)
    except UserError:
        return  # `hyperparameters` says so
    chosen = {"strategy": "ddp", **vars(declared)}
    for limit in profile.limits(chosen):
        chosen_values = " with ".join(
            f"{name} = {json.dumps(chosen[name])}" for name in limit.named
        )
        problem = f"torch {profile.torch} of {profile.name} {limit.why}"
        newer = ".".join(map(str, limit.before))
        yield error(
            f"hyperparameters.{limit.named[0]}",
            f"{chosen_values} needs torch {newer} or newer, and {problem}",
            f"set {other_image(job)}, or change it",
        )
