"""The stub of Secrets Manager and Parameter Store, asked by boto3 as a host asks."""

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


def test_without_secrets_nothing_listens() -> None:
    with secret_store.serve({}) as store:
        assert not store.variables({})
