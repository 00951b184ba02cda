"""How many processes the kernel has killed for want of memory, where this one runs.

Such a process says nothing itself. Linux counts them by control group, which a container is: in
``memory.events`` of version 2 and ``memory.oom_control`` of version 1 (docs.kernel.org,
admin-guide/cgroup-v2 and cgroup-v1/memory).
"""

import contextlib
import re
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")  # lines `number:controllers:/path`; of version 2 `0::/path`


def count(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Processes that were killed in this one's control group; 0 where the system counts none.

    Args:
        groups: where control groups are mounted. In a container it is its own group.
        own: the file that tells this process's groups.
    """
    for file in _files(groups, own):
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            if found:
                return int(found[1])
    return 0


def _files(groups: Path, own: Path) -> list[Path]:
    """Where the number may be, the group of this process before the one that is mounted."""
    files = []
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                files.append(groups / "memory" / path.lstrip("/") / "memory.oom_control")
            elif not controllers:
                files.append(groups / path.lstrip("/") / "memory.events")
    return [*files, groups / "memory.events", groups / "memory" / "memory.oom_control"]
