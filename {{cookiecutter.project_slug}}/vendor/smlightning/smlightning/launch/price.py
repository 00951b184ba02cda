"""What instances cost, and a job with them."""

import json
from typing import Any

from smlightning.launch import aws, instances, resources
from smlightning.launch.job import Job
from smlightning.launch.resources import Cluster

HOME = "us-east-1"  # the pricing service lives in few regions


def per_hour(region: str, instance_type: str, use: str = "Training") -> float | None:
    """US dollars for one instance and hour on demand, from AWS's pricing service.

    Args:
        region: where it runs.
        instance_type: as in ml.g5.xlarge.
        use: Training or Hosting.

    Returns:
        None if AWS does not answer: without credentials, or permission to ask.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    fields = {"productFamily": "ML Instance", "regionCode": region, "instanceName": instance_type}
    filters = [
        {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()
    ]
    try:
        pricing = aws.client("pricing", HOME)
        products = pricing.get_products(ServiceCode="AmazonSageMaker", Filters=filters)["PriceList"]
    except (BotoCoreError, ClientError):
        return None
    prices: list[float] = []
    for product in map(json.loads, products):
        if product["product"]["attributes"].get("platoinstancetype") == use:
            prices += on_demand_prices(product)
    return max(prices, default=0.0) or None


def on_demand_prices(product: dict[str, Any]) -> list[float]:
    terms = product["terms"].get("OnDemand", {}).values()
    dimensions = [dimension for term in terms for dimension in term["priceDimensions"].values()]
    return [float(dimension["pricePerUnit"].get("USD", 0)) for dimension in dimensions]


def cost(job: Job, *, offline: bool = False, tuning: bool = False) -> str:
    """What runs at once costs in an hour, and all at most; without a price, for how long.

    The price is job.toml's, else AWS's answer, else a list price with its day and region.

    Args:
        job: of job.toml.
        offline: AWS is not asked.
        tuning: for the jobs of [tune], in place of one.
    """
    jobs = job.tune.max_jobs if tuning else 1
    together = job.tune.parallel if tuning else 1
    hours = f"{job.max_run_s / 3600:g} h (max_run_s)"
    if job.keep_alive_s:
        hours = f"({hours} + {job.keep_alive_s / 3600:g} h (keep_alive_s))"
    clusters = resources.candidates(resources.members(job))
    kinds = resources.types_of(resources.members(job))
    prices = _prices(job, kinds, offline)
    # A price of earlier is better than none.
    listed = {
        kind: instances.LIST_PRICES[kind]
        for kind in kinds
        if not prices[kind] and kind in instances.LIST_PRICES
    }
    prices |= {kind: price.usd for kind, price in listed.items()}
    known = all(prices.values())
    # The dearest: SageMaker may select any of them.
    cluster = max(clusters, key=lambda groups: _hourly(groups, prices)) if known else clusters[0]
    factors = f"{_instances(cluster, len(clusters))} × {hours}"
    if jobs > 1:
        factors = f"{jobs} jobs × {factors}"
    if not known:
        cure = "set price_per_hour" if len(kinds) == 1 else "ask AWS, without --offline,"
        return f"cost    at most {factors}; {cure} to see it in US dollars"
    of_a_job = _hourly(cluster, prices)
    usd = " and ".join(dict.fromkeys(f"{prices[group.instance_type]:g}" for group in cluster))
    at_once = together * of_a_job
    most = jobs * of_a_job * (job.max_run_s + job.keep_alive_s) / 3600
    text = f"cost    {at_once:,.2f} USD an hour, at most {most:,.2f} USD: {factors} × {usd} USD"
    for kind in resources.types_in(cluster):
        if kind in listed:
            text += f" (list price of {listed[kind].on}, {listed[kind].region})"
    if job.spot.enabled:
        text += " on demand; spot costs less, and AWS names no price beforehand"
    return text


def _prices(job: Job, kinds: list[str], offline: bool) -> dict[str, float]:
    """Type → US dollars for one instance and hour; 0 where it is not known.

    price_per_hour of job.toml is one type's.
    """
    if job.price_per_hour and len(kinds) == 1:
        return {kinds[0]: job.price_per_hour}
    return {kind: 0.0 if offline else per_hour(job.region, kind) or 0.0 for kind in kinds}


def _hourly(cluster: Cluster, prices: dict[str, float]) -> float:
    """US dollars for all hosts of a cluster and an hour."""
    return sum(group.count * prices[group.instance_type] for group in cluster)


def _instances(cluster: Cluster, candidates: int) -> str:
    """The instances that are billed, with their types where it is not plain which."""
    count = sum(group.count for group in cluster)
    if candidates == 1 and len(resources.types_in(cluster)) == 1:
        return f"{count} instance{'s' if count > 1 else ''}"
    shown = resources.shown(cluster)
    return f"({shown})" if len(cluster) > 1 else shown
