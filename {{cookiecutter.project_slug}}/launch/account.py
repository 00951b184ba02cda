"""What is wrong with a job in this AWS account: read-only questions to IAM, EC2, S3, quotas and prices."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from ipaddress import ip_network
from typing import Any

from launch import profiles, request
from launch.job import Job
from launch.preflight import Finding, error, s3_uri, skipped

Client = Callable[..., Any]  # service name → boto3 client


def connect(job: Job) -> Client:
    """boto3 clients in the job's region that give up in seconds, not minutes."""
    import boto3
    from botocore.config import Config

    patience = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 2})
    return partial(boto3.Session(region_name=job.region).client, config=patience)


def check(job: Job) -> list[Finding]:
    """Findings of every question; what could not be asked is said to be skipped."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    findings: list[Finding] = []
    try:
        client = connect(job)
        identity = client("sts").get_caller_identity()
    except NoCredentialsError:
        unasked = "no credentials here, so role, network, buckets, data and quota were not checked"
        return [skipped("AWS", unasked, "run aws configure or aws sso login")]
    except (BotoCoreError, ClientError) as problem:
        return [error("AWS", request.explain(problem), "or run preflight with --offline")]
    for question in (role, vpc, buckets, quota):
        try:
            findings += question(job, client, identity)
        except (BotoCoreError, ClientError) as problem:
            findings.append(skipped(question.__name__, request.explain(problem), "so it was not checked"))
    return findings


def role(job: Job, client: Client, identity: dict[str, str]) -> Iterator[Finding]:
    """The role exists, here, and SageMaker may take it on."""
    kind, _, session_role = identity["Arn"].split(":")[5].partition("/")
    if not job.role and kind != "assumed-role":
        problem = f"empty, and these credentials are a {kind}'s, not a role's as they are in Studio"
        yield error("role", problem, "set it to the ARN of one that trusts sagemaker.amazonaws.com")
        return
    account = job.role.split(":")[4] if job.role.startswith("arn:") else identity["Account"]
    if account != identity["Account"]:
        yield error(
            "role", f"it is in account {account}, the credentials in {identity['Account']}", "take one of these"
        )
        return
    name = job.role.rpartition("/")[2] or session_role.split("/")[0]
    iam = client("iam")
    try:
        found = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        yield error("role", f"{name} does not exist in account {account}", "create it, or mend the name")
        return
    if job.role.startswith("arn:") and job.role != found["Arn"]:  # a path, such as service-role/, is part of it
        yield error("role", f"there is no {job.role}", f"{name} is {found['Arn']}")
        return
    services = [
        service
        for statement in listed(found["AssumeRolePolicyDocument"]["Statement"])
        if statement["Effect"] == "Allow" and isinstance(statement.get("Principal"), dict)
        if any(fnmatch("sts:assumerole", action.lower()) for action in listed(statement.get("Action", [])))
        for service in listed(statement["Principal"].get("Service", []))
    ]
    if "sagemaker.amazonaws.com" not in services:
        yield error("role", f"{name} does not trust SageMaker", "let sagemaker.amazonaws.com do sts:AssumeRole on it")


def vpc(job: Job, client: Client, identity: dict[str, str]) -> Iterator[Finding]:
    """Hosts can reach each other: one VPC, one zone for EFA, and a group that lets them in and out.

    Every host is in all groups, and what one of these lets through is let through.
    """
    from botocore.exceptions import ClientError

    if not (job.network.subnets and job.network.security_groups):
        return
    ec2 = client("ec2")
    try:
        subnets = ec2.describe_subnets(SubnetIds=job.network.subnets)["Subnets"]
        groups = ec2.describe_security_groups(GroupIds=job.network.security_groups)["SecurityGroups"]
    except ClientError as refusal:
        code, message = refusal.response["Error"]["Code"], refusal.response["Error"]["Message"]
        if not code.endswith((".NotFound", ".Malformed")):
            raise
        key = "subnets" if "Subnet" in code else "security_groups"
        yield error(f"network.{key}", f"{message} in {job.region}", "mend the ID, or the region")
        return
    vpcs = sorted({item["VpcId"] for item in subnets + groups})
    if len(vpcs) > 1:
        yield error("network", f"subnets and groups of {len(vpcs)} VPCs ({', '.join(vpcs)})", "take them from one")
    if job.instance_count == 1:
        return
    zones, efa = sorted({subnet["AvailabilityZone"] for subnet in subnets}), profiles.has_efa(job.instance_type)
    if len(zones) > 1 and efa:
        problem = f"{len(zones)} zones ({', '.join(zones)}), and EFA of {job.instance_type} works within one"
        yield error("network.subnets", problem, "keep the subnets of one zone")
    names, places = [group["GroupId"] for group in groups], [subnet["CidrBlock"] for subnet in subnets]
    for way, rules in (("inbound", "IpPermissions"), ("outbound", "IpPermissionsEgress")):
        if not any(opens(rule, names, places, efa) for group in groups for rule in group[rules]):
            problem = f"{', '.join(names)} has no {way} rule that lets hosts reach each other: the job would hang"
            yield error("network.security_groups", problem, f"add one: {way}, all traffic, with the group itself")


def opens(rule: dict[str, Any], groups: list[str], places: list[str], efa: bool) -> bool:
    """Whether a rule lets the hosts through. EFA wants a group named; elsewhere the subnets' addresses will do."""
    named = any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", []))
    blocks = [ip_network(block["CidrIp"]) for block in rule.get("IpRanges", [])]
    covered = all(any(ip_network(place).subnet_of(block) for block in blocks) for place in places)  # type: ignore[arg-type]
    ports = rule["IpProtocol"] == "tcp" and (rule["FromPort"], rule["ToPort"]) == (0, 65535)
    return (named or (covered and not efa)) and (rule["IpProtocol"] == "-1" or (ports and not efa))


def buckets(job: Job, client: Client, identity: dict[str, str]) -> Iterator[Finding]:
    """Every bucket is there and in the job's region, and channels have data."""
    from botocore.exceptions import ClientError

    s3 = client("s3")
    addresses = {f"channels.{name}": uri for name, uri in job.channels.items()} | {"checkpoint_s3": job.checkpoint_s3}
    for key, uri in {"bucket": f"s3://{job.bucket}", **addresses}.items():
        if not s3_uri(uri):
            continue  # auto, empty, or refused already
        name, _, prefix = uri.removeprefix("s3://").partition("/")
        try:
            head = s3.head_bucket(Bucket=name)
        except ClientError as problem:
            head, code = problem.response, problem.response["Error"]["Code"]
            if code == "404":
                yield error(key, f"bucket {name} does not exist", "create it in the job's region, or mend the name")
                continue
            if code == "403":
                yield error(
                    key, f"these credentials may not see bucket {name}", "ask for s3:ListBucket, or take another"
                )
                continue
            if code != "301":  # 301: it is in another region
                raise
        region = head["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", job.region)
        if region != job.region:
            yield error(key, f"bucket {name} is in {region}, the job in {job.region}", "take one in the job's region")
        elif key.startswith("channels."):
            page = s3.list_objects_v2(Bucket=name, Prefix=prefix)
            if not any(item["Size"] for item in page.get("Contents", [])):
                yield error(key, f"there is no data at {uri}", "upload it, or mend the address")


def quota(job: Job, client: Client, identity: dict[str, str]) -> Iterator[Finding]:
    """The account may start so many instances. New accounts may start no GPU at all."""
    names = [f"{job.instance_type} for {'spot ' if job.spot.enabled else ''}training job usage"]
    if job.keep_alive_s:
        names.append(f"{job.instance_type} for training warm pool usage")
    found: dict[str, float] = {}
    for operation in ("list_aws_default_service_quotas", "list_service_quotas"):  # what was granted overrides
        for page in client("service-quotas").get_paginator(operation).paginate(ServiceCode="sagemaker"):
            found |= {item["QuotaName"]: item["Value"] for item in page["Quotas"]}
    for name in names:
        if name not in found:
            yield skipped("quota", f'AWS lists no "{name}" in {job.region}', "look in the Service Quotas console")
        elif found[name] < job.instance_count:
            problem = f'{job.instance_count} is above the quota "{name}", {found[name]:g} in {job.region}'
            yield error("instance_count", problem, "ask for more in the Service Quotas console; it can take days")


def price(job: Job, client: Client) -> float | None:
    """US dollars for one instance and hour on demand, from AWS's pricing service; None if it names none."""
    import json

    fields = {"productFamily": "ML Instance", "regionCode": job.region, "instanceName": job.instance_type}
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()]
    pricing = client("pricing", region_name="us-east-1")  # it lives in few regions
    products = pricing.get_products(ServiceCode="AmazonSageMaker", Filters=filters)["PriceList"]
    prices = [
        float(dimension["pricePerUnit"].get("USD", 0))
        for product in map(json.loads, products)
        if product["product"]["attributes"].get("platoinstancetype") == "Training"
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    ]
    return max(prices, default=0) or None


def ceiling(job: Job, *, offline: bool = False) -> str:
    """The most the job can cost, in words; in money at the user's price, else at AWS's, else not."""
    from botocore.exceptions import BotoCoreError, ClientError

    hourly = job.price_per_hour or None
    if hourly is None and not offline:
        try:
            hourly = price(job, connect(job))
        except (BotoCoreError, ClientError):
            hourly = None  # no credentials, or no permission to ask
    hours = job.max_run_s / 3600
    made_of = f"{job.instance_count} instances × {hours:g} h (max_run_s)"
    if hourly is None:
        return f"cost    at most {made_of}; set price_per_hour to see it in money"
    return f"cost    at most {job.instance_count * hours * hourly:,.2f}: {made_of} × {hourly:g} an hour"


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
