"""The environment of a host's processes: a container's, by the request and the rehearsal."""

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

from smlightning.cluster.location import DEFAULT_PORT
from smlightning.rehearsal import mpirun
from smlightning.rehearsal.hosts import LOOPBACK, Host, with_local_channels
from smlightning.rehearsal.plan import Plan

CONTAINER = "sagemaker_pytorch_container.training:main"  # AWS's own entry of the PyTorch image
STUB = "mpirun_stub:main"  # the same with what this machine lacks replaced
# A container has none of your variables, tokens and caches. These of your shell, in upper or lower
# case, make Python and the network work.
INHERITED = {
    "PATH",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "USER",
    "LOGNAME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
}


def container_environment(
    plan: Plan,
    run: Path,
    host: Host,
    port: int,
    real_mpirun: bool,
    shell: Mapping[str, str] = os.environ,
    store: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables of a host's processes; the later of two of one name wins.

    Nothing of the shell is among them but INHERITED and what the plan lets in by name.

    Args:
        store: what leads to the stub of Secrets Manager.
    """
    inherited = {
        name: value
        for name, value in shell.items()
        if name in plan.inherit or name.upper() in INHERITED
    }
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // plan.world_size)),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "HOME": str(host.base / "home"),  # without your caches, tokens and credentials
        "PYTHONUSERBASE": site.getuserbase(),
        **inherited,
        **with_local_channels(plan, plan.request.get("Environment", {}), as_json=False),
        **(mpirun.variables() if real_mpirun else {}),
        **search_paths(run, real_mpirun, inherited.get("PATH", os.defpath)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(run / "tmp"),
        "MPLCONFIGDIR": str(run / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "AWS_REGION": plan.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        **(store or {}),
        "SAGEMAKER_BASE_DIR": str(host.base),
        "SAGEMAKER_TRAINING_MODULE": container_entry(plan, port),
        "PET_MASTER_PORT": str(port),  # one host: the toolkit names no port to torchrun
        **rehearsal_variables(plan, run, host, port, real_mpirun),
    }


def search_paths(run: Path, real_mpirun: bool, path: str) -> dict[str, str]:
    """Programs and modules, the stubs first.

    The package is not among the modules: each host imports the one beside its train.py.
    """
    programs = [run / "stubs" / "bin", Path(sys.executable).parent]
    modules = [run / "stubs"]
    if real_mpirun:
        programs.append(mpirun.OPEN_MPI / "bin")
        modules += mpirun.python_paths()
    return {
        "PATH": os.pathsep.join([*map(str, programs), path]),
        "PYTHONPATH": os.pathsep.join(map(str, modules)),
    }


def container_entry(plan: Plan, port: int) -> str:
    """What the toolkit calls: AWS's own entry, unless something of this machine is replaced."""
    replaced = port != DEFAULT_PORT or plan.distribution in mpirun.LAUNCHED
    return STUB if replaced else CONTAINER


def rehearsal_variables(
    plan: Plan, run: Path, host: Host, port: int, real_mpirun: bool
) -> dict[str, str]:
    """What the stubs read."""
    fault = f"{plan.fault.kind} {plan.fault.target}" if plan.fault else ""
    processes = 0 if plan.distribution == "none" else plan.processes
    return {
        "REHEARSAL_PYTHON": sys.executable,
        "REHEARSAL_PORT": str(port),
        "REHEARSAL_HOST": str(host.index),
        "REHEARSAL_BASE": str(host.base),
        "REHEARSAL_EVIDENCE": str(run / "evidence"),
        "REHEARSAL_BATCHES": str(plan.batches),
        "REHEARSAL_FAULT": fault,
        "REHEARSAL_PROCESSES": str(processes),  # GPUs that nvidia-smi's stub lists
        "REHEARSAL_WITHOUT_MPIRUN": "" if real_mpirun else "1",
        "REHEARSAL_SINGLE_HOST": "1" if plan.hosts == 1 else "",
    }
