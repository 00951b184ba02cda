#!/usr/bin/env bash
# Expected: torchrun on two hosts, with c10d and --max_restarts, tells all ranks of a restart the same
#           TORCHELASTIC_RESTART_COUNT.
# True:     The host whose rank failed counts the restart. The other host has seen a change of membership, which counts
#           for nothing, and says 0 again. Both have one store, with the keys of the attempt before.
# Source:   torch 2.13.0, distributed/elastic/agent/server/api.py (_invoke_run). Its page Quickstart says that
#           --max-restarts counts both kinds of restart.
. "$(dirname "$0")/lib/environment.sh"
packages torch==2.13.0 numpy
seen "host a: 0, then 1" "host b: 0, then 0" <<'PY'
import pathlib
import socket
import subprocess
import sys
import tempfile

# A first rank of host a fails once both hosts have started; the second ones end well.
RANK = """
import os, pathlib, sys, time
folder, host = pathlib.Path(sys.argv[1]), sys.argv[2]
start = len(list(folder.glob(f"{host}[01]")))
(folder / f"{host}{start}").write_text(os.environ["TORCHELASTIC_RESTART_COUNT"])
while len(list(folder.glob(f"[ab]{start}"))) < 2:
    time.sleep(0.1)
if not start:
    sys.exit(1) if host == "a" else time.sleep(300)
"""
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "rank.py").write_text(RANK)
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--max_restarts=2"]
torchrun += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", str(folder / "rank.py")]
with (folder / "log").open("w") as log:
    hosts = [
        subprocess.Popen([*torchrun, str(folder), host], stdout=log, stderr=log) for host in "ab"
    ]
    for host in hosts:
        assert host.wait(200) == 0, (folder / "log").read_text()
for host in "ab":
    first, second = ((folder / f"{host}{start}").read_text() for start in range(2))
    print(f"host {host}: {first}, then {second}")
PY
