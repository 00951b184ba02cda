"""Region, instances and launcher of a job, each against the others."""

import functools
from collections.abc import Callable, Iterator

from smlightning.cluster.location import OLD_SMDDP_INSTANCE, SMDDP_INSTANCES, runs_smddp
from smlightning.launch import aws, instances, launchers, resources
from smlightning.launch.findings import Finding, cure_for_unknown_name, error, skipped, warning
from smlightning.launch.job import Job
from smlightning.launch.preflight import members
from smlightning.project import Project

USUAL_INSTANCES = 20  # AWS's default quota for one job
MOST_INSTANCES = 1000  # beyond it a number is a slip of the pen
GROUPS_KEY = "request.ResourceConfig.InstanceGroups"
PLANS_KEY = "request.ResourceConfig.InstancePreferences.TrainingPlanArns"
WITHOUT_IMAGE = ("trn", "p6e-gb200")  # Trainium, and ARM: AWS's images here are for NVIDIA on x86


def region(job: Job, project: Project) -> Iterator[Finding]:
    """SageMaker is in the region."""
    if job.region not in aws.regions():
        cure = cure_for_unknown_name(job.region, aws.regions())
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
    """The instance types exist, the images run on them, and the count is meant."""
    key, count = resources.key(job, "InstanceType"), resources.host_count(job)
    for kind in resources.types(job):
        # Of a type that botocore does not know there may be no request to judge.
        yield from members.beyond_limits(
            kind, aws.shape("TrainingInstanceType"), resources.member(job, "InstanceType")
        )
        if instances.family(kind).startswith(WITHOUT_IMAGE):
            problem = f"these images do not run on {kind}"
            yield error(key, problem, "take a p or g instance (NVIDIA, x86)")
        elif instances.gpus(kind) is None:
            problem = f"how many GPUs {kind} has is not known here"
            yield skipped(key, problem, "torchrun uses all it finds")
    key = resources.key(job, "InstanceCount")
    if without_image(job):
        return
    if not all(group.count for group in resources.groups(job)):
        yield error(key, "0 instances", "expected at least 1; remove it, or correct it")
    elif count > MOST_INSTANCES:
        cure = f"expected at most {MOST_INSTANCES:,}; correct it"
        yield error(key, f"{count:,} instances", cure)
    elif count > USUAL_INSTANCES:
        problem = f"{count} is above AWS's default of {USUAL_INSTANCES} instances per job"
        yield warning(key, problem, "see that your quota was raised")


@for_all_candidates
def launcher(job: Job, project: Project) -> Iterator[Finding]:
    """The launcher runs on the instances, and uses all of their GPUs."""
    if without_image(job):
        return
    kinds, count, gpus = resources.types(job), resources.host_count(job), resources.gpus(job)
    shown = " or ".join(kinds)
    chosen = launchers.launcher(job)
    torchrun = 'set distribution = "torch_distributed"'
    without_smddp = [kind for kind in kinds if not runs_smddp(kind)]
    if chosen == "smddp" and without_smddp:
        types = ", ".join(SMDDP_INSTANCES)
        cure = f"{torchrun}, or {resources.key(job, 'InstanceType')} to one of {types}"
        yield error("distribution", f"SMDDP does not run on {' or '.join(without_smddp)}", cure)
    elif chosen == "smddp" and len(kinds) > 1:
        # The toolkit starts it with SMDATAPARALLEL_USE_HOMOGENEOUS=1 (smdataparallel.py).
        yield error("distribution", f"SMDDP needs hosts of one type, not {shown}", torchrun)
    elif chosen == "smddp" and OLD_SMDDP_INSTANCE in kinds:
        problem = f"AWS works no further on SMDDP for {OLD_SMDDP_INSTANCE}"
        yield warning("distribution", problem, f"{torchrun}, or take {SMDDP_INSTANCES[0]}")
    elif chosen == "smddp" and job.hyperparameters.get("strategy") == "fsdp":
        problem = "--strategy fsdp makes process groups of its own, which SMDDP does not support"
        yield error("distribution", problem, torchrun)
    elif chosen == "pytorchddp" and gpus == 0:
        yield error("distribution", f"pytorchddp needs GPUs and {shown} has none", torchrun)
    elif chosen == "none" and count > 1:
        problem = f"none on {count} hosts makes each believe it is rank 0"
        yield error("distribution", problem, torchrun)
    elif chosen == "none" and gpus and gpus > 1:
        problem = f"none starts one process, and {gpus - 1} of {gpus} paid GPUs would idle"
        yield error("distribution", problem, torchrun)


def ring(job: Job, project: Project) -> Iterator[Finding]:
    """The hosts of several groups train as one: AWS's own use of groups, some of which only
    prepare data, needs another train.py.
    """
    groups, kinds = resources.groups(job), resources.types(job)
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        yield error(GROUPS_KEY, "two groups have one name", "give each its own")
    if len(kinds) < 2:
        return
    gpus = {kind: instances.gpus(kind) for kind in kinds}
    if len(set(gpus.values()) - {None}) > 1:
        shown = ", ".join(f"{number} on {kind}" for kind, number in gpus.items())
        problem = f"every host trains, with a process for each GPU, and they differ ({shown})"
        yield error(GROUPS_KEY, problem, "take types with as many GPUs each, or one group only")
        return
    efa = [kind for kind in kinds if instances.efa(kind)]
    if efa and len(efa) < len(kinds):
        # All ranks of NCCL use one network, and none checks that they do: NVIDIA/nccl#234.
        other = next(kind for kind in kinds if kind not in efa)
        problem = f"{efa[0]} has EFA and {other} has not: NCCL would wait for ever at its start"
        yield error(GROUPS_KEY, problem, "take types with EFA only, or without it only")
    old = [kind for kind in kinds if not instances.bf16(kind)]
    precision = job.hyperparameters.get("precision", "auto")
    if precision == "auto" and old and len(old) < len(kinds):
        # 16-mixed scales the loss, bf16-mixed does not: their gradients have no common average.
        problem = f"auto is 16-mixed on {old[0]}, and bf16-mixed on the other groups' GPUs"
        yield error("hyperparameters.precision", problem, 'set it to "32-true" or "16-mixed"')
    problem = f"with {' and '.join(kinds)} each step takes as long as on the slower type"
    yield warning(GROUPS_KEY, problem, "take one type where you can")


@for_all_candidates
def sharding(job: Job, project: Project) -> Iterator[Finding]:
    """`--shard_size` divides the number of processes."""
    shard_size = job.hyperparameters.get("shard_size", 0)
    if job.hyperparameters.get("strategy") != "fsdp":
        return
    gpus = resources.gpus(job)
    processes = resources.host_count(job) * max(gpus or 1, 1)
    if launchers.launcher(job) == "none" or (gpus is not None and processes == 1):
        return  # one process divides nothing
    if isinstance(shard_size, int) and shard_size > 0 and gpus is not None:
        fitting = [size for size in range(2, processes + 1) if processes % size == 0]
        if shard_size not in fitting:
            problem = f"{shard_size} does not divide {processes} processes into groups"
            cure = f"set it to one of {', '.join(map(str, fitting))}, or to 0 for all"
            yield error("hyperparameters.shard_size", problem, cure)


PENDING_S = (1800, 2_419_200)  # of botocore's shape MaxPendingTimeInSeconds


def capacity(job: Job, project: Project) -> Iterator[Finding]:
    """Where a job may run on several instance types, it is equally large on each of them.

    What is asked of a list is what AWS's model says of InstancePreference and of
    MaxPendingTimeInSeconds.
    """
    sent, jobs = resources.members(job), resources.alternatives(job)
    if job.instance_type and resources.member(job, "InstanceType") != "ResourceConfig.InstanceType":
        problem = f"{resources.key(job, 'InstanceType')} replaces it"
        yield warning("instance_type", problem, "remove it")
    least, most = PENDING_S
    if job.max_pending_s and not least <= job.max_pending_s <= most:
        problem = f"{job.max_pending_s} is not from {least} to {most}"
        yield error("max_pending_s", problem, "correct it, or set it to 0")
    elif job.max_pending_s and all(resources.gpus(alternative) == 0 for alternative in jobs):
        problem = "AWS counts it for instances with GPUs alone"
        yield warning("max_pending_s", problem, "remove it")
    key = resources.key(job, "InstanceType")
    preferences = sent.get(resources.PREFERENCES, [])
    if len({entry.get("InstanceType") for entry in preferences}) < len(preferences):
        yield error(key, "an instance type stands in it twice", "name each once")
    if len({"InstanceCount" in entry for entry in preferences}) > 1:
        problem = "some preferences have an InstanceCount, and AWS takes it in all or in none"
        cure = "give each its own, or none of them and set instance_count"
        yield error(resources.key(job, "InstanceCount"), problem, cure)
    plans = [plan for entry in preferences for plan in entry.get("TrainingPlanArns", [])]
    if len(set(plans)) < len(plans):
        problem = "two preferences have one training plan, which is of one instance type"
        yield error(PLANS_KEY, problem, "remove it where the type is another")
    kinds = resources.types_of(sent)
    if job.price_per_hour and len(kinds) > 1:
        problem = f"it is one price, and the job may run on {' and '.join(kinds)}"
        yield warning("price_per_hour", problem, "set it to 0: AWS is asked for each")
    first = processes(jobs[0])
    for other in jobs[1:]:
        if first and processes(other) and processes(other) != first:
            one, another = (resources.shown(resources.groups(job)) for job in (jobs[0], other))
            problem = f"the global batch would be another on {another} than on {one}"
            count = resources.key(job, "InstanceCount")
            yield error(key, problem, f"leave one out, or change {count}")


def processes(job: Job) -> tuple[bool, int] | None:
    """Whether they have GPUs, and how many processes train; None where it is not known."""
    gpus = resources.gpus(job)
    return None if gpus is None else (gpus > 0, resources.host_count(job) * max(gpus, 1))


def without_image(job: Job) -> bool:
    return any(instances.family(kind).startswith(WITHOUT_IMAGE) for kind in resources.types(job))
