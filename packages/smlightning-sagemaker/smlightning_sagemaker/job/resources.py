"""The hosts of a job, as in its request.

Launcher, image, ranks, price, quota, network and memory depend on them. `instance_type` and
`instance_count` of job.toml count only if [request] has neither InstanceGroups nor
InstancePreferences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smlightning_sagemaker.job import instances
from smlightning_sagemaker.job.job import KEY_OF_MEMBER, Job

GROUPS, PREFERENCES = "InstanceGroups", "InstancePreferences"  # members of ResourceConfig


@dataclass(frozen=True)
class Group:
    """Hosts of one type."""

    name: str  # InstanceGroupName; empty where the request has no groups
    instance_type: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} × {self.instance_type}"


Cluster = tuple[Group, ...]  # the hosts that train together


def members(job: Job) -> dict[str, Any]:
    """The members of ResourceConfig that say which hosts the job runs on, as they are sent.

    AWS takes InstanceGroups and InstancePreferences without InstanceType. A count goes with each
    preference, or one count with all of them (botocore, InstancePreference.InstanceCount).
    """
    given = _given(job)
    several = {name: given[name] for name in (GROUPS, PREFERENCES) if name in given}
    if GROUPS in several or any("InstanceCount" in entry for entry in several.get(PREFERENCES, [])):
        return several
    if several:
        return {**several, "InstanceCount": job.instance_count}
    if isinstance(job.instance_type, str):
        return {"InstanceType": job.instance_type, "InstanceCount": job.instance_count}
    kinds = job.instance_type
    if len(kinds) == 1:
        return {"InstanceType": kinds[0], "InstanceCount": job.instance_count}
    counts = [_equal_count(kinds[0], job.instance_count, kind) for kind in kinds]
    return {
        PREFERENCES: [
            {"InstanceType": kind, "InstanceCount": count}
            for kind, count in zip(kinds, counts, strict=True)
        ]
    }


def _given(job: Job) -> dict[str, Any]:
    """[request.ResourceConfig]; reading job.toml has checked its types."""
    return job.request.get("ResourceConfig", {})


def _equal_count(first: str, count: int, kind: str) -> int:
    """Hosts of a type that have as many GPUs as ``count`` hosts of the first type, so that the
    global batch stays the same; ``count`` where no number of hosts has, which preflight rejects.
    """
    gpus, other_gpus = instances.gpus(first), instances.gpus(kind)
    if not gpus or not other_gpus or count * gpus % other_gpus:
        return count
    return count * gpus // other_gpus


def candidates(config: Mapping[str, Any]) -> list[Cluster]:
    """The clusters that a ResourceConfig asks for, in the order in which SageMaker tries them.

    There is one, except with InstancePreferences; and one again in DescribeTrainingJob's answer,
    once SageMaker has selected it.
    """
    if "SelectedInstanceType" in config:
        count = int(config.get("SelectedInstanceCount", 1))
        return [(Group("", config["SelectedInstanceType"], count),)]
    if config.get(GROUPS):
        return [tuple(_group(group, 0) for group in config[GROUPS])]
    of_all = int(config.get("InstanceCount", 0))
    return [(_group(entry, of_all),) for entry in config.get(PREFERENCES) or [config]]


def types_of(config: Mapping[str, Any]) -> list[str]:
    """Every type that a ResourceConfig names, each once."""
    return types_in(tuple(group for cluster in candidates(config) for group in cluster))


def _group(table: Mapping[str, Any], count: int) -> Group:
    """A group; AWS's limits judge what it lacks."""
    return Group(
        name=table.get("InstanceGroupName", ""),
        instance_type=table.get("InstanceType", ""),
        count=int(table.get("InstanceCount", count)),
    )


def groups(job: Job) -> Cluster:
    """The hosts of the job; of several candidates the one that is tried first."""
    return candidates(members(job))[0]


def alternatives(job: Job) -> list[Job]:
    """The job on each cluster that SageMaker may select for it, the preferred one first."""
    sent = members(job)
    if PREFERENCES not in sent or GROUPS in sent:
        return [job]
    return [_on(job, cluster) for cluster in candidates(sent)]


def _on(job: Job, cluster: Cluster) -> Job:
    """The job on one of its candidates."""
    (group,) = cluster
    config = _given(job)
    if PREFERENCES not in config:
        return job.replace(instance_type=group.instance_type, instance_count=group.count)
    one = {"InstanceType": group.instance_type, "InstanceCount": group.count}
    return job.replace(request={**job.request, "ResourceConfig": {**config, PREFERENCES: [one]}})


def resized(job: Job, hosts: int, kind: str = "") -> Job:
    """The job on that many hosts of the cluster that is tried first, for a rehearsal.

    Each of several groups keeps one host, as far as there are as many; of another ``kind`` there
    are no groups.
    """
    cluster = groups(job)
    config = {
        name: value for name, value in _given(job).items() if name not in (GROUPS, PREFERENCES)
    }
    changes: dict[str, Any] = {}
    if kind or len(cluster) == 1:
        kind = kind or cluster[0].instance_type
        changes = {"instance_type": kind, "instance_count": hosts}
    else:
        kept = cluster[:hosts]
        counts = [1] * len(kept)
        for number in range(hosts - len(kept)):
            counts[number % len(kept)] += 1
        config[GROUPS] = [
            {
                "InstanceGroupName": group.name,
                "InstanceType": group.instance_type,
                "InstanceCount": count,
            }
            for group, count in zip(kept, counts, strict=True)
        ]
    return job.replace(request={**job.request, "ResourceConfig": config}, **changes)


def key(job: Job, name: str) -> str:
    """The key of job.toml that says ``InstanceType`` or ``InstanceCount``."""
    path = member(job, name)
    return KEY_OF_MEMBER.get(path, f"request.{path}")


def member(job: Job, name: str) -> str:
    """The member of [request] that sets ``InstanceType`` or ``InstanceCount``."""
    given = _given(job)
    several = next((table for table in (GROUPS, PREFERENCES) if table in given), "")
    in_list = several and (name == "InstanceType" or "InstanceCount" not in members(job))
    return f"ResourceConfig.{several}.{name}" if in_list else f"ResourceConfig.{name}"


def host_count(job: Job) -> int:
    """Hosts of all groups together."""
    return sum(group.count for group in groups(job))


def types(job: Job) -> list[str]:
    """The types of the job's hosts, each once."""
    return types_in(groups(job))


def types_in(cluster: Cluster) -> list[str]:
    """The types of a cluster's hosts, each once."""
    return list(dict.fromkeys(group.instance_type for group in cluster))


def counts(job: Job) -> dict[str, int]:
    """Type → hosts of it."""
    of_types = dict.fromkeys(types(job), 0)
    for group in groups(job):
        of_types[group.instance_type] += group.count
    return of_types


def gpus(job: Job) -> int | None:
    """GPUs of each host; None where they are not known, or not the same on all hosts."""
    numbers = {instances.gpus(kind) for kind in types(job)}
    return numbers.pop() if len(numbers) == 1 else None


def gpu_memory(job: Job) -> int | None:
    """Bytes of the smallest GPU; None where one is not known, and without GPUs."""
    sizes = [instances.gpu_memory(kind) for kind in types(job)]
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def smallest_host(job: Job) -> str:
    """The type with the least main memory; one whose is not known, if there is one."""
    return min(types(job), key=lambda kind: instances.host_memory(kind) or 0)


def shown(cluster: Cluster) -> str:
    """A text as `2 × ml.g5.12xlarge + 1 × ml.g6.12xlarge`."""
    return " + ".join(map(str, cluster))
