"""What is wrong with a job in this AWS account: read-only questions to IAM, EC2, S3, quotas and prices."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from ipaddress import ip_network
from typing import Any

from launch import aws, request
from launch.findings import Finding, error, from_sentence, skipped, warning
from launch.job import Job
from runtime import hub

OUTPUT, CODE = "estimator.output_path", "estimator.code_location"


@dataclass(frozen=True)
class Asked:
    """A job, its request, and who asks."""

    job: Job
    request: dict[str, Any]
    identity: dict[str, str]  # of sts:GetCallerIdentity
    role: str  # name or ARN of the job's role; empty: the caller's own
    tuning: bool = False  # many such jobs, some at a time

    def client(self, service: str) -> Any:
        return aws.client(service, self.job.region)

    @property
    def account(self) -> str:
        return self.identity["Account"]

    @property
    def caller(self) -> tuple[str, str]:
        """Kind and name of who asks: (user, me), (assumed-role, AdminAccess), (root, )."""
        kind, _, name = self.identity["Arn"].split(":")[5].partition("/")
        return kind, name.split("/")[0] if kind == "assumed-role" else name

    def addresses(self) -> dict[str, str]:
        """Folders in S3 by their key in job.toml, without the SDK's default bucket, which it makes itself."""
        inputs = {c["ChannelName"]: c["DataSource"] for c in self.request.get("InputDataConfig", [])}
        data = {name: inputs[name].get("S3DataSource", {}) for name in self.job.channels}  # not the SDK's own, `code`
        found = {f"channels.{name}": source.get("S3Uri", "") for name, source in data.items()}
        own = self.job.estimator
        found[OUTPUT if "output_path" in own else "bucket"] = self.request["OutputDataConfig"]["S3OutputPath"]
        found[CODE] = str(own.get("code_location", ""))
        found["checkpoint_s3"] = self.request.get("CheckpointConfig", {}).get("S3Uri", "")
        made_by_sdk = f"s3://sagemaker-{self.job.region}-"  # and what is no address is said without asking AWS
        return {key: uri for key, uri in found.items() if aws.s3_uri(str(uri)) and not uri.startswith(made_by_sdk)}


def check(job: Job, made: dict[str, Any], tuning: bool = False) -> list[Finding]:
    """Findings of every question; what could not be asked is said to be skipped."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        identity = aws.client("sts", job.region).get_caller_identity()
    except NoCredentialsError:
        unasked = "no credentials here, so role, permissions, network, buckets, data and quota were not checked"
        return [skipped("AWS", unasked, aws.sign_in())]
    except (BotoCoreError, ClientError) as problem:
        return [from_sentence("AWS", aws.explain(problem), "run preflight with --offline")]
    role = made["RoleArn"].replace(request.DRY_ACCOUNT, identity["Account"])
    asked = Asked(job, made, identity, "" if role.endswith(f"/{request.DRY_ROLE}") else role, tuning)

    def answers(question: Any) -> list[Finding]:
        found: list[Finding] = []
        try:
            for finding in question(asked):
                found.append(finding)  # one by one: what was found before a question fails stays
        except (BotoCoreError, ClientError) as problem:
            found.append(from_sentence(question.__name__, aws.explain(problem), "it was not checked", "skipped"))
        return found

    with ThreadPoolExecutor() as pool:
        return [finding for found in pool.map(answers, (permissions, vpc, buckets, quota)) for finding in found]


def permissions(asked: Asked) -> Iterator[Finding]:
    """The role exists and trusts SageMaker, the caller may pass it and start jobs, and it may read and write S3."""
    kind, caller = asked.caller
    if not asked.role and (kind != "assumed-role" or caller.startswith("AWSReservedSSO_")):
        whose = "single sign-on's" if kind == "assumed-role" else f"a {kind}'s"
        problem = f"empty, and these credentials are {whose}, not an execution role's as they are in Studio"
        yield error("role", problem, "set it to the ARN of a role that trusts sagemaker.amazonaws.com")
        return
    if asked.role and asked.role.split(":")[4] != asked.account:
        problem = f"it is in account {asked.role.split(':')[4]}, the credentials in {asked.account}"
        yield error("role", problem, "take a role of this account, or AWS_PROFILE of the other")
        return
    iam, name = asked.client("iam"), asked.role.rpartition("/")[2] or caller
    try:
        found = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        yield error("role", f"{name} does not exist in account {asked.account}", "create it, or correct the name")
        return
    if asked.job.role.startswith("arn:") and asked.role != found["Arn"]:  # a path, such as service-role/, is part of it
        yield error("role", f"there is no {asked.role}", f"{name} is {found['Arn']}")
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

    start, region = found["Arn"].split(":iam::")[0], asked.job.region
    place = f"{start}:{{}}:{region}:{asked.account}"
    folders = {key: f"{start}:s3:::{uri.removeprefix('s3://').rstrip('/')}" for key, uri in asked.addresses().items()}
    reads = [f"{folder}/*" for key, folder in folders.items() if key not in ("bucket", OUTPUT)]
    writes = [f"{folder}/*" for key, folder in folders.items() if not key.startswith(("channels.", CODE))]
    own = asked.job.estimator
    upload = CODE if "code_location" in own else OUTPUT if "output_path" in own else "bucket"
    code = [f"{folders[upload]}/*"] if upload in folders else []
    action, kind_of_job, key = "CreateTrainingJob", "training-job", "TrainingJobName"
    if asked.tuning:
        kind_of_job, key = "hyper-parameter-tuning-job", "HyperParameterTuningJobName"
        action = "CreateHyperParameterTuningJob"
    job = place.format("sagemaker") + f":{kind_of_job}/{asked.request.get(key, '*')}"  # a policy may tell of names
    log = place.format("logs") + ":log-group:/aws/sagemaker/*"
    mine = [(f"sagemaker:{action}", [job]), ("iam:PassRole", [found["Arn"]]), ("s3:PutObject", code)]
    if asked.job.tags:
        mine.append(("sagemaker:AddTags", [job]))
    its = [("s3:GetObject", reads), ("s3:PutObject", writes), ("logs:PutLogEvents", [log])]
    if secret := asked.job.hub_token_secret:
        named = place.format("secretsmanager") + f":secret:{secret}-*"  # AWS adds six letters to the name
        action, arn = "secretsmanager:GetSecretValue", secret if secret.startswith("arn:") else named
        if secret.startswith(hub.STORE):
            parameter = secret.removeprefix(hub.STORE).lstrip("/")
            action, arn = "ssm:GetParameter", place.format("ssm") + f":parameter/{parameter}"
        its.append((action, [arn]))
    if ":mlflow-tracking-server/" in asked.job.mlflow:
        its.append(("sagemaker-mlflow:LogBatch", [asked.job.mlflow]))
    if kind == "user":
        caller_arn = asked.identity["Arn"]
    elif kind == "assumed-role":
        caller_arn = found["Arn"] if caller == name else iam.get_role(RoleName=caller)["Role"]["Arn"]
    else:
        caller_arn = ""  # root may do everything
    for who, arn, wanted in (("caller", caller_arn, mine), ("role", found["Arn"], its)):
        for action, resources in wanted if arn else ():
            if resources and not allowed(iam, arn, action, resources):
                problem = f"{arn.rpartition('/')[2]} may not {action} on {', '.join(resources)}"
                if who == "caller" and not action.startswith("s3:"):
                    yield error(f"{who}.{action}", problem, "ask for that permission")
                else:  # a bucket's own policy, which is not simulated, may allow it
                    yield warning(f"{who}.{action}", problem, "add it, unless a bucket's policy allows it")


def allowed(iam: Any, arn: str, action: str, resources: list[str]) -> bool:
    """Whether IAM's own simulation lets the user or role do this on all of these resources."""
    context = {"ContextKeyName": "iam:PassedToService", "ContextKeyType": "string"}
    entry = [context | {"ContextKeyValues": ["sagemaker.amazonaws.com"]}] if action == "iam:PassRole" else []
    answer = iam.simulate_principal_policy(
        PolicySourceArn=arn, ActionNames=[action], ResourceArns=resources, ContextEntries=entry
    )
    return all(result["EvalDecision"] == "allowed" for result in answer["EvaluationResults"])


def vpc(asked: Asked) -> Iterator[Finding]:
    """Hosts can reach each other: one VPC, one zone for EFA, and a group that lets them in and out.

    Every host is in all groups, and what one of these lets through is let through.
    """
    from botocore.exceptions import ClientError

    network = asked.request.get("VpcConfig")
    if not network:
        return
    ec2 = asked.client("ec2")
    try:
        subnets = ec2.describe_subnets(SubnetIds=network["Subnets"])["Subnets"]
        groups = ec2.describe_security_groups(GroupIds=network["SecurityGroupIds"])["SecurityGroups"]
    except ClientError as refusal:
        if not aws.code(refusal).endswith((".NotFound", ".Malformed")):
            raise
        key = "subnets" if "Subnet" in aws.code(refusal) else "security_groups"
        message = refusal.response["Error"]["Message"]
        yield error(f"network.{key}", f"{message} in {asked.job.region}", "correct the ID, or the region")
        return
    vpcs = sorted({item["VpcId"] for item in subnets + groups})
    if len(vpcs) > 1:
        yield error("network", f"subnets and groups of {len(vpcs)} VPCs ({', '.join(vpcs)})", "take them from one")
    if asked.job.instance_count > 1:
        yield from between_hosts(asked, subnets, groups)
    yield from way_out(asked, ec2, subnets)  # last: where it may not be asked, what came before stays


def between_hosts(asked: Asked, subnets: list[dict[str, Any]], groups: list[dict[str, Any]]) -> Iterator[Finding]:
    """One zone for EFA, and security groups that let the hosts in and out."""
    instance = asked.job.instance_type
    zones = sorted({subnet["AvailabilityZone"] for subnet in subnets})
    efa = bool(re.match(r"ml\.(p3dn\.|p4d|p5|p6|trn)", instance))
    if len(zones) > 1 and efa:
        problem = f"{len(zones)} zones ({', '.join(zones)}), and EFA of {instance} works within one"
        yield error("network.subnets", problem, "keep the subnets of one zone")
    names, places = [group["GroupId"] for group in groups], [subnet["CidrBlock"] for subnet in subnets]
    for way, key in (("inbound", "IpPermissions"), ("outbound", "IpPermissionsEgress")):
        rules = [rule for group in groups for rule in group[key]]
        if not any(opens(rule, names, places, efa) for rule in rules):
            problem = f"{', '.join(names)} has no {way} rule that lets hosts reach each other: the job would hang"
            cure = f"add one: {way}, all traffic, with the group itself"
            # Prefix lists, IPv6 and ranges of ports may let the hosts through, or not.
            unsure = any(r.get("PrefixListIds") or r.get("Ipv6Ranges") or r["IpProtocol"] == "tcp" for r in rules)
            yield (warning if unsure and not efa else error)("network.security_groups", problem, cure)


def opens(rule: dict[str, Any], groups: list[str], places: list[str], efa: bool) -> bool:
    """Whether a rule lets the hosts through. EFA wants a group named; elsewhere the subnets' addresses will do."""
    named = any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", []))
    blocks = [ip_network(block["CidrIp"]) for block in rule.get("IpRanges", [])]
    covered = all(any(ip_network(place).subnet_of(block) for block in blocks) for place in places)  # type: ignore[arg-type]
    ports = rule["IpProtocol"] == "tcp" and (rule["FromPort"], rule["ToPort"]) == (0, 65535)
    return (named or (covered and not efa)) and (rule["IpProtocol"] == "-1" or (ports and not efa))


def way_out(asked: Asked, ec2: Any, subnets: list[dict[str, Any]]) -> Iterator[Finding]:
    """The subnets lead to the internet, from which pip installs requirements.txt, and to S3."""
    vpcs = sorted({subnet["VpcId"] for subnet in subnets})
    within = {"Filters": [{"Name": "vpc-id", "Values": vpcs}]}
    tables = ec2.describe_route_tables(**within)["RouteTables"]
    for subnet in subnets:
        own = [t for t in tables if any(a.get("SubnetId") == subnet["SubnetId"] for a in t["Associations"])]
        main = [t for t in tables if t["VpcId"] == subnet["VpcId"] and any(a.get("Main") for a in t["Associations"])]
        # Where a route leads, by the kind of its gateway. SageMaker's hosts have no public address: an internet
        # gateway (igw-) alone lets nothing through, while an endpoint (vpce-) is the way to S3.
        routes = [route for table in own or main for route in table["Routes"]]
        if not routes:
            continue  # of a VPC that another account shares, whose tables may not be seen
        default = [r for r in routes if r.get("DestinationCidrBlock") == "0.0.0.0/0"]
        if all(str(route.get("GatewayId", "")).startswith("igw-") for route in default):
            if "PIP_INDEX_URL" not in asked.request.get("Environment", {}):
                problem = f"{subnet['SubnetId']} has no route to a NAT gateway: pip cannot install requirements.txt"
                cure = "add one, or set PIP_INDEX_URL in [environment] to an index in your VPC"
                yield warning("network.subnets", problem, cure)
            if not any(str(route.get("GatewayId", "")).startswith("vpce-") for route in routes):
                found = ec2.describe_vpc_endpoints(**within)["VpcEndpoints"]  # one on the subnets has no route
                if not any(e.get("ServiceName", "").endswith(".s3") and e.get("SubnetIds") for e in found):
                    problem = f"{subnet['SubnetId']} has neither an endpoint for S3 nor a NAT gateway"
                    # Other networks, to which its other routes lead, may have one.
                    gateways = [str(route.get("GatewayId", "")) for route in routes]
                    elsewhere = not all(gateway.startswith(("local", "igw-")) for gateway in gateways)
                    level = warning if elsewhere else error
                    yield level("network.subnets", f"{problem}: hosts cannot read their data", "add one of them")


def buckets(asked: Asked) -> Iterator[Finding]:
    """Every bucket is there and in the job's region, and channels have data."""
    from botocore.exceptions import ClientError

    s3, region = asked.client("s3"), asked.job.region
    heads: dict[str, dict[str, Any]] = {}
    for key, uri in asked.addresses().items():
        name = aws.s3_location(uri)[0]
        new = name not in heads
        if new:
            try:
                heads[name] = s3.head_bucket(Bucket=name)
            except ClientError as problem:
                heads[name] = problem.response
        status = heads[name].get("Error", {}).get("Code", "")
        found = heads[name].get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region", region)
        if (status or found != region) and not new:
            continue  # said for the first key that names the bucket
        if status == "404":
            yield error(key, f"bucket {name} does not exist", "create it in the job's region, or correct the name")
        elif found != region:
            yield error(key, f"bucket {name} is in {found}, the job in {region}", "take one in the job's region")
        elif status:
            cure = "see that the job's role may read it, or ask for s3:ListBucket"
            yield warning(key, f"these credentials may not see bucket {name} ({status})", cure)
        elif key.startswith("channels.") and not aws.objects(uri, s3):
            yield error(key, f"there is no data at {uri}", "upload it, or correct the address")


def quota(asked: Asked) -> Iterator[Finding]:
    """The account may start so many instances for so long. New accounts may start no GPU at all."""
    job, kind = asked.job, "spot " if asked.job.spot.enabled else ""
    own = f"{job.instance_type} for {kind}training job usage"
    together = job.instance_count * (job.tune.parallel if asked.tuning else 1)
    wanted: dict[str, tuple[str, float]] = {
        own: ("instance_count", together),
        "Longest run time for a training job": ("max_run_s", job.max_run_s),
        "Maximum number of instances per training job": ("instance_count", job.instance_count),
        "Number of instances across training jobs": ("instance_count", together),
    }
    if job.keep_alive_s:
        wanted[f"{job.instance_type} for training warm pool usage"] = ("instance_count", job.instance_count)
    found: dict[str, float] = {}
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):  # what was granted, then the rest
        for page in asked.client("service-quotas").get_paginator(operation).paginate(ServiceCode="sagemaker"):
            found = {item["QuotaName"]: item["Value"] for item in page["Quotas"]} | found
            if wanted.keys() <= found.keys():
                break
        if own in found:
            break
    for name, (key, value) in wanted.items():
        if name in found and value > found[name]:
            problem = f'{value} is above the quota "{name}", {found[name]:g} in {job.region}'
            yield error(key, problem, "ask for more in the Service Quotas console; it can take days")
    if own not in found:
        yield skipped("quota", f'AWS lists no "{own}" in {job.region}', "look in the Service Quotas console")


def price(region: str, instance_type: str, use: str = "Training") -> float | None:
    """US dollars for one instance and hour on demand, from AWS's pricing service; None if it does not answer."""
    from botocore.exceptions import BotoCoreError, ClientError

    fields = {"productFamily": "ML Instance", "regionCode": region, "instanceName": instance_type}
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()]
    try:
        pricing = aws.client("pricing", "us-east-1")  # it lives in few regions
        products = pricing.get_products(ServiceCode="AmazonSageMaker", Filters=filters)["PriceList"]
    except (BotoCoreError, ClientError):
        return None  # no credentials, or no permission to ask
    prices = [
        float(dimension["pricePerUnit"].get("USD", 0))
        for product in map(json.loads, products)
        if product["product"]["attributes"].get("platoinstancetype") == use
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    ]
    return max(prices, default=0) or None


def cost(job: Job, *, offline: bool = False, tuning: bool = False) -> str:
    """What runs at once costs in an hour, and all at most: at the user's price, else AWS's, else none."""
    jobs, together = (job.tune.max_jobs, job.tune.parallel) if tuning else (1, 1)
    hourly = job.price_per_hour or (None if offline else price(job.region, job.instance_type))
    seconds, hours = job.max_run_s + job.keep_alive_s, f"{job.max_run_s / 3600:g} h (max_run_s)"
    if job.keep_alive_s:
        hours = f"({hours} + {job.keep_alive_s / 3600:g} h (keep_alive_s))"
    instances = f"{job.instance_count} instance{'s' * (job.instance_count > 1)}"
    made_of = (f"{jobs} jobs × " if jobs > 1 else "") + f"{instances} × {hours}"
    if hourly is None:
        return f"cost    at most {made_of}; set price_per_hour to see it in US dollars"
    each = job.instance_count * hourly
    most = jobs * each * seconds / 3600
    return f"cost    {together * each:,.2f} USD an hour, at most {most:,.2f} USD: {made_of} × {hourly:g} USD"


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
