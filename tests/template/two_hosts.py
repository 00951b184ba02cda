"""Two real hosts on one machine: network namespaces with an sshd each, for the toolkit's mpirun
runner.

Run as root. Everything is private to namespaces that end with this process: mounts, processes,
links, sshd. `python two_hosts.py RUN_DIR` starts what `RUN_DIR/plan.json` says; see
test_mpirun.py.
"""

import json
import os
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
"""  # pam_env reads /etc/environment, which the toolkit writes for mpirun's remote processes
HOST = """
while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
hostname "$NAME"; ip link set lo up; ip addr add "$ADDRESS/24" dev eth0; ip link set eth0 up
mount -t tmpfs none /run; mkdir /run/sshd
for file in hosts environment passwd; do mount --bind "$BASE/etc/$file" "/etc/$file"; done
mount --bind "$RUN/sshd_config" /etc/ssh/sshd_config; mount --bind "$RUN/pam" /etc/pam.d/sshd
mkdir -p "$BASE/opt"; mount --rbind /opt "$BASE/opt"; mount -t tmpfs none /opt; mkdir /opt/ml
for old in "$BASE"/opt/*; do
  new=/opt/${old##*/}
  [ -d "$old" ] && mkdir -p "$new" && mount --rbind "$old" "$new"
done
mount --bind "$BASE" /opt/ml
exec "$PYTHON" -m sagemaker_training.cli.train
"""


def prepare(run: Path, hosts: list[tuple[str, str, Path]]) -> None:
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
    names = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address, _ in hosts)
    for _, _, base in hosts:
        (base / "etc").mkdir()
        (base / "etc" / "hosts").write_text(names)
        (base / "etc" / "environment").write_text("")
        (base / "etc" / "passwd").write_text("\n".join(root) + "\n")


def inside(run: Path) -> int:
    """Create a bridge and a namespace per host, run the hosts, and write their exit codes."""
    plan = json.loads((run / "plan.json").read_text())
    bridge = "ip link add br0 type bridge; ip link set br0 up"
    subprocess.run(["sh", "-ec", bridge], check=True)
    children = []
    for i, host in enumerate(plan):
        env = {**host, "HOME": str(run / "home")}
        log = (run / f"log-{i}").open("w")
        child = subprocess.Popen(
            [*UNSHARE, "--uts", "sh", "-ec", HOST],
            env=env,
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
    return max(codes)


if __name__ == "__main__":
    if os.environ.get("TWO_HOSTS_INSIDE"):
        sys.exit(inside(Path(sys.argv[1])))
    command = [*UNSHARE, sys.executable, __file__, sys.argv[1]]
    os.execvpe(command[0], command, {**os.environ, "TWO_HOSTS_INSIDE": "1"})  # noqa: S606  killed, it takes all along
