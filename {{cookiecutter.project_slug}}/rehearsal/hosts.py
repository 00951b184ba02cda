"""Hosts on loopback addresses: SageMaker's folders and files for each, its real `train` entry, and a clean end."""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

STANDINS = Path(__file__).parent / "standins"
# mpirun and mpi4py, put there by the Makefile: beside torch they would abort a stock Trainer() that no mpirun started.
OPEN_MPI = Path(sys.prefix) / "open-mpi"
MPI = ("smddp", "pytorchddp")  # launched by mpirun
END = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows: no SIGHUP
FLAGS: dict[
    str, dict[str, Any]
] = {  # the hyperparameters by which the toolkit knows its launcher, as the SDK and launch/ write them
    "none": {},
    "torch_distributed": {"sagemaker_torch_distributed_enabled": True},
    "pytorchddp": {"sagemaker_pytorch_ddp_enabled": True},
    "smddp": {
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    },
}
RANK_VARIABLES = (  # beginnings of names; a container has none of yours
    *("SM_", "SAGEMAKER_", "REHEARSAL_", "OMPI_", "PMIX_", "PET_", "TORCHELASTIC_", "SLURM_", "PYTHONPATH"),
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "NODE_RANK"),
)


@dataclass(frozen=True)
class Plan:
    """What is rehearsed."""

    hosts: int
    processes: int
    distribution: str
    source: Path
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    channels: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    instance_type: str = "ml.p4d.24xlarge"
    region: str = "us-east-1"
    image_torch: str = ""
    fail_rank: int | None = None
    kill_rank: int | None = None
    stop_host: int | None = None  # index of the host that is told to stop (SIGTERM), or
    lose_host: int | None = None  # vanishes (SIGKILL), as one that is taken back without launch/entry.py does
    restored: Path | None = None  # what S3 kept of an earlier attempt's checkpoints
    batches: int = 0  # of one epoch, its validation and the test; 0: what the script itself would do
    timeout: float = 1800.0
    grace: float = 60.0  # once one host has failed, the others have so long to end

    @property
    def world_size(self) -> int:
        return self.hosts * self.processes

    @property
    def fault(self) -> int | None:
        return self.fail_rank if self.kill_rank is None else self.kill_rank

    @property
    def halt(self) -> int | None:
        return self.stop_host if self.lose_host is None else self.lose_host


@dataclass
class Host:
    """One host of a rehearsal and how it ended."""

    index: int
    address: str
    base: Path  # stands for /opt/ml
    process: "subprocess.Popen[str] | None" = None
    exit_code: int | None = None
    ended_at: float = 0.0
    overdue: bool = False  # had to be ended by force
    halted_at: float = 0.0  # when this host was stopped or lost, as planned

    def file(self, name: str) -> str | None:
        """Text of `output/success` or `output/failure`; None where there is none."""
        path = self.base / "output" / name
        return path.read_text(errors="replace") if path.is_file() else None


def without_mpirun(plan: Plan) -> str:
    """Why this plan cannot be started by a real mpirun here; empty if it can."""
    if plan.hosts > 1:
        return "several hosts would need an sshd on each"
    if not (OPEN_MPI / "bin" / "mpirun").is_file():
        return (
            f"Open MPI is not installed in {OPEN_MPI}; make rehearse installs it where there is a wheel for this system"
        )
    if not shutil.which("unshare"):
        return "unshare is not installed"
    probe = subprocess.run(["timeout", "30", *_unshare("mount --bind /tmp /opt")], capture_output=True)
    return "" if probe.returncode == 0 else "this user may not mount"


def _unshare(script: str, *arguments: str) -> list[str]:
    """A command that runs a shell script where mounts and processes are private and end with it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    options = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    return ["unshare", *user, *options, "sh", "-ec", script, "sh", *arguments]


# The library that the toolkit preloads reads /opt/ml whatever SAGEMAKER_BASE_DIR says. A tmpfs with all of /opt bound
# into it makes room for it without touching the disk.
MOUNT = """
mkdir "$1/opt"; mount --rbind /opt "$1/opt"; mount -t tmpfs none /opt; mkdir /opt/ml
for old in "$1"/opt/*; do
  new="/opt/${old##*/}"
  if [ -d "$old" ] && [ "$new" != /opt/ml ]; then mkdir "$new"; mount --rbind "$old" "$new"; fi
done
mount --bind "$2" /opt/ml
shift 2; exec "$@"
"""


def lay_out(plan: Plan, run: Path) -> list[Host]:
    """Write each host's folders, code, hyperparameters and resource configuration as SageMaker would."""
    hosts = [Host(i, f"127.0.0.{i + 1}", run / f"host-{i + 1}") for i in range(plan.hosts)]
    group = {"instance_group_name": "homogeneousCluster", "instance_type": plan.instance_type}
    names = [host.address for host in hosts]
    for host in hosts:
        for folder in ("input/config", "input/data", "model", "output/data", "checkpoints"):
            (host.base / folder).mkdir(parents=True)
        if plan.restored:
            shutil.copytree(plan.restored, host.base / "checkpoints", dirs_exist_ok=True)
        # Without requirements.txt: the toolkit would install it here.
        ignored = shutil.ignore_patterns("__pycache__", "requirements.txt", "outputs", "prepared", ".*")
        shutil.copytree(plan.source, host.base / "code", ignore=ignored)
        for name, path in plan.channels.items():
            (host.base / "input/data" / name).symlink_to(path.resolve(), target_is_directory=True)
        hyperparameters = {
            **plan.hyperparameters,
            **FLAGS[plan.distribution],
            **({"sagemaker_instance_type": plan.instance_type} if FLAGS[plan.distribution] else {}),
            "sagemaker_submit_directory": str(host.base / "code"),
            "sagemaker_program": "train.py",
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": "rehearsal",
            "sagemaker_region": plan.region,
        }
        config = {
            "hyperparameters": {name: json.dumps(value) for name, value in hyperparameters.items()},
            "resourceconfig": {
                "current_host": host.address,
                "hosts": names,
                "network_interface_name": "lo" if sys.platform == "linux" else "lo0",
                "current_instance_type": plan.instance_type,
                "current_group_name": "homogeneousCluster",
                "instance_groups": [{**group, "hosts": names}],
            },
            "inputdataconfig": {
                name: {
                    "TrainingInputMode": "File",
                    "S3DistributionType": "FullyReplicated",
                    "RecordWrapperType": "None",
                }
                for name in plan.channels
            },
        }
        for name, content in config.items():
            (host.base / "input/config" / f"{name}.json").write_text(json.dumps(content))
    for folder in ("evidence", "tmp", "cache"):
        (run / folder).mkdir()
    return hosts


def environment(plan: Plan, run: Path, host: Host, port: int, mpirun: bool) -> dict[str, str]:
    """The container's variables: yours without ranks and SageMaker's, with the stand-ins first on both paths."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(RANK_VARIABLES)}
    tools = run / "bin"  # nvidia-smi always, smddprun only where the image would have SMDDP
    if not tools.exists():
        tools.mkdir()
        for tool in ("nvidia-smi", *(["smddprun"] if plan.distribution == "smddp" else [])):
            shutil.copy(STANDINS / "bin" / tool, tools)
    modules = run / "modules"
    if not modules.exists():
        hidden = [] if plan.distribution == "smddp" else ["smdistributed"]
        shutil.copytree(STANDINS, modules, ignore=shutil.ignore_patterns("__pycache__", "bin", *hidden))
    threads = max(1, (os.cpu_count() or 1) // plan.world_size)
    paths, python_path, open_mpi = [tools, Path(sys.executable).parent], [modules], {}
    if mpirun:
        paths.append(OPEN_MPI / "bin")
        python_path += (OPEN_MPI / "lib").glob("python*/site-packages")
        open_mpi = {"MPI4PY_LIBMPI": str(OPEN_MPI / "lib" / "libmpi.so.40"), "OPAL_PREFIX": str(OPEN_MPI)}
    own_module = port != 7777 or plan.distribution in MPI
    return {
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        **kept,
        **plan.environment,
        **open_mpi,
        "PATH": os.pathsep.join([*map(str, paths), kept.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(map(str, python_path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(run / "tmp"),
        "MPLCONFIGDIR": str(run / "cache"),
        "HF_DATASETS_CACHE": str(run / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "AWS_REGION": plan.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_BASE_DIR": str(host.base),
        "SAGEMAKER_TRAINING_MODULE": "rehearsal_container:main"
        if own_module
        else "sagemaker_pytorch_container.training:main",
        "PET_MASTER_PORT": str(port),  # one host: the toolkit names no port to torchrun
        "REHEARSAL_PROCESSES": str(plan.processes if plan.distribution != "none" else 0),
        "REHEARSAL_PORT": str(port),
        "REHEARSAL_HOST": str(host.index),
        "REHEARSAL_BASE": str(host.base),
        "REHEARSAL_EVIDENCE": str(run / "evidence"),
        "REHEARSAL_WITHOUT_MPIRUN": "" if mpirun else "1",
        "REHEARSAL_SINGLE_HOST": "1" if plan.hosts == 1 else "",
        "REHEARSAL_BATCHES": str(plan.batches),
        "REHEARSAL_FAIL_RANK": "" if plan.fail_rank is None else str(plan.fail_rank),
        "REHEARSAL_KILL_RANK": "" if plan.kill_rank is None else str(plan.kill_rank),
    }


@contextlib.contextmanager
def port() -> Iterator[int]:
    """7777, SageMaker's own, or another one if something listens there or another rehearsal is about to."""
    with socket.socket(socket.AF_UNIX) as claim, socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if sys.platform == "linux":
                claim.bind("\0rehearsal-7777")  # a name without a file
            probe.bind(("", 7777))
        except OSError:
            probe.bind(("", 0))
        number = int(probe.getsockname()[1])
        probe.close()
        yield number


def play(plan: Plan, run: Path, hosts: list[Host], port: int, mpirun: bool) -> Generator[tuple[Host, str], None, None]:
    """Start every host and yield its lines as they come, and ("", each 0.2 s); ends when all hosts have ended.

    Whatever happens, no process of the rehearsal is left when the iterator is closed.
    """
    lines: queue.Queue[tuple[Host, str]] = queue.Queue()
    readers: list[threading.Thread] = []
    started = looked = time.time()
    try:
        for host in hosts:
            command = [sys.executable, "-m", "sagemaker_training.cli.train"]
            if mpirun:
                command = _unshare(MOUNT, str(run), str(host.base), *command)
            host.process = subprocess.Popen(
                command,
                cwd=host.base,
                env=environment(plan, run, host, port, mpirun),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches the rehearsal, which then ends them in order
            )
            readers.append(threading.Thread(target=_read, args=(host, lines), daemon=True))
            readers[-1].start()
        while True:
            try:
                yield lines.get(timeout=0.2)
            except queue.Empty:
                yield hosts[0], ""
            if time.time() < looked + 0.2:  # a host that never falls silent is looked at too
                continue
            looked = time.time()
            for host in hosts:
                assert host.process
                if host.exit_code is None and host.process.poll() is not None:
                    host.exit_code, host.ended_at = host.process.returncode, time.time()
            if all(host.exit_code is not None for host in hosts):
                break
            if plan.halt is not None and not hosts[plan.halt].halted_at and _under_way(plan, run, hosts):
                hosts[plan.halt].halted_at = time.time()
                halt(plan, run)
            failed = [host.ended_at for host in hosts if host.exit_code]
            failed += [host.halted_at for host in hosts if host.halted_at]
            late = time.time() > min([started + plan.timeout, *(at + plan.grace for at in failed)])
            if late:
                for host in hosts:
                    host.overdue |= host.exit_code is None
                sweep(run)
        sweep(run)  # whoever is left keeps the readers waiting
        for reader in readers:
            reader.join(5)
        while not lines.empty():
            yield lines.get()
    finally:
        sweep(run)


def _read(host: Host, lines: "queue.Queue[tuple[Host, str]]") -> None:
    assert host.process and host.process.stdout
    for line in host.process.stdout:
        lines.put((host, line.rstrip()))


def _under_way(plan: Plan, run: Path, hosts: list[Host]) -> bool:
    """Whether the host that is to be halted is in the middle of training, and, to be lost, has something to go on."""
    written = [path for host in hosts for path in (host.base / "checkpoints").glob("[!.]*")]
    return (run / "evidence" / f"under-way-{plan.halt}").exists() and (plan.lose_host is None or bool(written))


def halt(plan: Plan, run: Path) -> None:
    """Stop the planned host, as launch/entry.py hands SageMaker's SIGTERM on; or kill all that runs on it."""
    if plan.lose_host is not None:
        send(processes(run, plan.halt), signal.SIGKILL)
    else:
        send(processes(run, plan.halt, r"^(?!.*((mpi|ddp|torch)run|rehearsal_container)).*train\.py"), signal.SIGTERM)


def upload(hosts: list[Host], into: Path) -> Path:
    """What S3 keeps of an attempt: every host's checkpoints, in one folder."""
    into.mkdir()
    for host in reversed(hosts):  # of two files with one name the first host's stays
        shutil.copytree(host.base / "checkpoints", into, dirs_exist_ok=True)
    return into


def processes(run: Path, host: int | None = None, pattern: str = "") -> "list[psutil.Process]":
    """The rehearsal's processes, or one host's, with `pattern` in their command lines.

    They are known by their environment: torchrun's are in sessions of their own, a killed parent's belong to nobody.
    """
    import psutil

    wanted = {"REHEARSAL_EVIDENCE": str(run / "evidence")} | ({} if host is None else {"REHEARSAL_HOST": str(host)})
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or not wanted.items() <= process.environ().items():
                continue
            if re.search(pattern, " ".join(process.cmdline())):
                found.append(process)
    return found


def send(to: "list[psutil.Process]", number: signal.Signals) -> None:
    import psutil

    for process in to:
        with contextlib.suppress(psutil.Error):  # it has ended
            process.send_signal(number)


def sweep(run: Path) -> None:
    """End every process of this rehearsal."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in END}  # or a second Ctrl-C cuts it short
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        send(processes(run), number)
        deadline = time.monotonic() + seconds
        while processes(run) and time.monotonic() < deadline:
            time.sleep(0.05)
    for taken, handler in handlers.items():
        signal.signal(taken, handler)
