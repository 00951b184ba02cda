"""Prices of instances, and the cost of a job."""

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from smlightning_sagemaker.job import aws, instances, resources
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.resources import Cluster

HOME = "us-east-1"  # the pricing service lives in few regions
PATIENCE_S = 3.0  # for a line of information


def per_hour(region: str, kinds: Sequence[str], use: str = "Training") -> dict[str, float]:
    """US dollars for an instance of each type and hour on demand, from AWS's pricing service.

    Args:
        region: of the instances.
        kinds: types, as ml.g5.xlarge.
        use: Training or Hosting.

    Returns:
        0 for a type if AWS has no price, or does not answer: without credentials or permission, or
        within PATIENCE_S for all types, as in a network that reaches only some of AWS's services.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    prices = dict.fromkeys(kinds, 0.0)
    if not aws.signed_in():
        return prices

    def ask() -> None:
        with suppress(BotoCoreError, ClientError):
            for kind in kinds:
                prices[kind] = _asked(region, kind, use)

    # A socket tries each address of a host for its whole timeout; the thread ends with the process.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return dict(prices)


def _asked(region: str, instance_type: str, use: str) -> float:
    """The price that AWS's service returns; 0 if there is none."""
    fields = {"productFamily": "ML Instance", "regionCode": region, "instanceName": instance_type}
    filters = [
        {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()
    ]
    pricing = aws.client("pricing", HOME)
    products = pricing.get_products(ServiceCode="AmazonSageMaker", Filters=filters)["PriceList"]
    prices: list[float] = []
    for product in map(json.loads, products):
        if product["product"]["attributes"].get("platoinstancetype") == use:
            prices += on_demand_prices(product)
    return max(prices, default=0.0)


def on_demand_prices(product: dict[str, Any]) -> list[float]:
    terms = product["terms"].get("OnDemand", {}).values()
    dimensions = [dimension for term in terms for dimension in term["priceDimensions"].values()]
    return [float(dimension["pricePerUnit"].get("USD", 0)) for dimension in dimensions]


def cost(job: Job, *, offline: bool = False, tuning: bool = False) -> str:
    """The line with the cost per hour and the highest total cost; without a price, the hours.

    The price is job.toml's, else AWS's answer, else a list price with its day and region.

    Args:
        job: of job.toml.
        offline: do not ask AWS.
        tuning: for the jobs of [tune], instead of one job.
    """
    jobs = job.tune.max_jobs if tuning else 1
    together = job.tune.parallel if tuning else 1
    hours = f"{job.max_run_s / 3600:g} h (max_run_s)"
    if job.keep_alive_s:
        hours = f"({hours} + {job.keep_alive_s / 3600:g} h (keep_alive_s))"
    kinds = resources.types_of(resources.members(job))
    prices = _prices(job, kinds, offline)
    listed = {}
    for kind in kinds:
        if not prices[kind] and kind in instances.LIST_PRICES:
            price = instances.LIST_PRICES[kind]
            prices[kind] = price.usd
            listed[kind] = f" (list price of {price.on}, {price.region})"
    # SageMaker may select any of the clusters; this is the most expensive one.
    clusters = resources.candidates(resources.members(job))
    cluster = max(clusters, key=lambda groups: _hourly(groups, prices))
    count = sum(group.count for group in cluster)
    hosts = f"{count} instance{'s' if count > 1 else ''}"
    if len(kinds) > 1:
        hosts = f"({resources.shown(cluster)})"
    factors = f"{hosts} × {hours}"
    if jobs > 1:
        factors = f"{jobs} jobs × {factors}"
    if not all(prices.values()):
        cure = "; set price_per_hour to see it in US dollars" if len(kinds) == 1 else ""
        return f"cost    at most {factors}; the price is not known{cure}"
    hourly = _hourly(cluster, prices)
    usd = " and ".join(dict.fromkeys(f"{prices[group.instance_type]:g}" for group in cluster))
    most = jobs * hourly * (job.max_run_s + job.keep_alive_s) / 3600
    text = f"cost    {together * hourly:,.2f} USD an hour, at most {most:,.2f} USD: "
    text += f"{factors} × {usd} USD"
    text += "".join(listed.get(kind, "") for kind in resources.types_in(cluster))
    if job.spot.enabled:
        text += " on demand; spot costs less, and AWS publishes no price in advance"
    return text


def _prices(job: Job, kinds: list[str], offline: bool) -> dict[str, float]:
    """Type → US dollars for one instance and hour; 0 if unknown.

    price_per_hour of job.toml is the price of one type.
    """
    if job.price_per_hour and len(kinds) == 1:
        return {kinds[0]: job.price_per_hour}
    return dict.fromkeys(kinds, 0.0) if offline else per_hour(job.region, kinds)


def _hourly(cluster: Cluster, prices: dict[str, float]) -> float:
    """US dollars for all hosts of a cluster and an hour."""
    return sum(group.count * prices[group.instance_type] for group in cluster)
