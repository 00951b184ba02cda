"""The image: it trains with SageMaker's toolkit, has the launcher, and runs the options."""

import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any

from smlightning.errors import UserError
from smlightning.options import encode, parse_command_line
from smlightning_sagemaker.findings import (
    Finding,
    error,
    hint_for_unknown_name,
    skipped,
    warning,
)
from smlightning_sagemaker.job import images, instances, launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

LIGHTNING_NEEDS = (2, 1)  # the oldest torch of the pytorch-lightning in src/requirements.txt
# AWS's images of other programs and processors.
OTHER_IMAGES = re.compile(
    r"inference|^ray$|tensorflow|mxnet|neuron|habana|vllm|sglang|djl|^base$|^xgboost|chainer"
)
TAKE = 'set image = "auto", or use one of pytorch or pytorch-training'


def kind(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """An image of AWS at an address is one for training, with SageMaker's toolkit.

    https://aws.github.io/deep-learning-containers/reference/available_images/
    """
    if "/" not in job.image:
        if job.image not in ("auto", *images.PROFILES):
            problem = f'"{job.image}" is neither a profile nor an image\'s URI'
            hint = hint_for_unknown_name(job.image, ["auto", *images.PROFILES])
            yield error("image", problem, hint)
        return
    found = images.aws_image(job.image)
    repository, tag = (found.repository, found.tag) if found else ("", "")
    name = f"{repository}:{tag}"
    if "arm64" in name or OTHER_IMAGES.search(repository):
        yield error("image", f"{name} does not train PyTorch on NVIDIA GPUs and x86", TAKE)
    elif found and not tag and "@" in job.image:
        problem = "the Python, torch and launcher of an image by its digest are not known here"
        yield skipped("image", problem, "write its tag before the digest, as in :TAG@sha256:…")
    elif "-ec2" in tag or (repository == "pytorch" and "sagemaker" not in tag):
        problem = f"{name} is for EC2, without SageMaker's toolkit"
        yield error("image", problem, "use the tag that ends in -sagemaker")
    elif found and not found.is_listed:
        problem = f"SageMaker's SDK knows no {name} ({images.TABLES['source']})"
        yield warning("image", problem, f"check the tag, or {TAKE}")
    elif images.profile(job) is None:
        problem = "the Python, torch and launcher of this image are not known here"
        yield skipped("image", problem, "rehearse with the same versions")


def torch(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Lightning runs on the image's torch (pytorch-lightning 2.6, requirements/base.txt)."""
    profile = images.profile(job)
    if profile and profile.version < LIGHTNING_NEEDS:
        problem = f"{profile.name} has torch {profile.torch}, and Lightning needs 2.1 or newer"
        yield error("image", problem, TAKE)


def launcher(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The image has the launcher's program (job/images.py cites the Dockerfiles)."""
    profile, wanted = images.profile(job), launchers.launcher(job)
    if profile and wanted not in profile.launchers:
        problem = f"{profile.name} (torch {profile.torch}) cannot start {wanted}"
        fitting = [name for name, each in images.PROFILES.items() if wanted in each.launchers]
        yield error("image", problem, f'set image = "{fitting[0]}"')


def processor(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The request's one image fits each type of host: with a CPU image, GPUs would be idle."""
    profile, has_gpus = images.profile(job), instances.gpus(job.instance_type) != 0
    image = request["AlgorithmSpecification"]["TrainingImage"].partition("@")[0].rpartition("/")[2]
    is_for_cpus = bool(re.search(r"[:.-]cpu\b", image))
    auto = "use types with GPUs, or types without" if job.other_hosts else 'set image = "auto"'
    if has_gpus and is_for_cpus:
        problem = f"its tag says CPU, and the GPUs of {job.instance_type} would be idle"
        yield error("image", problem, "use a GPU image")
    elif profile and not has_gpus and not is_for_cpus and (job.other_hosts or not profile.cpu):
        problem = f"{profile.name} is an image for GPUs and {job.instance_type} has none"
        yield error("image", problem, auto)


def cuda(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The image's CUDA supports the GPUs: 12 dropped Kepler (p2), 13 Volta (p3); Blackwell (p6, g7)
    began with 12.8.

    https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
    """
    profile, family = images.profile(job), instances.family(job.instance_type)
    if profile is None or profile.cuda is None:
        return
    hint = ""
    if family == "p2" and profile.cuda >= (12, 0):
        hint = "use a newer instance"
    elif family.startswith("p3") and profile.cuda >= (13, 0):
        hint = 'use a newer instance, or image = "smddp"'
    elif family.startswith(("p6", "g7")) and profile.cuda < (12, 8):
        hint = 'set image = "current"'
    if hint:
        version = ".".join(map(str, profile.cuda))
        problem = f"CUDA {version} of {profile.name} does not support the GPUs of {family}"
        yield error("image", problem, hint)


def holes(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """AWS still patches the image, and torch.load is safe in it (advisories: images.HOLES).

    One warning: a job may need this image, as SMDDP does.
    """
    profile = images.profile(job)
    if profile is None:
        return
    reasons = [f"lets a malicious file {harm}" for harm in profile.holes]
    hint = f"set {other_image(job)}"
    if reasons:
        hint += "; or load only your own files in it, and let only your team write to its S3"
    if profile.patched_until and date.today() > profile.patched_until:
        reasons.insert(0, f"has had no security patches since {profile.patched_until}")
    if reasons:
        problem = f"{profile.name} (torch {profile.torch}) {', '.join(reasons)}"
        yield warning("image", problem, hint)


def options(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The image's torch can run the options of train.py (images.LIMITS cites torch's source)."""
    profile = images.profile(job)
    is_one = instances.gpus(job.instance_type) in (0, 1) and job.instance_count == 1
    if profile is None or is_one or launchers.launcher(job) == "none":
        return
    words = [f"--{name}={encode(value)}" for name, value in job.hyperparameters.items()]
    try:
        chosen = {"strategy": "ddp", **vars(parse_command_line(project.options().cls, words))}
    except UserError:
        return  # hyperparameters.py reports it
    for limit in profile.limits(chosen):
        values = " with ".join(f"{name} = {json.dumps(chosen[name])}" for name in limit.named)
        newer = ".".join(map(str, limit.before))
        yield error(
            f"hyperparameters.{limit.named[0]}",
            f"{values} needs torch {newer} or newer, and torch {profile.torch} of {profile.name} "
            f"{limit.why}",
            f"set {other_image(job)}, or change it",
        )


def other_image(job: Job) -> str:
    """The settings of job.toml that give the job the newest image.

    It has neither SMDDP nor mpirun, for which "auto" takes an older one.
    """
    if launchers.launcher(job) in images.IMAGE_OF_LAUNCHER:
        return 'distribution = "torch_distributed" and image = "auto"'
    return 'image = "auto"'
