"""Ports of this machine at which the ranks of a run connect.

Rank 0 binds a port seconds or minutes after it was chosen. Until then the system may use any port
of its own range for other connections (Linux: 32768 to 60999, ``net.ipv4.ip_local_port_range``;
macOS and Windows: 49152 and above). This module chooses ports below that range.
"""

import contextlib
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence

from smlightning.errors import UserError

CHOSEN_FROM = range(20_000, 32_768)


@contextlib.contextmanager
def claimed(preferred: Sequence[int] = ()) -> Iterator[int]:
    """A free port, claimed for this process while the body runs.

    Args:
        preferred: ports to try first.

    Raises:
        UserError: no port is free.
    """
    # A seeded generator would give every process the same port first.
    others = random.SystemRandom().sample(CHOSEN_FROM, 100)
    for number in [*preferred, *others]:
        with contextlib.ExitStack() as claim:
            if _is_free(number) and _claim(number, claim):
                yield number
                return
    raise UserError("no port is free on this machine", "end processes that use many ports")


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # with it, Windows would bind another process's port
            # A port is free although its last connection is in TIME_WAIT.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError:
            return False
        return True


def _claim(number: int, claim: contextlib.ExitStack) -> bool:
    """Claim the port; False if another process has. Always True on other systems than Linux."""
    if sys.platform != "linux":
        return True
    holder = claim.enter_context(socket.socket(socket.AF_UNIX))
    try:
        holder.bind(f"\0smlightning-port-{number}")  # no file; the name ends with its process
    except OSError:
        return False
    return True
