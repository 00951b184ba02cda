"""Checks whether the hosts of a job reach each other, S3 and other services from its VPC."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws, instances
from smlightning_sagemaker.preflight.account.context import Context
from smlightning_sagemaker.preflight.connections import PROXIES, Connection

ALL_PORTS = (0, 65535)
DEFAULT = "0.0.0.0/0"

Entries = list[dict[str, Any]]  # of an answer of EC2's: subnets, groups, rules, routes


def vpc(context: Context) -> Iterator[Finding]:
    """One VPC, in which hosts reach each other, and a way out of it."""
    from botocore.exceptions import ClientError

    network = context.request.get("VpcConfig")
    if not network:
        return
    ec2 = context.client("ec2")
    try:
        subnets = ec2.describe_subnets(SubnetIds=network["Subnets"])["Subnets"]
        names = network["SecurityGroupIds"]
        groups = ec2.describe_security_groups(GroupIds=names)["SecurityGroups"]
    except ClientError as failure:
        if not aws.code(failure).endswith((".NotFound", ".Malformed")):
            raise
        key = "subnets" if "Subnet" in aws.code(failure) else "security_groups"
        problem = f"{failure.response['Error']['Message']} in {context.job.region}"
        yield error(f"network.{key}", problem, "correct the ID, or the region")
        return
    vpcs = sorted({item["VpcId"] for item in subnets + groups})
    if len(vpcs) > 1:
        problem = f"subnets and security groups are in {len(vpcs)} VPCs ({', '.join(vpcs)})"
        yield error("network", problem, "use subnets and groups of one VPC")
    if context.job.instance_count > 1:
        yield from between_hosts(context, subnets, groups)
    # Last: if the caller may not ask for routes, the findings above stay.
    yield from way_out(context, subnets)


def between_hosts(context: Context, subnets: Entries, groups: Entries) -> Iterator[Finding]:
    """Security groups let the hosts reach each other, and hosts with EFA are in one zone."""
    with_efa = instances.efa(context.job.instance_type)
    zones = sorted({subnet["AvailabilityZone"] for subnet in subnets})
    if with_efa and len(zones) > 1:
        shown = ", ".join(zones)
        problem = f"the subnets are in {len(zones)} zones ({shown}), and EFA works within one zone"
        cure = "keep the subnets of one zone if hosts do not reach each other"
        yield warning("network.subnets", problem, cure)
    names = [group["GroupId"] for group in groups]
    blocks = [subnet["CidrBlock"] for subnet in subnets if subnet.get("CidrBlock")]
    for way, key in (("inbound", "IpPermissions"), ("outbound", "IpPermissionsEgress")):
        rules = [rule for group in groups for rule in group[key]]
        if any(lets_through(rule, names, blocks, with_efa) for rule in rules):
            continue
        # Without EFA, prefix lists, IPv6 or some ports may do.
        level = error if with_efa or not rules else warning
        yield level(
            "network.security_groups",
            f"{', '.join(names)} has no {way} rule that lets hosts reach each other: "
            "the job would hang",
            f"add an {way} rule for all traffic with the group itself",
        )


def lets_through(rule: dict[str, Any], groups: list[str], blocks: list[str], efa: bool) -> bool:
    """Whether a rule of one of the hosts' groups lets the hosts through.

    EFA needs all traffic with one of the groups; otherwise the subnets' addresses, and all ports
    of TCP, are enough.
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
    all_tcp = rule["IpProtocol"] == "tcp" and (rule["FromPort"], rule["ToPort"]) == ALL_PORTS
    return (has_group or has_addresses) and (all_traffic or all_tcp)


@dataclass(frozen=True)
class Vpc:
    """The ways out of a job's subnets.

    Attributes:
        closed: ID of each subnet without a route to the internet → its routes.
        endpoints: of the VPC, as AWS describes them.
    """

    closed: dict[str, Entries]
    endpoints: Entries

    def of_service(self, service: str) -> Entries:
        """The VPC's endpoints whose name ends with ``service``, such as `secretsmanager`."""
        return [e for e in self.endpoints if e.get("ServiceName", "").endswith(f".{service}")]

    def on_subnets(self, service: str) -> Entries:
        """The service's endpoints that have addresses in the VPC; routes lead to the others."""
        return [endpoint for endpoint in self.of_service(service) if endpoint.get("SubnetIds")]


def way_out(context: Context, subnets: Entries) -> Iterator[Finding]:
    """The subnets lead the hosts to S3 and the services they connect to."""
    closed = {
        name: ways
        for name, ways in routes(context, subnets).items()
        if ways and not leads_to_internet(ways)
    }
    if not closed:
        return
    endpoints = context.client("ec2").describe_vpc_endpoints(**within(subnets))["VpcEndpoints"]
    vpc = Vpc(closed, endpoints)
    gateways = {endpoint["VpcEndpointId"] for endpoint in vpc.of_service("s3")}
    for subnet, ways in closed.items():
        if vpc.on_subnets("s3") or gateways & set(map(gateway, ways)):
            continue
        # Other networks, to which its other routes lead, may have an endpoint.
        level = warning if leads_elsewhere(ways) else error
        problem = f"{subnet} has neither an endpoint for S3 nor a NAT gateway"
        yield level(
            "network.subnets", f"{problem}: hosts cannot read their data", "add one of them"
        )
    variables = context.request.get("Environment", {})
    isolated = context.request.get("EnableNetworkIsolation")
    if not isolated and not any(variables.get(name) for name in PROXIES):
        for connection in context.connections:
            if not may_reach(connection, vpc):
                yield unreached(context, connection, vpc)


def may_reach(connection: Connection, vpc: Vpc) -> bool:
    """Whether a closed subnet leads to every service, or to a host that may be in the VPC."""
    if connection.services:
        return all(vpc.on_subnets(service) for service in connection.services)
    return not connection.is_public


def unreached(context: Context, connection: Connection, vpc: Vpc) -> Finding:
    """The finding about a connection to which no closed subnet leads."""
    elsewhere = any(map(leads_elsewhere, vpc.closed.values()))
    level = error if connection.needed and not elsewhere else warning
    names = [f"{context.job.region}.{service}" for service in connection.services]
    other = f"endpoints for {' and '.join(names)}" if names else ""
    if connection.variable:
        other = f"set {connection.variable} in [environment] to a host in your VPC"
    cures = ["add a NAT gateway", other, connection.cure]
    return level(
        "network.subnets",
        f"{connection.key} needs {connection.to}, but no route leads there from "
        f"{', '.join(vpc.closed)}",
        ", or ".join(filter(None, cures)),
    )


def within(subnets: Entries) -> dict[str, Any]:
    """Parameters of a question about the subnets' VPCs."""
    vpcs = sorted({subnet["VpcId"] for subnet in subnets})
    return {"Filters": [{"Name": "vpc-id", "Values": vpcs}]}


def routes(context: Context, subnets: Entries) -> dict[str, Entries]:
    """ID of a subnet → the routes of its own table, else of its VPC's main one.

    A subnet without routes is in a VPC that another account shares, which AWS may not show.
    """
    tables = context.client("ec2").describe_route_tables(**within(subnets))["RouteTables"]
    uses = [(use, table) for table in tables for use in table["Associations"]]
    own = {use["SubnetId"]: table["Routes"] for use, table in uses if "SubnetId" in use}
    main = {table["VpcId"]: table["Routes"] for use, table in uses if use.get("Main")}
    return {
        subnet["SubnetId"]: own.get(subnet["SubnetId"]) or main.get(subnet["VpcId"], [])
        for subnet in subnets
    }


def gateway(route: dict[str, Any]) -> str:
    """The ID of the gateway that a route leads to; its prefix is its kind."""
    return str(route.get("GatewayId", ""))


def leads_to_internet(routes: Entries) -> bool:
    """Whether there is a default route other than through an internet gateway (igw-).

    SageMaker's hosts have no public address, so an internet gateway does not forward their traffic.
    """
    default = [route for route in routes if route.get("DestinationCidrBlock") == DEFAULT]
    return any(not gateway(route).startswith("igw-") for route in default)


def leads_elsewhere(routes: Entries) -> bool:
    """Whether a route leads to networks other than the VPC and the internet."""
    return any(
        not gateway(route).startswith(("local", "igw-", "vpce-"))
        and not (route.get("NatGatewayId") and route.get("DestinationCidrBlock") == DEFAULT)
        for route in routes
    )
