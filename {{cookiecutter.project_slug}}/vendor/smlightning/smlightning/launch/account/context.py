"""What every check of the account reads: a job, its request, and who asks."""

from dataclasses import dataclass
from typing import Any

from smlightning.launch import aws, request
from smlightning.launch.connections import Connection
from smlightning.launch.job import Job

OUTPUT = "request.OutputDataConfig.S3OutputPath"


@dataclass(frozen=True)
class Context:
    """A job, its request, and who asks."""

    job: Job
    request: dict[str, Any]
    identity: dict[str, str]  # of sts:GetCallerIdentity
    role: str  # name or ARN of the job's role; empty: the caller's own
    tuning: bool = False  # many such jobs, some at a time
    sender: str = ""  # name or ARN of the role that will send it; empty: who asks
    connections: tuple[Connection, ...] = ()  # what the job's processes connect to

    def client(self, service: str) -> Any:
        return aws.client(service, self.job.region)

    @property
    def account(self) -> str:
        return self.identity["Account"]

    @property
    def caller(self) -> tuple[str, str]:
        """Kind and name of who asks: (user, me), (assumed-role, AdminAccess), (root, "")."""
        kind, _, name = self.identity["Arn"].split(":")[5].partition("/")
        return kind, name.split("/")[0] if kind == "assumed-role" else name

    @property
    def output_key(self) -> str:
        """The key of job.toml that says where models and code go."""
        named = self.job.request.get("OutputDataConfig", {}).get("S3OutputPath")
        return OUTPUT if named else "bucket"

    @property
    def default_bucket(self) -> str:
        """SageMaker's default bucket of this account; `submit` creates it where it is missing."""
        return f"sagemaker-{self.job.region}-{self.account}"

    def addresses(self) -> dict[str, str]:
        """Folders in S3 by their key in job.toml, without what is no address."""
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
