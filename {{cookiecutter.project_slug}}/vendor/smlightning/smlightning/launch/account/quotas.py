"""Whether the account may start so many instances for so long."""

from collections.abc import Collection, Iterator

from smlightning.launch.account.context import Context
from smlightning.launch.findings import Finding, error, skipped


def quota(context: Context) -> Iterator[Finding]:
    """The job is within the account's quotas. New accounts may start no GPU at all."""
    job, region = context.job, context.job.region
    use = "spot training job usage" if job.spot.enabled else "training job usage"
    of_instances = f"{job.instance_type} for {use}"
    together = job.instance_count * (job.tune.parallel if context.tuning else 1)
    # Name of the quota → key of job.toml and its value.
    wanted: dict[str, tuple[str, float]] = {
        of_instances: ("instance_count", together),
        "Longest run time for a training job": ("max_run_s", job.max_run_s),
        "Maximum number of instances per training job": ("instance_count", job.instance_count),
        "Number of instances across training jobs": ("instance_count", together),
    }
    for other in job.alternatives:
        wanted[f"{other.instance_type} for {use}"] = ("instance_type", other.instance_count)
    if job.keep_alive_s:
        warm_pool = f"{job.instance_type} for training warm pool usage"
        wanted[warm_pool] = ("instance_count", job.instance_count)
    limits = granted(context, wanted, of_instances)
    for name, (key, value) in wanted.items():
        if name in limits and value > limits[name]:
            problem = f'{value} is above the quota "{name}", {limits[name]:g} in {region}'
            cure = "ask for more in the Service Quotas console; it can take days"
            yield error(key, problem, cure)
    if of_instances not in limits:
        problem = f'AWS lists no "{of_instances}" in {region}'
        yield skipped("quota", problem, "look in the Service Quotas console")


def granted(context: Context, wanted: Collection[str], needed: str) -> dict[str, float]:
    """Quota → limit: what the account was granted, and without ``needed`` AWS's defaults."""
    client = context.client("service-quotas")
    limits: dict[str, float] = {}
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        for page in client.get_paginator(operation).paginate(ServiceCode="sagemaker"):
            for item in page["Quotas"]:
                limits.setdefault(item["QuotaName"], item["Value"])
            if all(name in limits for name in wanted):
                break
        if needed in limits:
            break
    return limits
