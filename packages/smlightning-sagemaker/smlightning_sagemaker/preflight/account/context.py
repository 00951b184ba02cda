"""The facts that every check of the account reads: a job, its request, and the caller."""

from dataclasses import dataclass
from typing import Any

from smlightning_sagemaker.job import aws, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight.connections import Connection

OUTPUT = "request.OutputDataConfig.S3OutputPath"


@dataclass(frozen=True)
class Context:
    """A job, its request, and the caller."""

    job: Job
    request: dict[str, Any]
    identity: dict[str, str]  # of sts:GetCallerIdentity
    role: str  # name or ARN of the job's role; empty: the caller's own
    sender: str = ""  # name or ARN of the role that will send it; empty: the caller
    connections: tuple[Connection, ...] = ()  # what the job's processes connect to

    def client(self, service: str, region: str = "") -> Any:
        """boto3's client of a service, in the job's region or another one."""
        return aws.client(service, region or self.job.region)

    def objects(self, uri: str) -> list[dict[str, Any]]:
        """The first objects at an S3 address, without empty ones."""
        bucket, prefix = aws.s3_location(uri)
        listed = self.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix)
        return [item for item in listed.get("Contents", []) if item["Size"]]

    @property
    def account(self) -> str:
        return self.identity["Account"]

    @property
    def caller(self) -> tuple[str, str]:
        """Kind and name of the caller: (user, me), (assumed-role, AdminAccess), (root, "")."""
        kind, _, name = self.identity["Arn"].split(":")[5].partition("/")
        return kind, name.split("/")[0] if kind == "assumed-role" else name

    @property
    def output_key(self) -> str:
        """The key of job.toml that sets the place of models and code."""
        chosen = self.job.request.get("OutputDataConfig", {}).get("S3OutputPath")
        return OUTPUT if chosen else "bucket"

    @property
    def default_bucket(self) -> str:
        """SageMaker's default bucket of this account; `submit` creates it where it is missing."""
        return f"sagemaker-{self.job.region}-{self.account}"

    def addresses(self) -> dict[str, str]:
        """Key of job.toml → its folder in S3, for valid addresses."""
        folders = {}
        for channel in self.request.get("InputDataConfig", []):
            name = channel["ChannelName"]
            if name in self.job.channels:  # and not `code`, of an isolated job
                source = channel.get("DataSource", {}).get("S3DataSource", {})
                folders[f"channels.{name}"] = source.get("S3Uri", "")
        folders[self.output_key] = self.request["OutputDataConfig"]["S3OutputPath"]
        folders["checkpoint_s3"] = self.request.get("CheckpointConfig", {}).get("S3Uri", "")
        return {
            key: uri.replace(request.DRY_ACCOUNT, self.account)
            for key, uri in folders.items()
            if aws.s3_uri(str(uri))
        }
