"""The stub of Secrets Manager and Parameter Store, asked by boto3 as a host asks."""

import http.client
import json

import pytest

from smlightning import hub
from smlightning.errors import UserError
from smlightning.rehearsal import secret_store

VALUE = "s3cr3t0123456789abcdef"


def test_a_host_reads_what_is_in_the_store_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import boto3

    with secret_store.serve({"team/wandb": VALUE, "ssm:/team/db": VALUE}) as store:
        for name, value in store.variables({"HTTP_PROXY": "http://127.0.0.1:1"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # an earlier test's, with its keys
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        names = {"SECRET_FOR_WANDB_API_KEY": "team/wandb", "SECRET_FOR_DB": "ssm:/team/db"}
        env = {**names, "AWS_REGION": "us-east-1"}
        hub.sign_in(0, env)
        assert env["WANDB_API_KEY"] == env["DB"] == VALUE
        assert store.reads == {"team/wandb": 1, "ssm:/team/db": 1}
        for absent in ("team/other", "ssm:/team/other"):
            with pytest.raises(UserError) as refusal:
                hub.sign_in(0, {"SECRET_FOR_X": absent, "AWS_REGION": "us-east-1"})
            assert "NotFound" in refusal.value.problem
        parameters = boto3.client("ssm", region_name="us-east-1")
        undecrypted = parameters.get_parameter(Name="/team/db")["Parameter"]["Value"]
        assert undecrypted != VALUE
        with pytest.raises(parameters.exceptions.ClientError):
            parameters.put_parameter(Name="/team/db", Value="x")


def test_who_has_not_the_hosts_access_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user of this machine, who finds the port, and another rehearsal's host."""
    values = {"team/wandb": VALUE}
    with secret_store.serve(values) as store, secret_store.serve({"x": "y"}) as other:
        variables = store.variables({})
        key = other.variables({})["AWS_ACCESS_KEY_ID"]
        body = json.dumps({"SecretId": "team/wandb"}).encode()
        headers = {"X-Amz-Target": secret_store.GET_SECRET}
        connection = http.client.HTTPConnection(store.address.removeprefix("http://"))
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        assert answer.status == 400 and VALUE.encode() not in answer.read()
        connection.close()
        for name, value in {**variables, "AWS_ACCESS_KEY_ID": key}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
        with pytest.raises(UserError) as raised:
            hub.sign_in(0, {"SECRET_FOR_X": "team/wandb", "AWS_REGION": "us-east-1"})
        assert secret_store.NO_CREDENTIAL in raised.value.problem
        assert not store.reads and key not in repr(other)


def test_nobody_makes_the_store_read_more_than_a_call_needs() -> None:
    """The answer comes without the body: of a caller without the key, and of a large one."""
    with secret_store.serve({"team/wandb": VALUE}) as store:
        key = f"AWS4-HMAC-SHA256 Credential={store.access_key}/x/us-east-1/secretsmanager/a"
        for authorization, length, expected in (
            ("", "99999999999", secret_store.NO_CREDENTIAL),
            (key, "99999999999", secret_store.TOO_LARGE),
            (key, str(secret_store.MOST_BYTES + 1), secret_store.TOO_LARGE),
            (key, "9" * 5000, secret_store.TOO_LARGE),
            (key, "-1", secret_store.TOO_LARGE),
            (key, "", secret_store.TOO_LARGE),
        ):
            connection = http.client.HTTPConnection(
                store.address.removeprefix("http://"), timeout=10
            )
            connection.putrequest("POST", "/")
            connection.putheader("Authorization", authorization)
            connection.putheader("Content-Length", length)
            connection.endheaders()
            assert json.loads(connection.getresponse().read())["__type"] == expected
            connection.close()
        assert not store.reads


def test_two_variables_of_one_secret_have_its_value() -> None:
    names = {"ONE": "team/a", "TWO": "team/a", "DB": "ssm:/db"}
    for shell in ({"ONE": VALUE}, {"TWO": VALUE}, {"ONE": VALUE, "TWO": VALUE}):
        values = secret_store.contents(names, {**shell, "DB": "z"})
        assert values == {"team/a": VALUE, "ssm:/db": "z"}
    with pytest.raises(UserError) as refusal:
        secret_store.contents(names, {"ONE": VALUE, "TWO": "another", "DB": "z"})
    assert "TWO" in refusal.value.problem and VALUE not in str(refusal.value)


def test_keys_of_one_secret_are_one_text() -> None:
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:a-AbCdEf"
    names = {"ONE": "team/a:x", "TWO": "team/a:y::", "SAME": "team/a:x", "ARN": f"{arn}:x::"}
    shell = {"ONE": VALUE, "TWO": '"2"', "ARN": "z"}
    texts = secret_store.contents(names, shell)
    assert {name: json.loads(text) for name, text in texts.items()} == {
        "team/a": {"x": VALUE, "y": '"2"'},
        arn: {"x": "z"},
    }
    whole = {**names, "ALL": "team/a"}
    text = json.dumps({"x": VALUE, "y": '"2"', "z": 1})
    assert secret_store.contents(whole, {**shell, "ALL": text})["team/a"] == text
    for other in ('{"x": "other", "y": "2"}', "no JSON"):
        with pytest.raises(UserError) as refusal:
            secret_store.contents(whole, {**shell, "ALL": other})
        assert "team/a:x" in refusal.value.problem and VALUE not in str(refusal.value)


def test_without_secrets_nothing_listens() -> None:
    with secret_store.serve({}) as store:
        assert not store.variables({})
