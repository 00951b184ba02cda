"""Ports at which ranks meet stay free from the moment they are chosen."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smlightning import errors, ports

CLAIM = """
import sys
from smlightning import ports
with ports.claimed([int(sys.argv[1])]) as port:
    print(port)
"""


def claimed_elsewhere(preferred: int) -> int:
    """The port that another process is given."""
    command = [sys.executable, "-c", CLAIM, str(preferred)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_port_is_claimed_once() -> None:
    with ports.claimed() as one, ports.claimed([one]) as other:
        assert one != other
        if sys.platform == "linux":
            assert claimed_elsewhere(one) != one
    assert claimed_elsewhere(one) == one


def test_a_port_that_is_listened_at_is_not_given() -> None:
    with ports.claimed() as port:
        pass
    with socket.create_server(("127.0.0.1", port)), ports.claimed([port]) as other:
        assert other != port
    with ports.claimed([port]) as again:
        assert again == port, "its last connection may not be forgotten yet"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which ports these are")
def test_the_system_gives_it_to_no_connection() -> None:
    """Gloo's connections took a port that ranks were to meet at a minute later."""
    least, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if least < 32_768:
        pytest.skip(f"this system gives connections ports from {least} on, not Linux' own 32768")
    assert max(ports.CHOSEN_FROM) < least


def test_without_a_free_port_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "bind", taken)
    with pytest.raises(errors.UserError, match="no port is free"), ports.claimed():
        raise AssertionError("a port was given")


def taken(*_: object) -> None:
    raise OSError("Address already in use")
