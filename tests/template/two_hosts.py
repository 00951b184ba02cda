"""Two real hosts on one machine: network namespaces, each with its own /opt, /tmp and sshd's files.

Run as root. Everything is private to namespaces that end with this process: mounts, processes,
links, sshd.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

NAMESPACES = "--mount --net --pid --fork --kill-child --mount-proc --propagation private"
UNSHARE = ["unshare", *NAMESPACES.split()]
SSHD = """Port 22
HostKey {run}/key
AuthorizedKeysFile {run}/key.pub
StrictModes no
UsePAM yes
PermitRootLogin yes
"""
PAM = """auth required pam_permit.so
account required pam_permit.so
session required pam_env.so
session required pam_permit.so
"""  # pam_env reads /etc/environment, which launchers write for mpirun's remote processes
HOST = """
separate() {  # the folder keeps its folders, and gets no files of other hosts
  mkdir -p "/run/all$1"
  mount --rbind "$1" "/run/all$1"
  mount -t tmpfs none "$1"
  for old in "/run/all$1"/*; do
    new=$1/${old##*/}
    if [ -d "$old" ]; then mkdir -p "$new"; mount --rbind "$old" "$new"; fi
  done
}
while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
hostname "$NAME"; ip link set lo up; ip addr add "$ADDRESS/24" dev eth0; ip link set eth0 up
mount -t tmpfs none /run; mkdir /run/sshd
for file in hosts environment passwd; do mount --bind "$BASE/etc/$file" "/etc/$file"; done
mount --bind "$RUN/sshd_config" /etc/ssh/sshd_config; mount --bind "$RUN/pam" /etc/pam.d/sshd
separate /opt
separate /tmp
mkdir -p /opt/ml
mount --bind "$BASE" /opt/ml
exec "$@"
"""


def run(folder: Path, hosts: list[dict[str, str]], command: list[str]) -> list[int]:
    """Exit codes of the hosts, each of which runs the command as its first process.

    ``folder`` then holds their output: ``log-0``, ``log-1``.

    Args:
        hosts: variables of each host's processes, with its NAME, and BASE, its /opt/ml.
    """
    common = {"RUN": str(folder), "HOME": str(folder / "home")}
    hosts = [{**host, **common, "ADDRESS": f"10.77.0.{i}"} for i, host in enumerate(hosts, 1)]
    prepare(folder, hosts)
    plan = {"hosts": hosts, "command": command}
    (folder / "plan.json").write_text(json.dumps(plan))
    outer = [*UNSHARE, sys.executable, __file__, str(folder)]
    subprocess.run(outer, timeout=560, check=True)
    codes: list[int] = json.loads((folder / "codes.json").read_text())
    return codes


def prepare(run: Path, hosts: list[dict[str, str]]) -> None:
    """A key, sshd's configuration, and each host's own /etc/hosts, /etc/environment and home."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(run / "key")], check=True
    )
    (run / "sshd_config").write_text(SSHD.format(run=run))
    (run / "pam").write_text(PAM)
    home = run / "home" / ".ssh"
    home.mkdir(parents=True)
    (home / "config").write_text(
        "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    (home / "id_ed25519").write_bytes((run / "key").read_bytes())
    (home / "id_ed25519").chmod(0o600)
    passwd = Path("/etc/passwd").read_text().splitlines()
    root = [
        line if not line.startswith("root:") else f"root:x:0:0:root:{run}/home:/bin/bash"
        for line in passwd
    ]
    names = "".join(f"{host['ADDRESS']} {host['NAME']}\n" for host in hosts)
    for host in hosts:
        etc = Path(host["BASE"]) / "etc"
        etc.mkdir()
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (etc / "environment").write_text("")
        (etc / "passwd").write_text("\n".join(root) + "\n")


def inside(run: Path) -> None:
    """Create a bridge and a namespace per host, run the hosts, and write their exit codes."""
    plan = json.loads((run / "plan.json").read_text())
    bridge = "ip link add br0 type bridge; ip link set br0 up"
    subprocess.run(["sh", "-ec", bridge], check=True)
    children = []
    for i, host in enumerate(plan["hosts"]):
        log = (run / f"log-{i}").open("w")
        child = subprocess.Popen(
            [*UNSHARE, "--uts", "sh", "-ec", HOST, "sh", *plan["command"]],
            env=host,
            stdout=log,
            stderr=log,
        )
        children.append(child)
        born = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        while not (pid := born.read_text().strip()) and child.poll() is None:
            time.sleep(0.05)  # its child is born in its namespaces
        link = (
            f"ip link add v{i} type veth peer name eth0 netns {pid}; ip link set v{i} master br0 up"
        )
        subprocess.run(["sh", "-ec", link], check=True)
    codes = [child.wait() for child in children]
    (run / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    inside(Path(sys.argv[1]))
