"""The price of instances, and the highest cost of a job."""

import json
from typing import Any

from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import Hosts, Job

HOME = "us-east-1"  # the pricing service lives in few regions
TIMEOUT_S = 3  # for a line of information


def per_hour(region: str, instance_type: str) -> float:
    """US dollars for one instance and hour of training on demand, from AWS's pricing service.

    Args:
        region: of the instances.
        instance_type: as ml.g5.xlarge.

    Returns:
        0 if AWS has no price, or does not answer in the form that it documents: without
        credentials or permission, or in a network that reaches only some of AWS's services.
    """
    fields = {"productFamily": "ML Instance", "regionCode": region, "instanceName": instance_type}
    filters = [
        {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()
    ]
    try:
        pricing = aws.client("pricing", HOME, retries=0, timeout_s=TIMEOUT_S)
        answer = pricing.get_products(ServiceCode="AmazonSageMaker", Filters=filters)
        products = [json.loads(text) for text in answer["PriceList"]]
        prices = [price for product in products for price in on_demand_prices(product)]
    except aws.failures():
        return 0.0
    except (LookupError, ValueError):  # an answer of another form
        return 0.0
    return max(prices, default=0.0)


def on_demand_prices(product: dict[str, Any]) -> list[float]:
    """The prices of training; none for another use of the instance."""
    if product["product"]["attributes"].get("platoinstancetype") != "Training":
        return []
    terms = product["terms"].get("OnDemand", {}).values()
    dimensions = [dimension for term in terms for dimension in term["priceDimensions"].values()]
    return [float(dimension["pricePerUnit"].get("USD", 0)) for dimension in dimensions]


def cost(job: Job, *, offline: bool = False) -> str:
    """The line with the cost per hour and the highest total cost; without a price, the hours.

    The price is price_per_hour of job.toml, else AWS's answer. If AWS may start one of
    several clusters, it is the price of the most expensive one.

    Args:
        job: of job.toml.
        offline: do not ask AWS.
    """
    hours = f"{job.max_run_s / 3600:g} h (max_run_s)"
    if job.keep_alive_s:
        hours = f"({hours} + {job.keep_alive_s / 3600:g} h (keep_alive_s))"
    clusters = job.clusters
    kinds = {each.instance_type for each in job.variants}
    prices = dict.fromkeys(kinds, job.price_per_hour)
    if not job.price_per_hour and not offline:
        prices = {kind: per_hour(job.region, kind) for kind in kinds}
    if not all(prices.values()):
        factors = " or ".join(
            " + ".join(f"{shown(each)} × {hours}" for each in c) for c in clusters
        )
        unknown = "the price is not known; set price_per_hour to see it in US dollars"
        return f"cost    at most {factors}; {unknown}"
    hourly, cluster = max(
        ((sum(each.count * prices[each.instance_type] for each in c), c) for c in clusters),
        key=lambda pair: pair[0],
    )
    most = hourly * (job.max_run_s + job.keep_alive_s) / 3600
    factors = " + ".join(
        f"{shown(each)} × {hours} × {prices[each.instance_type]:g} USD" for each in cluster
    )
    text = f"cost    {hourly:,.2f} USD an hour, at most {most:,.2f} USD: {factors}"
    if len(clusters) > 1:
        text += f" on {cluster[0].instance_type}, the most expensive choice"
    if job.spot.enabled:
        text += " on demand; spot costs less, and AWS publishes no price in advance"
    return text


def shown(hosts: Hosts) -> str:
    """The number of hosts in words."""
    return f"{hosts.count} instance{'s' if hosts.count > 1 else ''}"
