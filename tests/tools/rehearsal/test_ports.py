"""Ports at which ranks connect stay free once they are chosen."""

import socket
import subprocess
import sys

from smlightning_sagemaker.rehearsal import ports

CLAIM = """
import sys
from smlightning_sagemaker.rehearsal import ports
with ports.claimed([int(sys.argv[1])]) as port:
    print(port)
"""


def claimed_elsewhere(preferred: int) -> int:
    """The port that another process gets."""
    command = [sys.executable, "-c", CLAIM, str(preferred)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_port_is_claimed_once() -> None:
    with ports.claimed() as one, ports.claimed([one]) as other:
        assert one != other
        if sys.platform == "linux":
            assert claimed_elsewhere(one) != one
    assert claimed_elsewhere(one) == one


def test_a_port_in_use_is_not_chosen() -> None:
    with ports.claimed() as port:
        pass
    with socket.create_server(("127.0.0.1", port)), ports.claimed([port]) as other:
        assert other != port
    with ports.claimed([port]) as again:
        assert again == port, "its last connection may not be forgotten yet"
