"""What instances cost, and a job with them."""

import json
from typing import Any

from smlightning.launch import aws, instances
from smlightning.launch.job import Job

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
    hosts = f"{job.instance_count} instance{'s' if job.instance_count > 1 else ''}"
    factors = f"{hosts} × {hours}"
    if jobs > 1:
        factors = f"{jobs} jobs × {factors}"
    hourly: float | None = job.price_per_hour or None
    if hourly is None and not offline:
        hourly = per_hour(job.region, job.instance_type)
    listed = instances.LIST_PRICES.get(job.instance_type) if hourly is None else None
    if listed:
        hourly = listed.usd
    if hourly is None:
        return f"cost    at most {factors}; set price_per_hour to see it in US dollars"
    of_a_job = job.instance_count * hourly
    at_once = together * of_a_job
    most = jobs * of_a_job * (job.max_run_s + job.keep_alive_s) / 3600
    text = (
        f"cost    {at_once:,.2f} USD an hour, at most {most:,.2f} USD: {factors} × {hourly:g} USD"
    )
    if listed:
        text += f" (list price of {listed.on}, {listed.region})"
    if job.spot.enabled:
        text += " on demand; spot costs less, and AWS names no price beforehand"
    return text
