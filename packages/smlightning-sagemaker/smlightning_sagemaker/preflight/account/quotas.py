"""Checks whether the account's quotas allow the job's instances and run time."""

from collections.abc import Collection, Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, error, skipped
from smlightning_sagemaker.preflight.account.context import Context


def quota(context: Context) -> Iterator[Finding]:
    """The job is within the account's quotas; new accounts may start no GPU at all."""
    job, region = context.job, context.job.region
    use = "spot training job usage" if job.spot.enabled else "training job usage"
    key, kind, hosts = "instance_count", job.instance_type, job.instance_count
    of_instances = f"{kind} for {use}"
    # Name of the quota → key of job.toml and its value.
    wanted: dict[str, tuple[str, float]] = {
        "Longest run time for a training job": ("max_run_s", job.max_run_s),
        "Maximum number of instances per training job": (key, hosts),
        "Number of instances across training jobs": (key, hosts),
        of_instances: (key, hosts),
    }
    if job.keep_alive_s:
        wanted[f"{kind} for training warm pool usage"] = (key, hosts)
    quotas = granted(context, wanted)
    if of_instances not in quotas:
        problem = f'AWS lists no "{of_instances}" in {region}'
        yield skipped("quota", problem, "look in the Service Quotas console")
    for name, (key, value) in wanted.items():
        if name in quotas and value > quotas[name]["Value"]:
            problem = f'{value} is above the quota "{name}", {quotas[name]["Value"]:g} in {region}'
            cure = "ask for more in the Service Quotas console; it can take days"
            yield error(key, problem, cure)


def granted(context: Context, wanted: Collection[str]) -> dict[str, dict[str, Any]]:
    """Name → ServiceQuota: the account's own value, else AWS's default; until all are found."""
    client = context.client("service-quotas")
    quotas: dict[str, dict[str, Any]] = {}
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        for page in client.get_paginator(operation).paginate(ServiceCode="sagemaker"):
            for item in page["Quotas"]:
                quotas.setdefault(item["QuotaName"], item)
            if all(name in quotas for name in wanted):
                return quotas
    return quotas
