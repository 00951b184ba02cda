"""Where Linux counts the processes that it killed for lack of memory."""

from pathlib import Path

import pytest

from smlightning.cluster import memory_kills


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        ("5:cpu:/a\n4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control"),
        ("4:memory:/of/the/host\n", "memory/memory.oom_control"),
        ("0::/a/b\n", "a/b/memory.events"),
        ("0::/of/the/host\n", "memory.events"),
        ("", "memory.events"),
    ],
)
def test_kills_are_counted_in_both_versions_of_control_groups(
    lines: str, file: str, tmp_path: Path
) -> None:
    """From the machine and from a container."""
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    assert memory_kills.count(groups, own) == 0
    own.write_text(lines)
    (groups / file).parent.mkdir(parents=True)
    (groups / file).write_text("oom 9\noom_kill_disable 0\noom_kill 3\noom_group_kill 0\n")
    assert memory_kills.count(groups, own) == 3
