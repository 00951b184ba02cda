"""Region, instances and launcher of a job, each against the others."""

from collections.abc import Iterator

from smlightning.cluster.location import OLD_SMDDP_INSTANCE, SMDDP_INSTANCES
from smlightning.launch import aws, instances, launchers
from smlightning.launch.findings import Finding, cure_for_unknown_name, error, skipped, warning
from smlightning.launch.job import Job
from smlightning.launch.preflight import members
from smlightning.project import Project

USUAL_INSTANCES = 20  # AWS's default quota for one job
MOST_INSTANCES = 1000  # beyond it a number is a slip of the pen
WITHOUT_IMAGE = ("trn", "p6e-gb200")  # Trainium, and ARM: AWS's images here are for NVIDIA on x86


def region(job: Job, project: Project) -> Iterator[Finding]:
    """SageMaker is in the region."""
    import botocore.session

    session = botocore.session.get_session()
    regions: list[str] = []
    for partition in session.get_available_partitions():
        regions += session.get_available_regions("sagemaker", partition)
    if job.region not in regions:
        cure = cure_for_unknown_name(job.region, regions)
        yield error(
            "region",
            f'"{job.region}" is not a region of SageMaker',
            f"{cure}; if AWS opened it later, pip install --upgrade boto3",
        )


def instance(job: Job, project: Project) -> Iterator[Finding]:
    """The instance type exists, the images run on it, and the count is meant."""
    kind, count = job.instance_type, job.instance_count
    # Of a type that botocore does not know there may be no request to judge.
    yield from members.beyond_limits(
        kind, aws.shape("TrainingInstanceType"), "ResourceConfig.InstanceType"
    )
    if without_image(job):
        yield error(
            "instance_type",
            f"these images do not run on {kind}",
            "take a p or g instance (NVIDIA, x86)",
        )
    elif count > MOST_INSTANCES:
        yield error(
            "instance_count",
            f"{count:,} instances",
            f"expected at most {MOST_INSTANCES:,}; correct it",
        )
    elif count > USUAL_INSTANCES:
        problem = f"{count} is above AWS's default of {USUAL_INSTANCES} instances per job"
        yield warning("instance_count", problem, "see that your quota was raised")
    if instances.gpus(kind) is None and not without_image(job):
        yield skipped(
            "instance_type",
            f"how many GPUs {kind} has is not known here",
            "torchrun uses all it finds",
        )


def launcher(job: Job, project: Project) -> Iterator[Finding]:
    """The launcher runs on the instances, and uses all of their GPUs."""
    if without_image(job):
        return
    kind, count, gpus = job.instance_type, job.instance_count, instances.gpus(job.instance_type)
    chosen = launchers.launcher(job)
    torchrun = 'set distribution = "torch_distributed"'
    if chosen == "smddp" and kind == OLD_SMDDP_INSTANCE:
        problem = f"AWS works no further on SMDDP for {kind}"
        yield warning("distribution", problem, f"{torchrun}, or take {SMDDP_INSTANCES[0]}")
    elif chosen == "smddp" and kind not in SMDDP_INSTANCES:
        types = ", ".join(SMDDP_INSTANCES)
        cure = f"{torchrun}, or instance_type to one of {types}"
        yield error("distribution", f"SMDDP does not run on {kind}", cure)
    elif chosen == "smddp" and job.hyperparameters.get("strategy") == "fsdp":
        problem = "--strategy fsdp makes process groups of its own, which SMDDP does not support"
        yield error("distribution", problem, torchrun)
    elif chosen == "pytorchddp" and gpus == 0:
        yield error("distribution", f"pytorchddp needs GPUs and {kind} has none", torchrun)
    elif chosen == "none" and count > 1:
        problem = f"none on {count} hosts makes each believe it is rank 0"
        yield error("distribution", problem, torchrun)
    elif chosen == "none" and gpus and gpus > 1:
        problem = f"none starts one process, and {gpus - 1} of {gpus} paid GPUs would idle"
        yield error("distribution", problem, torchrun)


def sharding(job: Job, project: Project) -> Iterator[Finding]:
    """Options of `--strategy fsdp` go together, and with the number of processes."""
    options = job.hyperparameters
    shard_size = options.get("shard_size", 0)
    if options.get("strategy") != "fsdp":
        if shard_size:
            problem = "it is for strategy fsdp"
            yield error("hyperparameters.shard_size", problem, "set that, or leave it out")
        return
    gpus = instances.gpus(job.instance_type)
    processes = job.instance_count * max(gpus or 1, 1)
    if launchers.launcher(job) == "none" or (gpus is not None and processes == 1):
        return  # one process divides nothing
    if options.get("precision") == "16-mixed":
        problem = "strategy fsdp does not scale losses, as 16-mixed needs"
        cure = "set it to bf16-mixed, 32-true or auto"
        yield error("hyperparameters.precision", problem, cure)
    if options.get("compression", "none") != "none":
        problem = "it is for the gradients of DDP, and strategy is fsdp"
        yield error("hyperparameters.compression", problem, "set it to none")
    if isinstance(shard_size, int) and shard_size > 0 and gpus is not None:
        fitting = [size for size in range(2, processes + 1) if processes % size == 0]
        if shard_size not in fitting:
            problem = f"{shard_size} does not divide {processes} processes into groups"
            cure = f"set it to one of {', '.join(map(str, fitting))}, or to 0 for all"
            yield error("hyperparameters.shard_size", problem, cure)


PENDING_S = (1800, 2_419_200)  # of botocore's shape MaxPendingTimeInSeconds


def capacity(job: Job, project: Project) -> Iterator[Finding]:
    """Where a job may run on several instance types, each fits, and is as large as the first.

    What InstancePreferences do not go with is what AWS's model says of them (ResourceConfig).
    """
    key = "instance_type"
    kinds = [job.instance_type, *job.other_instance_types]
    least, most = PENDING_S
    if job.max_pending_s and not least <= job.max_pending_s <= most:
        problem = f"{job.max_pending_s} is not from {least} to {most}"
        yield error("max_pending_s", problem, "correct it, or set it to 0")
    elif job.max_pending_s and all(instances.gpus(kind) == 0 for kind in kinds):
        problem = "AWS counts it for instances with GPUs alone"
        yield warning("max_pending_s", problem, "remove it")
    if not job.other_instance_types:
        return
    if len(set(kinds)) < len(kinds):
        yield error(key, "an instance type stands in it twice", "name each once")
    if job.spot.enabled:
        problem = "AWS takes a list for capacity on demand alone, and spot is enabled"
        yield error(key, problem, "name one type, or set spot.enabled = false")
    if "InstanceGroups" in job.request.get("ResourceConfig", {}):
        problem = "AWS takes no list beside InstanceGroups"
        yield error(key, problem, "name one type, or remove the groups")
    for kind in job.other_instance_types:
        if not job.count_of(kind):
            processes = job.instance_count * max(instances.gpus(job.instance_type) or 1, 1)
            problem = f"no count of {kind} has {processes} processes, so that the global batch"
            yield error(key, f"{problem} would change", "leave it out, or change instance_count")
    for other in job.alternatives:
        for check in (instance, launcher):
            yield from check(other, project)


def without_image(job: Job) -> bool:
    return instances.family(job.instance_type).startswith(WITHOUT_IMAGE)
