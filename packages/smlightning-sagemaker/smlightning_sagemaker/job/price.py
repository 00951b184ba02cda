"""Prices of instances, and the cost of a job."""

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from smlightning_sagemaker.job import aws, instances
from smlightning_sagemaker.job.job import Job

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
    kind, count = job.instance_type, job.instance_count
    hourly, listed = job.price_per_hour, ""
    if not hourly and not offline:
        hourly = per_hour(job.region, [kind])[kind]
    if not hourly and kind in instances.LIST_PRICES:
        price = instances.LIST_PRICES[kind]
        hourly, listed = price.usd, f" (list price of {price.on}, {price.region})"
    factors = f"{count} instance{'s' if count > 1 else ''} × {hours}"
    if jobs > 1:
        factors = f"{jobs} jobs × {factors}"
    if not hourly:
        cure = "set price_per_hour to see it in US dollars"
        return f"cost    at most {factors}; the price is not known; {cure}"
    most = jobs * count * hourly * (job.max_run_s + job.keep_alive_s) / 3600
    text = f"cost    {together * count * hourly:,.2f} USD an hour, at most {most:,.2f} USD: "
    text += f"{factors} × {hourly:g} USD{listed}"
    if job.spot.enabled:
        text += " on demand; spot costs less, and AWS publishes no price in advance"
    return text
