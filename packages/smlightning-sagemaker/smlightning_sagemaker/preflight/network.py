"""Checks whether the hosts of a job reach each other, S3, its secrets and pip's package index.

AWS takes a job whose network is closed; its hosts then hang or fail at the start, and are billed.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

from smlightning import stored_secrets
from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws, instances, requirements_file
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

Entries = list[dict[str, Any]]  # of an answer of EC2's: subnets, groups, rules, routes

ALL_PORTS = (0, 65535)
DEFAULT = "0.0.0.0/0"
HOST = re.compile(r"https?://(?:[^\s/@]+@)?([\w.-]+)")  # of an address
INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
CODEARTIFACT = ("codeartifact.api", "codeartifact.repositories")  # its endpoints in a VPC
STORES = ("secretsmanager", "ssm")  # of secrets
# A statement for everybody, without spaces and brackets, as AWS writes it for a new endpoint.
OPEN = '{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*"}'
OPEN_POLICY = re.compile(
    r'\{(?=[^{}]*"Effect":"Allow")(?=[^{}]*"Action":"\*")(?=[^{}]*"Resource":"\*")'
    r'(?=[^{}]*"Principal":(\{"AWS":)?"\*")(?![^{}]*"Condition")'
)
# Hosts that are in nobody's VPC; another one may be.
PUBLIC = ("pypi.org", "pythonhosted.org", "pytorch.org", "github.com")
WITHOUT_INDEX = "put wheels into src/, with --no-index and --find-links, or into your own image"


def hosts(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The security groups let several hosts reach each other.

    EFA needs rules for all traffic with the group itself, and one zone.
    https://docs.aws.amazon.com/sagemaker/latest/dg/train-vpc.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html
    """
    network = body.get("VpcConfig")
    if not network or max(each.instance_count for each in job.variants) == 1:
        return
    ec2 = aws.client("ec2", job.region)
    subnets = ec2.describe_subnets(SubnetIds=network["Subnets"])["Subnets"]
    names = network["SecurityGroupIds"]
    groups = ec2.describe_security_groups(GroupIds=names)["SecurityGroups"]
    with_efa = any(instances.efa(each.instance_type) for each in job.variants)
    zones = sorted({subnet["AvailabilityZone"] for subnet in subnets})
    if with_efa and len(zones) > 1:
        problem = f"the subnets are in {' and '.join(zones)}, and EFA works within one zone"
        yield warning("network.subnets", problem, "keep the subnets of one zone")
    blocks = [subnet["CidrBlock"] for subnet in subnets if subnet.get("CidrBlock")]
    for way, key in (("inbound", "IpPermissions"), ("outbound", "IpPermissionsEgress")):
        rules = [rule for group in groups for rule in group[key]]
        if any(allows_hosts(rule, names, blocks, with_efa) for rule in rules):
            continue
        # Without EFA, prefix lists, IPv6 or some ports may do.
        level = error if with_efa or not rules else warning
        yield level(
            "network.security_groups",
            f"{', '.join(names)} has no {way} rule that lets hosts reach each other: "
            "the job would hang",
            f"add an {way} rule for all traffic with the group itself",
        )


def allows_hosts(
    rule: dict[str, Any],
    groups: list[str],
    blocks: list[str],
    efa: bool,
    ports: tuple[int, int] = ALL_PORTS,
) -> bool:
    """Whether a rule allows traffic with the hosts, by their groups or their subnets' addresses.

    EFA needs all traffic with one of the groups; otherwise the ports of TCP are enough.
    """
    has_group = any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", []))
    all_traffic = rule["IpProtocol"] == "-1"
    if efa:
        return has_group and all_traffic
    ranges = [ip_network(item["CidrIp"]) for item in rule.get("IpRanges", [])]
    has_addresses = bool(blocks) and all(
        any(ip_network(block).subnet_of(allowed) for allowed in ranges)  # type: ignore[arg-type]
        for block in blocks
    )
    least, most = ports
    is_tcp = rule["IpProtocol"] == "tcp" and rule["FromPort"] <= least and most <= rule["ToPort"]
    return (has_group or has_addresses) and (all_traffic or is_tcp)


def lets_hosts_in(job: Job, body: dict[str, Any], groups: list[str], port: int) -> bool:
    """Whether an inbound rule of these groups allows a port of TCP to the hosts.

    A rule for IPv6 or a prefix list may; which addresses it holds is not read.
    """
    ec2, vpc = aws.client("ec2", job.region), body["VpcConfig"]
    subnets = ec2.describe_subnets(SubnetIds=vpc["Subnets"])["Subnets"]
    blocks = [subnet["CidrBlock"] for subnet in subnets if subnet.get("CidrBlock")]
    described = ec2.describe_security_groups(GroupIds=groups)["SecurityGroups"]
    return any(
        rule.get("Ipv6Ranges")
        or rule.get("PrefixListIds")
        or allows_hosts(rule, vpc["SecurityGroupIds"], blocks, efa=False, ports=(port, port))
        for group in described
        for rule in group["IpPermissions"]
    )


def groups_of(job: Job, interfaces: list[str]) -> list[str]:
    """The security groups of network interfaces."""
    ec2 = aws.client("ec2", job.region)
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=interfaces)["NetworkInterfaces"]
    return list(dict.fromkeys(group["GroupId"] for each in found for group in each["Groups"]))


def s3(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Every subnet leads to S3, by NAT or an endpoint.

    https://docs.aws.amazon.com/sagemaker/latest/dg/train-vpc.html
    """
    yield from egress(job, body)
    closed, endpoints = ways_out(job, body)
    of_s3 = of_service(endpoints, "s3")
    gateways = {endpoint["VpcEndpointId"] for endpoint in of_s3}
    for subnet, routes in closed.items():
        if has_addresses(of_s3) or gateways & set(map(gateway, routes)):
            continue
        # Other networks, to which its other routes lead, may have an endpoint.
        level = warning if leads_elsewhere(routes) else error
        problem = f"{subnet} has neither an endpoint for S3 nor a NAT gateway"
        yield level(
            "network.subnets", f"{problem}: hosts cannot read their data", "add one of them"
        )


def egress(job: Job, body: dict[str, Any]) -> Iterator[Finding]:
    """The security groups let the hosts out, to more than the groups themselves."""
    names = body.get("VpcConfig", {}).get("SecurityGroupIds")
    if not names:
        return
    ec2 = aws.client("ec2", job.region)
    groups = ec2.describe_security_groups(GroupIds=names)["SecurityGroups"]
    for rule in (rule for group in groups for rule in group["IpPermissionsEgress"]):
        others = {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])} - {*names}
        if others or any(map(rule.get, ("IpRanges", "Ipv6Ranges", "PrefixListIds"))):
            return
    within = {"Filters": [{"Name": "vpc-id", "Values": [group["VpcId"] for group in groups]}]}
    endpoints = of_service(ec2.describe_vpc_endpoints(**within)["VpcEndpoints"], "s3")
    if not {entry["GroupId"] for each in endpoints for entry in each.get("Groups", [])} & {*names}:
        problem = f"{', '.join(names)} lets hosts out to each other at most, and not to S3"
        hint = "add an outbound rule for HTTPS, to S3's prefix list or to all addresses"
        yield error("network.security_groups", problem, hint)


def index(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The subnets lead to the package index, which pip tries for minutes on each host."""
    used = indexes(job, body, project)
    variables = body.get("Environment", {})
    if not used or body.get("EnableNetworkIsolation") or any(map(variables.get, PROXIES)):
        return
    closed, endpoints = ways_out(job, body)
    repository = variables.get(requirements.CODEARTIFACT)
    if repository:
        is_reached = all(has_addresses(of_service(endpoints, name)) for name in CODEARTIFACT)
        instead = f"endpoints for {' and '.join(CODEARTIFACT)}"
    else:  # pip passes over an index that does not answer: one in the VPC may hold all
        is_reached = not all(f".{host}".endswith(tuple(f".{p}" for p in PUBLIC)) for host in used)
        instead = "set PIP_INDEX_URL in [environment] to a host in your VPC"
    if not closed or is_reached:
        return
    level = warning if any(map(leads_elsewhere, closed.values())) else error
    yield level(
        "network.subnets",
        f"{requirements.key_of(project)} needs {used[0]} (pip), but no route leads there from "
        f"{', '.join(closed)}",
        f"add a NAT gateway, or {instead}, or {WITHOUT_INDEX}",
    )


def secrets(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The subnets lead to the stores of [secrets], which each host's first process reads.

    https://docs.aws.amazon.com/secretsmanager/latest/userguide/vpc-endpoint-overview.html
    """
    closed, endpoints = ways_out(job, body) if job.secrets else ({}, [])
    level = warning if any(map(leads_elsewhere, closed.values())) else error
    for variable, text in job.secrets.items() if closed else ():
        service = "ssm" if stored_secrets.parse(text).is_parameter else "secretsmanager"
        if not has_addresses(of_service(endpoints, service)):
            problem = f"secrets.{variable} is in {service}, to which no route leads from "
            hint = f"add a NAT gateway, or an endpoint for {service}"
            yield level("network.subnets", problem + ", ".join(closed), hint)


def carries(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No endpoint and no ACL of the network may keep the hosts' traffic back; each is a warning.

    https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html
    https://docs.aws.amazon.com/vpc/latest/userguide/vpc-network-acls.html
    """
    _, endpoints = ways_out(job, body)
    for each in (each for name in ("s3", *STORES) for each in of_service(endpoints, name)):
        name, groups = each["VpcEndpointId"], [one["GroupId"] for one in each.get("Groups", [])]
        if not OPEN_POLICY.search(re.sub(r"[\s\[\]]", "", each.get("PolicyDocument") or OPEN)):
            hint = "check that it allows the role, the job's buckets, and its secrets"
            yield warning("network.endpoints", f"the policy of {name} does not allow all", hint)
        if has_addresses([each]) and not each.get("PrivateDnsEnabled", True):
            problem = f"{name} has no private DNS, so that the service's usual name leads past it"
            yield warning("network.endpoints", problem, "enable its private DNS")
        if groups and not lets_hosts_in(job, body, groups, 443):
            problem = f"{', '.join(groups)} of {name} lets the hosts in at no port 443"
            yield warning("network.endpoints", problem, "allow HTTPS from the hosts' group")
    subnets = body.get("VpcConfig", {}).get("Subnets")
    if not subnets:
        return
    of_subnets = [{"Name": "association.subnet-id", "Values": subnets}]
    answer = aws.client("ec2", job.region).describe_network_acls(Filters=of_subnets)
    for acl in answer["NetworkAcls"]:
        for way in (False, True):
            entries = [entry for entry in acl["Entries"] if entry["Egress"] is way]
            first = min(entries, key=lambda entry: entry["RuleNumber"])
            if (first["RuleAction"], first["Protocol"]) != ("allow", "-1"):
                problem = f"network ACL {acl['NetworkAclId']} does not allow all traffic"
                hint = "check that it allows HTTPS, the answers' ports, and traffic between hosts"
                yield warning("network.subnets", problem, hint)
                break


def indexes(job: Job, body: dict[str, Any], project: Project) -> list[str]:
    """Hosts of the package indexes that pip uses in the container; none if it needs none."""
    if not requirements.asks_an_index(job, project):
        return []
    variables = {name: str(value) for name, value in body.get("Environment", {}).items()}
    if requirements.CODEARTIFACT in variables:
        return ["CodeArtifact"]
    texts = [variables.get(name, "") for name in INDEXES]
    texts += requirements_file.lines(project.requirements)
    return [host for text in texts for host in HOST.findall(text)] or ["pypi.org"]


def ways_out(job: Job, body: dict[str, Any]) -> tuple[dict[str, Entries], Entries]:
    """ID of each subnet without a route to the internet → its routes; and the VPC's endpoints.

    A subnet without routes is in a VPC that another account shares, which AWS may not show.
    """
    network = body.get("VpcConfig")
    if not network:
        return {}, []
    ec2 = aws.client("ec2", job.region)
    subnets = ec2.describe_subnets(SubnetIds=network["Subnets"])["Subnets"]
    vpcs = sorted({subnet["VpcId"] for subnet in subnets})
    within = {"Filters": [{"Name": "vpc-id", "Values": vpcs}]}
    tables = ec2.describe_route_tables(**within)["RouteTables"]
    uses = [(use, table["Routes"]) for table in tables for use in table["Associations"]]
    own = {use["SubnetId"]: routes for use, routes in uses if "SubnetId" in use}
    main = {table["VpcId"]: table["Routes"] for table in tables if is_main(table)}
    closed = {}
    for subnet in subnets:
        name = subnet["SubnetId"]
        routes = own.get(name) or main.get(subnet["VpcId"], [])
        if routes and not leads_to_internet(routes):
            closed[name] = routes
    return closed, ec2.describe_vpc_endpoints(**within)["VpcEndpoints"] if closed else []


def is_main(table: dict[str, Any]) -> bool:
    """Whether a table of routes is that of subnets without one of their own."""
    return any(use.get("Main") for use in table["Associations"])


def of_service(endpoints: Entries, service: str) -> Entries:
    """The endpoints in use whose name ends with ``service``, such as `s3`.

    A deleted, failed or rejected one is listed for a while (API_VpcEndpoint, State).
    """
    return [
        each
        for each in endpoints
        if each.get("ServiceName", "").endswith(f".{service}")
        and each.get("State", "available").lower() == "available"
    ]


def has_addresses(endpoints: Entries) -> bool:
    """Whether one of these endpoints has addresses in the VPC; routes lead to the others."""
    return any(endpoint.get("SubnetIds") for endpoint in endpoints)


def gateway(route: dict[str, Any]) -> str:
    """The ID of the gateway that a route leads to; its prefix is its kind."""
    return str(route.get("GatewayId", ""))


def leads_to_internet(routes: Entries) -> bool:
    """Whether there is a default route other than through an internet gateway (igw-).

    SageMaker's hosts have no public address, so an internet gateway does not forward their traffic.
    The gateway of a `blackhole` was deleted (API_Route, State).
    """
    default = [route for route in routes if route.get("DestinationCidrBlock") == DEFAULT]
    used = [route for route in default if route.get("State") != "blackhole"]
    return any(not gateway(route).startswith("igw-") for route in used)


def leads_elsewhere(routes: Entries) -> bool:
    """Whether a route leads to networks other than the VPC and the internet."""
    return any(
        not gateway(route).startswith(("local", "igw-", "vpce-"))
        and not (route.get("NatGatewayId") and route.get("DestinationCidrBlock") == DEFAULT)
        for route in routes
    )
