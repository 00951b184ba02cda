"""Checks of region, instances and launcher against each other."""

import functools
import re
from collections.abc import Callable, Iterator
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
from smlightning_sagemaker.job import aws, instances, launchers, resources
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import members
from smlightning_sagemaker.project import Project

USUAL_INSTANCES = 20  # AWS's default quota for one job
MOST_INSTANCES = 1000  # a larger number is a slip of the pen
GROUPS_KEY = "request.ResourceConfig.InstanceGroups"
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


def for_all_candidates(
    check: Callable[[Job, Project], Iterator[Finding]],
) -> Callable[[Job, Project], Iterator[Finding]]:
    """The check of the job on each cluster that SageMaker may select; each finding once."""

    @functools.wraps(check)
    def checked(job: Job, project: Project) -> Iterator[Finding]:
        jobs = resources.alternatives(job)
        yield from dict.fromkeys(finding for one in jobs for finding in check(one, project))

    return checked


@for_all_candidates
def instance(job: Job, project: Project) -> Iterator[Finding]:
    """The instance types exist, the images run on them, and the count is plausible."""
    key, count = resources.key(job, "InstanceType"), resources.host_count(job)
    disk_key = job.request.get("ResourceConfig", {}).get("VolumeKmsKeyId")
    for kind in resources.types(job):
        # For a type that botocore does not know there may be no request to check.
        member = resources.member(job, "InstanceType")
        yield from members.beyond_limits(kind, aws.shape("TrainingInstanceType"), member)
        unknown = f"the number of GPUs of {kind} is not known here"
        yield from first_of(
            (
                instances.family(kind).startswith(WITHOUT_IMAGE),
                error(
                    key,
                    f"AWS's training images do not run on {kind}",
                    "use a p or g instance (NVIDIA, x86)",
                ),
            ),
            (instances.gpus(kind) is None, skipped(key, unknown, "torchrun uses all it finds")),
        )
        if LOCAL_DISKS.match(instances.family(kind)) and disk_key:
            problem = f"{kind} stores data on its own disks, which AWS encrypts with its own key"
            yield error("request.ResourceConfig.VolumeKmsKeyId", problem, "remove it")
    key = resources.key(job, "InstanceCount")
    if without_image(job):
        return
    yield from first_of(
        (
            not all(group.count for group in resources.groups(job)),
            error(key, "0 instances; expected at least 1", "remove it, or correct it"),
        ),
        (
            count > MOST_INSTANCES,
            error(key, f"{count:,} instances; expected at most {MOST_INSTANCES:,}", "correct it"),
        ),
        (
            count > USUAL_INSTANCES,
            warning(
                key,
                f"{count} is above AWS's default of {USUAL_INSTANCES} instances per job",
                "check that AWS has raised your quota",
            ),
        ),
    )


@for_all_candidates
def launcher(job: Job, project: Project) -> Iterator[Finding]:
    """The launcher runs on the instances, and uses all of their GPUs."""
    if without_image(job):
        return
    kinds, count, gpus = resources.types(job), resources.host_count(job), resources.gpus(job)
    shown = " or ".join(kinds)
    chosen = launchers.launcher(job)
    smddp, none = chosen == "smddp", chosen == "none"
    torchrun = 'set distribution = "torch_distributed"'
    without_smddp = [kind for kind in kinds if not runs_smddp(kind)]
    other = f"{torchrun}, or {resources.key(job, 'InstanceType')} to one of "
    wrong = partial(error, "distribution")
    yield from first_of(
        (
            smddp and without_smddp,
            wrong(
                f"SMDDP does not run on {' or '.join(without_smddp)}",
                other + ", ".join(SMDDP_INSTANCES),
            ),
        ),
        # The toolkit starts it with SMDATAPARALLEL_USE_HOMOGENEOUS=1 (smdataparallel.py).
        (
            smddp and len(kinds) > 1,
            wrong(f"SMDDP needs hosts of one type, not {shown}", torchrun),
        ),
        (
            smddp and OLD_SMDDP_INSTANCE in kinds,
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
            wrong(f"pytorchddp needs GPUs and {shown} has none", torchrun),
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


def ring(job: Job, project: Project) -> Iterator[Finding]:
    """All hosts of several groups train together, so that they need the same GPUs and network."""
    names = [group.name for group in resources.groups(job)]
    if len(set(names)) < len(names):
        yield error(GROUPS_KEY, f"two groups have one name: {', '.join(names)}", "rename one")
    kinds = resources.types(job)
    gpus = {kind: instances.gpus(kind) for kind in kinds}
    if len(set(gpus.values()) - {None}) > 1:
        shown = ", ".join(f"{number} on {kind}" for kind, number in gpus.items())
        problem = f"the hosts have different numbers of GPUs ({shown})"
        yield error(GROUPS_KEY, problem, "use types with equally many GPUs, or one group only")
        return
    efa = [kind for kind in kinds if instances.efa(kind)]
    if efa and len(efa) < len(kinds):
        # All ranks of NCCL use one network, and none checks that they do: NVIDIA/nccl#234.
        other = next(kind for kind in kinds if kind not in efa)
        problem = f"{efa[0]} has EFA and {other} does not: NCCL would hang at the start"
        yield error(GROUPS_KEY, problem, "use types with EFA only, or without it only")
    old = [kind for kind in kinds if not instances.bf16(kind)]
    precision = job.hyperparameters.get("precision", "auto")
    if precision == "auto" and old and len(old) < len(kinds):
        # 16-mixed scales the loss, bf16-mixed does not: their gradients have no common average.
        problem = f'"auto" means 16-mixed on {old[0]}, and bf16-mixed on the other groups'
        yield error("hyperparameters.precision", problem, 'set it to "32-true" or "16-mixed"')


@for_all_candidates
def sharding(job: Job, project: Project) -> Iterator[Finding]:
    """`--shard_size` divides the number of processes."""
    size, gpus = job.hyperparameters.get("shard_size", 0), resources.gpus(job)
    count = resources.host_count(job) * (gpus or 1)
    if launchers.launcher(job) == "none" or gpus is None or count == 1:
        return  # one process divides nothing
    if job.hyperparameters.get("strategy") == "fsdp" and isinstance(size, int) and size > 0:
        fitting = [number for number in range(2, count + 1) if count % number == 0]
        if size not in fitting:
            problem = f"found {size}; expected a divisor of the {count} processes, above 1"
            cure = f"set it to one of {', '.join(map(str, fitting))}, or to 0 for all"
            yield error("hyperparameters.shard_size", problem, cure)


def capacity(job: Job, project: Project) -> Iterator[Finding]:
    """A job that may run on several instance types has equally many processes on each of them."""
    if job.instance_type and resources.member(job, "InstanceType") != "ResourceConfig.InstanceType":
        problem = f"{resources.key(job, 'InstanceType')} replaces it"
        yield warning("instance_type", problem, "remove it")
    kinds = resources.types_of(resources.members(job))
    if job.price_per_hour and len(kinds) > 1:
        problem = f"it is one price, and the job may run on {' and '.join(kinds)}"
        yield warning("price_per_hour", problem, "set it to 0: AWS's price of each is used")
    clusters = resources.candidates(resources.members(job))
    given = [group.instance_type for cluster in clusters for group in cluster]
    if len(clusters) > 1 and len(set(given)) < len(given):
        key = resources.key(job, "InstanceType")
        yield error(key, "one type is in the list twice", "remove one of them")
    first, *others = resources.alternatives(job)
    for other in others:
        if processes(first) and processes(other) and processes(other) != processes(first):
            one, another = (resources.shown(resources.groups(each)) for each in (first, other))
            problem = f"the global batch on {another} would differ from the one on {one}"
            cure = f"leave one out, or change {resources.key(job, 'InstanceCount')}"
            yield error(resources.key(job, "InstanceType"), problem, cure)


def processes(job: Job) -> tuple[bool, int] | None:
    """Whether they have GPUs, and how many processes train; None if it is not known."""
    gpus = resources.gpus(job)
    return None if gpus is None else (gpus > 0, resources.host_count(job) * max(gpus, 1))


def without_image(job: Job) -> bool:
    return any(instances.family(kind).startswith(WITHOUT_IMAGE) for kind in resources.types(job))
