"""Finds in the job's log which network NCCL chose between the hosts.

The formats are those of NCCL 2.21 to 2.30 (src/init.cc, src/plugin/net.cc,
src/transport/net_socket.cc) and of aws-ofi-nccl 1.9 to 1.21 (src/nccl_ofi_net.cpp), the plug-in
through which NCCL uses EFA. cluster.location.nccl_log lets a job print these lines.
"""

import re
from dataclasses import dataclass, field

from smlightning_sagemaker.findings import warning
from smlightning_sagemaker.follow.job_log import Line
from smlightning_sagemaker.follow.stored_checkpoints import START
from smlightning_sagemaker.job import instances, resources

# algo-1:118:402 [0] NCCL INFO Using network Libfabric
LINE = re.compile(r"(?:([\w.-]+):\d+:\d+ \[\d+\] .*?)?NCCL (?:INFO|WARN) (.+)")
CHOSEN = re.compile(r"(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w-]+)")
SOCKETS = re.compile(r"NET/Socket : Using ")
FAILURE = re.compile(
    r"NET/OFI (?:No eligible|Couldn't|Unable|Only EFA|Failed|.*failed)"
    r"|NET/Plugin ?: (?:Could not find|No plugin found|Plugin load|libnccl-net)"
)
SHOWN = {"Socket": "TCP sockets"}
MOST_NAMES = 4  # of hosts in a message


@dataclass
class Networks:
    """The network of each host, as far as the log tells it; the newest attempt's."""

    chosen: dict[str, str] = field(default_factory=dict)  # NCCL's name, by host
    providers: dict[str, str] = field(default_factory=dict)  # libfabric's, by host
    failures: dict[str, str] = field(default_factory=dict)  # why not the plug-in, by host

    def add(self, line: Line) -> None:
        """Take what a line of the log says."""
        if line.message.startswith(START):
            self.chosen.clear()
            self.providers.clear()
            self.failures.clear()
        found = LINE.search(line.message)
        if not found:
            return
        host, text = found[1] or line.host, found[2]
        if match := CHOSEN.match(text):
            self.chosen[host] = match[1]
        elif match := PROVIDER.match(text):
            self.chosen[host] = "Libfabric"
            self.providers[host] = match[1]
        elif SOCKETS.match(text):
            self.chosen[host] = "Socket"
        elif FAILURE.match(text):
            self.failures.setdefault(host, text)

    def sentence(self, cluster: resources.Cluster) -> str:
        """The network and its bandwidth, or a warning; empty for one host or without NCCL's lines.

        Args:
            cluster: the job's hosts.
        """
        if not self.chosen or sum(group.count for group in cluster) < 2:
            return ""
        kinds = resources.types_in(cluster)
        rates = [instances.gigabits(kind) or 0 for kind in kinds]
        speed = f", up to {min(rates)} Gbit/s per host" if all(rates) else ""
        slow = sorted(host for host in self.chosen if self._name(host) != "EFA")
        if not slow or not all(map(instances.efa, kinds)):
            names = " and ".join(sorted({self._name(host) for host in self.chosen}))
            return f"network: NCCL uses {names} between hosts{speed}"
        failure = self.failures.get(slow[0])
        because = f" ({failure})" if failure else ""
        more = ", …" if len(slow) > MOST_NAMES else ""
        problem = (
            f"NCCL uses {self._name(slow[0])} on {', '.join(slow[:MOST_NAMES])}{more}{because}; "
            f"expected EFA{speed}"
        )
        cure = (
            'stop the job; set image = "auto", whose plug-in uses EFA, remove FI_PROVIDER and '
            "NCCL_NET from [environment], and let the security group reach itself, in and out"
        )
        return str(warning("network", problem, cure))

    def _name(self, host: str) -> str:
        """The host's network: EFA, TCP sockets, or NCCL's name for another one."""
        chosen = self.chosen[host]
        if not chosen.endswith("Libfabric"):  # AWS Libfabric before aws-ofi-nccl 1.14
            return SHOWN.get(chosen, chosen)
        provider = self.providers.get(host, "efa")
        return "EFA" if provider == "efa" else f"libfabric's provider {provider}"
