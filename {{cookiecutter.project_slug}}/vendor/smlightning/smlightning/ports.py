"""Ports of this machine at which the ranks of a run connect.

A port is bound only once rank 0 begins, seconds or minutes after it was chosen. Until then the
system may give a connection any port of its own range (Linux: 32768 to 60999 of
``net.ipv4.ip_local_port_range``; macOS and Windows: 49152 and above). This module chooses no port
of it.
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
    """A port on which nobody listens, and which nobody else has claimed, while the body runs.

    Args:
        preferred: ports that are tried first.

    Raises:
        UserError: no port is free.
    """
    # Not a seeded generator: each process would begin with the same port.
    others = random.SystemRandom().sample(CHOSEN_FROM, 100)
    for number in [*preferred, *others]:
        with contextlib.ExitStack() as claim:
            if _is_free(number) and _claim(number, claim):
                yield number
                return
    raise UserError("no port is free on this machine", "end what holds so many")


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # Windows would bind a port that another process listens on
            # A port whose last connection is over, but not yet forgotten, is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError:
            return False
        return True


def _claim(number: int, claim: contextlib.ExitStack) -> bool:
    """Whether nobody else has claimed the port; always True on other systems than Linux."""
    if sys.platform != "linux":
        return True
    holder = claim.enter_context(socket.socket(socket.AF_UNIX))
    try:
        holder.bind(f"\0smlightning-port-{number}")  # a name without a file, gone with its process
    except OSError:
        return False
    return True
