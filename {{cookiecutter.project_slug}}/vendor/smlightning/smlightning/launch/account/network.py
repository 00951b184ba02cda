"""Whether the hosts of a job reach each other, S3 and what else they need from its VPC."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import Any

from smlightning.launch import aws, instances, resources
from smlightning.launch.account.context import Context
from smlightning.launch.connections import PROXIES, Connection
from smlightning.launch.findings import Finding, error, warning

ALL_PORTS = (0, 65535)


def vpc(context: Context) -> Iterator[Finding]:
    """One VPC; hosts that reach each other in it; and a way out of it."""
    from botocore.exceptions import ClientError

    network = context.request.get("VpcConfig")
    if not network:
        return
    try:
        subnets = context.ask("ec2", "describe_subnets", SubnetIds=network["Subnets"])["Subnets"]
        names = network["SecurityGroupIds"]
        answer = context.ask("ec2", "describe_security_groups", GroupIds=names)
        groups = answer["SecurityGroups"]
    except ClientError as refusal:
        if not aws.code(refusal).endswith((".NotFound", ".Malformed")):
            raise
        key = "subnets" if "Subnet" in aws.code(refusal) else "security_groups"
        message = refusal.response["Error"]["Message"]
        problem = f"{message} in {context.job.region}"
        yield error(f"network.{key}", problem, "correct the ID, or the region")
        return
    vpcs = sorted({item["VpcId"] for item in subnets + groups})
    if len(vpcs) > 1:
        problem = f"subnets and groups of {len(vpcs)} VPCs ({', '.join(vpcs)})"
        yield error("network", problem, "take them from one")
    yield from addresses(context, subnets)
    if any(
        sum(group.count for group in cluster) > 1
        for cluster in resources.candidates(context.request["ResourceConfig"])
    ):
        yield from zones(context, subnets)
        yield from between_hosts(context, subnets, groups)
    # Last: where it may not be asked, what came before stays.
    yield from way_out(context, subnets, groups)


# Private addresses of a host in its VPC: with EFA, and without
# (https://docs.aws.amazon.com/sagemaker/latest/dg/train-vpc.html).
ADDRESSES_WITH_EFA, ADDRESSES = 5, 2


def addresses(context: Context, subnets: list[dict[str, Any]]) -> Iterator[Finding]:
    """The subnets have addresses for all hosts."""
    if not all(subnet.get("CidrBlock") for subnet in subnets):
        problem = "a subnet has IPv6 addresses alone, of which AWS's pages on training say nothing"
        yield warning("network.subnets", problem, "name one with IPv4, or try a short job first")
        return
    free = sum(subnet.get("AvailableIpAddressCount", 0) for subnet in subnets)
    for cluster in resources.candidates(context.request["ResourceConfig"]):
        taken = sum(
            group.count * (ADDRESSES_WITH_EFA if instances.efa(group.instance_type) else ADDRESSES)
            for group in cluster
        )
        if free < taken:
            problem = f"{free} free addresses, and {resources.shown(cluster)} take {taken}"
            yield error("network.subnets", problem, "name further subnets, or larger ones")


def with_efa(context: Context) -> list[str]:
    """The job's instance types whose network between hosts is EFA."""
    return list(filter(instances.efa, resources.types_of(context.request["ResourceConfig"])))


def zones(context: Context, subnets: list[dict[str, Any]]) -> Iterator[Finding]:
    """EFA works within one zone; more of them find capacity sooner, as AWS's guide shows it."""
    names = sorted({subnet["AvailabilityZone"] for subnet in subnets})
    kinds = with_efa(context)
    if len(names) > 1 and kinds:
        shown = " and ".join(kinds)
        problem = f"{len(names)} zones ({', '.join(names)}), and EFA of {shown} works within one"
        cure = "keep the subnets of one zone if hosts do not reach each other"
        yield warning("network.subnets", problem, cure)


@dataclass(frozen=True)
class Hosts:
    """What a rule has to let through for the hosts to reach each other."""

    groups: list[str]  # IDs; every host is in all of them
    blocks: list[str]  # IPv4 addresses of the subnets; a subnet of IPv6 alone has none
    efa: bool


def between_hosts(
    context: Context, subnets: list[dict[str, Any]], groups: list[dict[str, Any]]
) -> Iterator[Finding]:
    """Security groups let the hosts in and out; what one of them lets through is let through."""
    hosts = Hosts(
        groups=[group["GroupId"] for group in groups],
        blocks=[subnet["CidrBlock"] for subnet in subnets if subnet.get("CidrBlock")],
        efa=bool(with_efa(context)),
    )
    for way, key in (("inbound", "IpPermissions"), ("outbound", "IpPermissionsEgress")):
        rules = [rule for group in groups for rule in group[key]]
        if any(lets_through(rule, hosts) for rule in rules):
            continue
        unsure = not hosts.efa and any(may_let_through(rule) for rule in rules)
        level = warning if unsure else error
        names = ", ".join(hosts.groups)
        yield level(
            "network.security_groups",
            f"{names} has no {way} rule that lets hosts reach each other: the job would hang",
            f"add one: {way}, all traffic, with the group itself",
        )


def lets_through(rule: dict[str, Any], hosts: Hosts) -> bool:
    """Whether a rule lets the hosts through.

    EFA needs a group named, and all traffic; elsewhere the subnets' addresses, and all ports of
    TCP, will do.
    """
    pairs = rule.get("UserIdGroupPairs", [])
    named = any(pair.get("GroupId") in hosts.groups for pair in pairs)
    all_traffic = rule["IpProtocol"] == "-1"
    if hosts.efa:
        return named and all_traffic
    all_tcp = rule["IpProtocol"] == "tcp" and (rule["FromPort"], rule["ToPort"]) == ALL_PORTS
    return (named or covers(rule, hosts.blocks)) and (all_traffic or all_tcp)


def covers(rule: dict[str, Any], blocks: list[str]) -> bool:
    """Whether there are blocks of addresses, and each lies in one that the rule names."""
    ranges = [ip_network(item["CidrIp"]) for item in rule.get("IpRanges", [])]
    return bool(blocks) and all(
        any(ip_network(block).subnet_of(allowed) for allowed in ranges)  # type: ignore[arg-type]
        for block in blocks
    )


def may_let_through(rule: dict[str, Any]) -> bool:
    """Prefix lists, IPv6 and ranges of ports may let the hosts through, or not."""
    lists = rule.get("PrefixListIds") or rule.get("Ipv6Ranges")
    return bool(lists) or rule["IpProtocol"] == "tcp"


@dataclass(frozen=True)
class Vpc:
    """What leads out of a job's subnets.

    Attributes:
        closed: ID of a subnet → its routes, of which none leads to the internet.
        endpoints: of the VPC, as AWS describes them.
    """

    closed: dict[str, list[dict[str, Any]]]
    endpoints: list[dict[str, Any]]

    def of_service(self, service: str) -> list[dict[str, Any]]:
        """Its endpoints for a service, which is the end of their name, as `secretsmanager`."""
        return [
            endpoint
            for endpoint in self.endpoints
            if endpoint.get("ServiceName", "").endswith(f".{service}")
        ]

    def on_subnets(self, service: str) -> list[dict[str, Any]]:
        """Those of them that have addresses in the VPC; the others are targets of routes."""
        return [endpoint for endpoint in self.of_service(service) if endpoint.get("SubnetIds")]


def way_out(
    context: Context, subnets: list[dict[str, Any]], groups: list[dict[str, Any]]
) -> Iterator[Finding]:
    """Subnets and security groups let the hosts reach S3, and what their processes connect to."""
    closed = {
        name: ways
        for name, ways in routes(context, subnets).items()
        if ways and not leads_to_internet(ways)
    }
    rules = [rule for group in groups for rule in group["IpPermissionsEgress"] if is_https(rule)]
    is_open = any(map(lets_out_to_the_public, rules))
    if is_open and not closed:
        return
    vpc = Vpc(
        closed, context.ask("ec2", "describe_vpc_endpoints", **within(subnets))["VpcEndpoints"]
    )
    if not is_open:
        yield from outbound(vpc, groups, rules)
    gateways = {endpoint["VpcEndpointId"] for endpoint in vpc.of_service("s3")}
    for subnet, ways in vpc.closed.items():
        if vpc.on_subnets("s3") or gateways & set(map(gateway, ways)):
            continue
        # Other networks, to which its other routes lead, may have an endpoint.
        level = warning if leads_elsewhere(ways) else error
        yield level(
            "network.subnets",
            f"{subnet} has neither an endpoint for S3 nor a NAT gateway: "
            "hosts cannot read their data",
            "add one of them",
        )
    variables = context.request.get("Environment", {})
    isolated = context.request.get("EnableNetworkIsolation")
    if not vpc.closed or isolated or any(variables.get(name) for name in PROXIES):
        return
    for connection in context.connections:
        if not may_reach(connection, vpc):
            yield unreached(context, connection, vpc)


def may_reach(connection: Connection, vpc: Vpc) -> bool:
    """Whether a closed subnet leads to every service, or to a host that may be in the VPC."""
    if connection.services:
        return all(vpc.on_subnets(service) for service in connection.services)
    return not connection.is_public


def unreached(context: Context, connection: Connection, vpc: Vpc) -> Finding:
    elsewhere = any(map(leads_elsewhere, vpc.closed.values()))
    level = error if connection.needed and not elsewhere else warning
    names = [f"{context.job.region}.{service}" for service in connection.services]
    other = f"endpoints for {' and '.join(names)}" if names else ""
    if connection.variable:
        other = f"set {connection.variable} in [environment] to a host in your VPC"
    cures = ["add a NAT gateway", other, connection.cure]
    return level(
        "network.subnets",
        f"{connection.key} needs {connection.to}, to which nothing leads from "
        f"{', '.join(vpc.closed)}",
        ", or ".join(filter(None, cures)),
    )


PRIVATE = [IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]


def outbound(
    vpc: Vpc, groups: list[dict[str, Any]], rules: list[dict[str, Any]]
) -> Iterator[Finding]:
    """Security groups without a way for HTTPS to the public let it out to an endpoint for S3.

    A gateway endpoint is none: it changes routes, and S3's addresses stay public
    (https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-s3.html).
    """
    endpoints = vpc.on_subnets("s3")
    own = {group["GroupId"] for group in groups}
    named = {pair.get("GroupId") for rule in rules for pair in rule.get("UserIdGroupPairs", [])}
    has_addresses = any(rule.get("IpRanges") for rule in rules)
    of_endpoints = {group["GroupId"] for each in endpoints for group in each.get("Groups", [])}
    if named & of_endpoints or (endpoints and has_addresses):
        return
    # Another group, or a private address, may be that of a way which is not seen here.
    level = warning if has_addresses or named - own else error
    yield level(
        "network.security_groups",
        f"{', '.join(sorted(own))} has no outbound rule that lets HTTPS out to S3: hosts can "
        "neither read their data nor store models",
        "add one: outbound, TCP 443, to 0.0.0.0/0 or to the prefix list of S3 in your region",
    )


def lets_out_to_the_public(rule: dict[str, Any]) -> bool:
    """Whether a rule names public addresses; those of a prefix list, and IPv6's, may be."""
    blocks = [IPv4Network(block["CidrIp"]) for block in rule.get("IpRanges", [])]
    are_private = all(any(map(block.subnet_of, PRIVATE)) for block in blocks)
    return bool(rule.get("PrefixListIds") or rule.get("Ipv6Ranges")) or not are_private


def is_https(rule: dict[str, Any]) -> bool:
    """Whether a rule is about port 443 of TCP, too."""
    if rule["IpProtocol"] == "-1":
        return True
    return rule["IpProtocol"] in ("tcp", "6") and rule["FromPort"] <= 443 <= rule["ToPort"]


def within(subnets: list[dict[str, Any]]) -> dict[str, Any]:
    """Parameters that ask for what is in the subnets' VPCs."""
    vpcs = sorted({subnet["VpcId"] for subnet in subnets})
    return {"Filters": [{"Name": "vpc-id", "Values": vpcs}]}


def routes(context: Context, subnets: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """ID of a subnet → its routes. Without any it is of a VPC that another account shares, whose
    tables and endpoints may not be seen.
    """
    tables = context.ask("ec2", "describe_route_tables", **within(subnets))["RouteTables"]
    return {subnet["SubnetId"]: routes_of(subnet, tables) for subnet in subnets}


def routes_of(subnet: dict[str, Any], tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The routes of the subnet's own tables, else of its VPC's main one."""
    associated: list[dict[str, Any]] = []
    main: list[dict[str, Any]] = []
    for table in tables:
        for association in table["Associations"]:
            if association.get("SubnetId") == subnet["SubnetId"]:
                associated.append(table)
            elif association.get("Main") and table["VpcId"] == subnet["VpcId"]:
                main.append(table)
    return [route for table in associated or main for route in table["Routes"]]


def gateway(route: dict[str, Any]) -> str:
    """The ID of the gateway that a route leads to, whose beginning tells its kind."""
    return str(route.get("GatewayId", ""))


DEFAULT = "0.0.0.0/0"


def leads_to_internet(routes: list[dict[str, Any]]) -> bool:
    """Whether there is a default route other than an internet gateway's (igw-).

    SageMaker's hosts have no public address, so an internet gateway alone lets nothing through.
    """
    default = [route for route in routes if route.get("DestinationCidrBlock") == DEFAULT]
    return any(not gateway(route).startswith("igw-") for route in default)


def leads_elsewhere(routes: list[dict[str, Any]]) -> bool:
    """Whether a route leads to other networks than the VPC and the internet."""
    return any(
        not gateway(route).startswith(("local", "igw-", "vpce-"))
        and not (route.get("NatGatewayId") and route.get("DestinationCidrBlock") == DEFAULT)
        for route in routes
    )
