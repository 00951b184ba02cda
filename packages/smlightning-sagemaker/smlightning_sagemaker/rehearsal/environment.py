"""The environment of a host's processes: the container's, by the request, and the stubs'."""

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import smlightning
from smlightning.cluster.location import DEFAULT_PORT
from smlightning.stored_secrets import REHEARSED
from smlightning_sagemaker.rehearsal import mpirun
from smlightning_sagemaker.rehearsal.hosts import LOOPBACK, Host, read_only, with_local_channels
from smlightning_sagemaker.rehearsal.plan import Plan

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
    plan: Plan, run: Path, host: Host, shell: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables of a host's processes; the later of two with one name wins.

    From the shell come only INHERITED and the variables that the plan lists.
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
        **{REHEARSED + name: shell[name] for name in plan.secrets},
        **with_local_channels(plan, plan.request.get("Environment", {})),
        **(mpirun.variables() if plan.real_mpirun else {}),
        **search_paths(plan, run, inherited.get("PATH", os.defpath)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(run / "tmp"),
        "MPLCONFIGDIR": str(run / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",  # finds stubs/rehearsal_process.py
        "AWS_REGION": plan.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_BASE_DIR": str(host.base),
        "SAGEMAKER_TRAINING_MODULE": container_entry(plan),
        "PET_MASTER_PORT": str(plan.port),  # one host: the toolkit gives torchrun no port
        **stub_variables(plan, run, host),
    }


def search_paths(plan: Plan, run: Path, path: str) -> dict[str, str]:
    """PATH and PYTHONPATH, the stubs first.

    Hosts import smlightning from where this process does; a host of SageMaker installs its wheel.
    """
    programs = [run / "stubs" / "bin", Path(sys.executable).parent]
    modules = [run / "stubs"]
    package = Path(smlightning.__file__).parents[1]
    if str(package) not in site.getsitepackages():  # a checkout's
        modules.append(package)
    if plan.real_mpirun:
        programs.append(mpirun.OPEN_MPI / "bin")
        modules += mpirun.python_paths()
    return {
        "PATH": os.pathsep.join([*map(str, programs), path]),
        "PYTHONPATH": os.pathsep.join(map(str, modules)),
    }


def container_entry(plan: Plan) -> str:
    """AWS's own entry, or the stub's if something of this machine is replaced."""
    replaced = plan.port != DEFAULT_PORT or plan.distribution in mpirun.LAUNCHED
    return STUB if replaced or " " in sys.executable else CONTAINER


def stub_variables(plan: Plan, run: Path, host: Host) -> dict[str, str]:
    """The variables that the stubs read."""
    fault = f"{plan.fault.kind} {plan.fault.target}" if plan.fault else ""
    processes = 0 if plan.distribution == "none" else plan.processes
    return {
        "REHEARSAL_PYTHON": sys.executable,
        "REHEARSAL_PORT": str(plan.port),
        "REHEARSAL_HOST": str(host.index),
        "REHEARSAL_BASE": str(host.base),
        "REHEARSAL_READ_ONLY": os.pathsep.join(read_only(plan, host)),
        "REHEARSAL_EVIDENCE": str(run / "evidence"),
        "REHEARSAL_BATCHES": str(plan.batches),
        "REHEARSAL_FAULT": fault,
        "REHEARSAL_PROCESSES": str(processes),  # GPUs that nvidia-smi's stub lists
        "REHEARSAL_WITHOUT_MPIRUN": "" if plan.real_mpirun else "1",
        "REHEARSAL_SINGLE_HOST": "1" if plan.hosts == 1 else "",
    }
