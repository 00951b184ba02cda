"""The price of a job: AWS's answer, and none."""

import json
import socket
import time

import boto3
import pytest

from moto_account import REGION, record
from smlightning_sagemaker.job import price

pytest_plugins = "moto_account"


def test_price_is_what_the_service_returns_for_training(aws, good, monkeypatch):
    def product(kind: str, dollars: str) -> str:
        terms = {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": dollars}}}}}}
        return json.dumps({"product": {"attributes": {"platoinstancetype": kind}}, "terms": terms})

    asked = record(
        monkeypatch,
        GetProducts={"PriceList": [product("Hosting", "9"), product("Training", "2.5")]},
    )
    made_of = "2 instances × 1 h (max_run_s) × 2.5 USD"
    assert price.cost(good) == f"cost    5.00 USD an hour, at most 5.00 USD: {made_of}"
    wanted = {
        "productFamily": "ML Instance",
        "regionCode": REGION,
        "instanceName": "ml.p4d.24xlarge",
    }
    assert {f["Field"]: f["Value"] for f in asked["GetProducts"]["Filters"]} == wanted


@pytest.mark.parametrize("text", ["", "{}", '{"product": {"attributes": {}}}', "PRICE"])
def test_a_price_list_of_another_form_is_no_price(aws, good, monkeypatch, text):
    product = {"attributes": {"platoinstancetype": "Training"}}
    terms = {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": ""}}}}}}
    text = text.replace("PRICE", json.dumps({"product": product, "terms": terms}))
    record(monkeypatch, GetProducts={"PriceList": [text]})
    assert "the price is not known" in price.cost(good)


def test_a_price_list_that_does_not_answer_costs_seconds(good, monkeypatch):
    """As in a network that has no way to AWS's price list: the server accepts and never answers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setattr(price, "TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", address)
        boto3.client("pricing", region_name="us-east-1")  # so that AWS's model was read before
        began = time.monotonic()
        said = price.cost(good)
        assert time.monotonic() - began < 15  # boto3 waits 20 s for an answer
    assert "not known" in said
