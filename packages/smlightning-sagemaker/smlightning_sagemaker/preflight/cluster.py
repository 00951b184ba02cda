"""Checks of region, instances and launcher against each other."""

import re
from collections.abc import Iterator
from functools import partial

from smlightning.cluster.location import OLD_SMDDP_INSTANCE, SMDDP_INSTANCES, runs_smddp
from smlightning_sagemaker.findings import (
    Finding,
    cure_for_unknown_name,
    error,
    first_of,
    skipped,
    warning,
)
from smlightning_sagemaker.job import aws, instances, launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import members
from smlightning_sagemaker.project import Project

USUAL_INSTANCES = 20  # AWS's default quota for one job
MOST_INSTANCES = 1000  # a larger number is a slip of the pen
REGIONS_PAGE = "https://docs.aws.amazon.com/general/latest/gr/sagemaker.html"
REGION_LIKENESS = 0.75  # names of regions share their ends: mars-1 has 0.53 of sa-east-1
WITHOUT_IMAGE = ("trn", "p6e-gb200")  # Trainium, and ARM: AWS's images here are for NVIDIA on x86


# Families with local NVMe disks, which take no VolumeKmsKeyId (API_ResourceConfig).
LOCAL_DISKS = re.compile(r"p3dn|p[456]|g[4-7]|gr|trn|\w\dd$")


def region(job: Job, project: Project) -> Iterator[Finding]:
    """SageMaker has the region."""
    if job.region not in aws.regions():
        cure = cure_for_unknown_name(
            job.region, aws.regions(), likeness=REGION_LIKENESS, page=REGIONS_PAGE
        )
        yield error(
            "region",
            f'"{job.region}" is not a region of SageMaker',
            f"{cure}; if AWS opened it later, pip install --upgrade boto3",
        )


def instance(job: Job, project: Project) -> Iterator[Finding]:
    """The instance types exist, the images run on them, and the count is plausible."""
    kind, count = job.instance_type, job.instance_count
    disk_key = job.request.get("ResourceConfig", {}).get("VolumeKmsKeyId")
    # For a type that botocore does not know there may be no request to check.
    shape = aws.shape("TrainingInstanceType")
    yield from members.beyond_limits(kind, shape, "ResourceConfig.InstanceType")
    unknown = f"the number of GPUs of {kind} is not known here"
    yield from first_of(
        (
            without_image(job),
            error(
                "instance_type",
                f"AWS's training images do not run on {kind}",
                "use a p or g instance (NVIDIA, x86)",
            ),
        ),
        (
            instances.gpus(kind) is None,
            skipped("instance_type", unknown, "torchrun uses all it finds"),
        ),
    )
    if LOCAL_DISKS.match(instances.family(kind)) and disk_key:
        problem = f"{kind} stores data on its own disks, which AWS encrypts with its own key"
        yield error("request.ResourceConfig.VolumeKmsKeyId", problem, "remove it")
    for name in job.other_hosts:
        problem = "preflight checks instance_type and instance_count, which this replaces"
        yield skipped(f"request.ResourceConfig.{name}", problem, "check its hosts yourself")
    if without_image(job):
        return
    yield from first_of(
        (
            count > MOST_INSTANCES,
            error(
                "instance_count",
                f"{count:,} instances; expected at most {MOST_INSTANCES:,}",
                "correct it",
            ),
        ),
        (
            count > USUAL_INSTANCES,
            warning(
                "instance_count",
                f"{count} is above AWS's default of {USUAL_INSTANCES} instances per job",
                "check that AWS has raised your quota",
            ),
        ),
    )


def launcher(job: Job, project: Project) -> Iterator[Finding]:
    """The launcher runs on the instances, and uses all of their GPUs."""
    if without_image(job):
        return
    kind, count, gpus = job.instance_type, job.instance_count, instances.gpus(job.instance_type)
    chosen = launchers.launcher(job)
    smddp, none = chosen == "smddp", chosen == "none"
    torchrun = 'set distribution = "torch_distributed"'
    other = f"{torchrun}, or instance_type to one of {', '.join(SMDDP_INSTANCES)}"
    wrong = partial(error, "distribution")
    yield from first_of(
        (
            smddp and not runs_smddp(kind),
            wrong(f"SMDDP does not run on {kind}", other),
        ),
        (
            smddp and kind == OLD_SMDDP_INSTANCE,
            warning(
                "distribution",
                f"AWS no longer develops SMDDP for {OLD_SMDDP_INSTANCE}",
                f"{torchrun}, or use {SMDDP_INSTANCES[0]}",
            ),
        ),
        (
            smddp and job.hyperparameters.get("strategy") == "fsdp",
            wrong(
                "--strategy fsdp makes its own process groups, which SMDDP does not support",
                torchrun,
            ),
        ),
        (
            chosen == "pytorchddp" and gpus == 0,
            wrong(f"pytorchddp needs GPUs and {kind} has none", torchrun),
        ),
        (
            none and count > 1,
            wrong(f'with "none", each of {count} hosts would train alone, as rank 0', torchrun),
        ),
        (
            none and (gpus or 0) > 1,
            wrong(
                f'"none" starts one process: {(gpus or 0) - 1} of {gpus} billed GPUs would idle',
                torchrun,
            ),
        ),
    )


def sharding(job: Job, project: Project) -> Iterator[Finding]:
    """`--shard_size` divides the number of processes."""
    size, gpus = job.hyperparameters.get("shard_size", 0), instances.gpus(job.instance_type)
    count = job.instance_count * (gpus or 1)
    if launchers.launcher(job) == "none" or gpus is None or count == 1:
        return  # one process divides nothing
    if job.hyperparameters.get("strategy") == "fsdp" and isinstance(size, int) and size > 0:
        fitting = [number for number in range(2, count + 1) if count % number == 0]
        if size not in fitting:
            problem = f"found {size}; expected a divisor of the {count} processes, above 1"
            cure = f"set it to one of {', '.join(map(str, fitting))}, or to 0 for all"
            yield error("hyperparameters.shard_size", problem, cure)


def without_image(job: Job) -> bool:
    """Whether AWS's training images do not run on the instance type."""
    return instances.family(job.instance_type).startswith(WITHOUT_IMAGE)
