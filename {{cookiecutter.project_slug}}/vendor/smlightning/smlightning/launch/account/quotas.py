"""Whether the account may start so many instances for so long."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from smlightning.launch import resources
from smlightning.launch.account.context import Context
from smlightning.launch.findings import Finding, error, skipped, warning

RECENT = timedelta(minutes=15)  # usage arrives every five minutes, while there is any


def quota(context: Context) -> Iterator[Finding]:
    """The job is within the account's quotas, and what they leave free now.

    New accounts may start no GPU at all.
    """
    job, region = context.job, context.job.region
    use = "spot training job usage" if job.spot.enabled else "training job usage"
    parallel = job.tune.parallel if context.tuning else 1
    jobs = resources.alternatives(job)
    key = resources.key(job, "InstanceCount")
    hosts = max(map(resources.host_count, jobs), default=0)
    # Name of the quota → key of job.toml and its value.
    wanted: dict[str, tuple[str, float]] = {
        "Longest run time for a training job": ("max_run_s", job.max_run_s),
        "Maximum number of instances per training job": (key, hosts),
        "Number of instances across training jobs": (key, hosts * parallel),
    }
    of_instances = []
    for alternative in jobs:
        for kind, count in resources.counts(alternative).items():
            of_instances.append(f"{kind} for {use}")
            wanted[of_instances[-1]] = (key, count * parallel)
            if job.keep_alive_s:
                wanted[f"{kind} for training warm pool usage"] = (key, count)
    quotas = granted(context, wanted)
    within = {}
    for name, (key, value) in wanted.items():
        limit = quotas[name]["Value"] if name in quotas else value
        if value > limit:
            problem = f'{value} is above the quota "{name}", {limit:g} in {region}'
            cure = "ask for more in the Service Quotas console; it can take days"
            yield error(key, problem, cure)
        elif "UsageMetric" in quotas.get(name, {}):
            within[name] = quotas[name]
    for name in of_instances:
        if name not in quotas:
            problem = f'AWS lists no "{name}" in {region}'
            yield skipped("quota", problem, "look in the Service Quotas console")
    for name, used in in_use(context, within).items():
        (key, value), limit = wanted[name], within[name]["Value"]
        if value + used > limit:
            problem = f'{value} and the {used:g} in use are above the quota "{name}", {limit:g}'
            cure = "AWS takes the job once they have ended, or ask for a higher quota"
            yield warning(key, f"{problem} in {region}", cure)


def granted(context: Context, wanted: Collection[str]) -> dict[str, dict[str, Any]]:
    """Name → ServiceQuota: what the account was granted, else AWS's default; until all are found.

    It has its Value, and as UsageMetric the metric of what is in use (API_ServiceQuota).
    """
    client = context.client("service-quotas")
    quotas: dict[str, dict[str, Any]] = {}
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        for page in client.get_paginator(operation).paginate(ServiceCode="sagemaker"):
            for item in page["Quotas"]:
                quotas.setdefault(item["QuotaName"], item)
            if all(name in quotas for name in wanted):
                return quotas
    return quotas


def in_use(context: Context, quotas: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Name → how much of a quota is in use, by its own metric of CloudWatch; 0 without data."""
    if not quotas:
        return {}
    names, queries = list(quotas), []
    for number, quota in enumerate(quotas.values()):
        metric = quota["UsageMetric"]
        of_quota = {
            "Namespace": metric["MetricNamespace"],
            "MetricName": metric["MetricName"],
            "Dimensions": [
                {"Name": key, "Value": value} for key, value in metric["MetricDimensions"].items()
            ],
        }
        statistic = metric.get("MetricStatisticRecommendation", "Maximum")
        how = {"Metric": of_quota, "Period": 300, "Stat": statistic}
        queries.append({"Id": f"q{number}", "MetricStat": how})
    now = datetime.now(UTC)
    answer = context.client("cloudwatch").get_metric_data(
        MetricDataQueries=queries, StartTime=now - RECENT, EndTime=now, ScanBy="TimestampDescending"
    )
    values = {result["Id"]: result["Values"] for result in answer["MetricDataResults"]}
    return {name: next(iter(values.get(f"q{n}", [])), 0.0) for n, name in enumerate(names)}
