"""How many processes the kernel has killed for lack of memory.

Such a process reports nothing itself. Linux counts them by control group, which a container is: in
``memory.events`` of version 2 and ``memory.oom_control`` of version 1 (docs.kernel.org,
admin-guide/cgroup-v2 and cgroup-v1/memory).
"""

import contextlib
import re
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")  # lines `number:controllers:/path`; of version 2 `0::/path`


def count(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Processes that were killed in this one's control group; 0 if the system does not count.

    Args:
        groups: where control groups are mounted; in a container, its own group.
        own: the file that lists this process's groups.
    """
    files = [groups / "memory.events", groups / "memory" / "memory.oom_control"]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                files.insert(0, groups / "memory" / path.lstrip("/") / "memory.oom_control")
            elif not controllers:
                files.insert(0, groups / path.lstrip("/") / "memory.events")
    for file in files:
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            if found:
                return int(found[1])
    return 0


def processes(number: int) -> str:
    return f"{number} process{'es' * (number > 1)}"
