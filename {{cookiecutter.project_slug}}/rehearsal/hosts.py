"""Hosts on loopback addresses: SageMaker's folders and files for each, its real `train` entry, and a clean end."""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

STUBS = Path(__file__).parent / "stubs"
# mpirun and mpi4py, put there by the Makefile: beside torch they would abort a stock Trainer() that no mpirun started.
OPEN_MPI = Path(sys.prefix) / "open-mpi"
MPI = ("smddp", "pytorchddp")  # launched by mpirun
FAULTS = ("fail-rank", "kill-rank", "stop-host", "lose-host")
END = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows: no SIGHUP
# A container has none of your variables, tokens and caches. These of your shell make Python and the network work.
INHERITED = (
    *("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
Lines = Generator[tuple["Host", str], None, None]


@dataclass(frozen=True)
class Plan:
    """What is rehearsed."""

    hosts: int
    processes: int
    distribution: str
    source: Path
    request: Mapping[str, Any]  # CreateTrainingJob's, or those parts of it that request.without_sdk() gives
    channels: Mapping[str, Path | str] = field(default_factory=dict)  # a folder, or where on S3 to get a sample
    inherit: Sequence[str] = ()  # variables of this shell, beyond INHERITED
    image: tuple[str, str] = ("", "")  # its torch and Python; empty: not known
    notes: Sequence[str] = ()  # what the report has to say beside the verdicts
    fault: str = ""  # one of FAULTS: an error, SIGKILL; SIGTERM as SageMaker sends it, or SIGKILL to all on a host
    target: int = 0  # the fault's rank, or the host's index
    restored: Path | None = None  # what S3 has of an earlier attempt's checkpoints
    batches: int = 0  # of one epoch, its validation and the test; 0: what the script itself would do
    timeout: float = 1800.0  # seconds
    grace: float = 60.0  # seconds that the other hosts have to end after one has failed

    @property
    def world_size(self) -> int:
        return self.hosts * self.processes

    @property
    def interrupts(self) -> bool:
        return self.fault.endswith("-host")


@dataclass
class Host:
    """One host of a rehearsal and how it ended."""

    index: int
    address: str
    base: Path  # stands for /opt/ml
    command: Sequence[str] = ()
    process: "subprocess.Popen[str] | None" = None
    exit_code: int | None = None
    ended_at: float = 0.0
    overdue: bool = False  # was ended because its time was over
    interrupted_at: float = 0.0  # when this host was stopped or killed, as planned

    def file(self, name: str) -> str | None:
        """Text of `output/success` or `output/failure`; None where there is none."""
        path = self.base / "output" / name
        return path.read_text(errors="replace") if path.is_file() else None


def without_mpirun(plan: Plan) -> str:
    """Why this plan cannot be started by a real mpirun here; empty if it can."""
    if plan.hosts > 1:
        return "several hosts would need an sshd on each"
    if not (OPEN_MPI / "bin" / "mpirun").is_file():
        return f"Open MPI is not installed in {OPEN_MPI}; make rehearse installs it where there is a wheel"
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


def create_hosts(plan: Plan, run: Path) -> list[Host]:
    """Write each host's folders, code, hyperparameters and resource configuration as SageMaker would."""
    hosts = [Host(i, f"127.0.0.{i + 1}", run / f"host-{i + 1}") for i in range(plan.hosts)]
    instance_type, names = plan.request["ResourceConfig"]["InstanceType"], [host.address for host in hosts]
    group = {"instance_group_name": "homogeneousCluster", "instance_type": instance_type, "hosts": names}
    resources = {"hosts": names, "network_interface_name": LOOPBACK, "current_instance_type": instance_type}
    resources |= {"current_group_name": group["instance_group_name"], "instance_groups": [group]}
    modes = {each["ChannelName"]: each.get("InputMode", "File") for each in plan.request.get("InputDataConfig", [])}
    copied = {"S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    inputs = {name: {"TrainingInputMode": modes.get(name, "File"), **copied} for name in plan.channels}
    options = with_local_channels(plan, plan.request["HyperParameters"], as_json=True)
    for host in hosts:
        for folder in ("input/config", "input/data", "model", "output/data", "checkpoints", "home"):
            (host.base / folder).mkdir(parents=True)
        if plan.restored:
            shutil.copytree(plan.restored, host.base / "checkpoints", dirs_exist_ok=True)
        # Without requirements.txt: the toolkit would install it here.
        ignored = shutil.ignore_patterns("__pycache__", "requirements.txt", "outputs", "prepared", ".*")
        shutil.copytree(plan.source, host.base / "code", ignore=ignored)
        for name, path in plan.channels.items():
            (host.base / "input/data" / name).symlink_to(Path(path).resolve(), target_is_directory=True)
        code = {"sagemaker_submit_directory": json.dumps(str(host.base / "code"))}  # on S3 in the request
        config = {
            "hyperparameters": {**options, **code},
            "resourceconfig": {"current_host": host.address, **resources},
            "inputdataconfig": inputs,
        }
        for name, content in config.items():
            (host.base / "input/config" / f"{name}.json").write_text(json.dumps(content))
    for folder in ("evidence", "tmp", "cache"):
        (run / folder).mkdir()
    without = [] if plan.distribution == "smddp" else ["smddprun", "smdistributed"]  # as the image would be
    shutil.copytree(STUBS, run / "stubs", ignore=shutil.ignore_patterns("__pycache__", *without))
    return hosts


def with_local_channels(plan: Plan, values: Mapping[str, str], as_json: bool) -> dict[str, str]:
    """Each channel's folder of this machine in place of the container's: every host's /opt/ml is elsewhere here."""
    local = dict(values)
    for name, folder in plan.channels.items():
        place = re.compile(rf"(?<![\w/])/opt/ml/input/data/{re.escape(name)}(?![\w.-])")
        path = str(Path(folder).resolve())
        path = json.dumps(path, ensure_ascii=False)[1:-1] if as_json else path
        local = {key: place.sub(path.replace("\\", r"\\"), value) for key, value in local.items()}
    return local


def environment(plan: Plan, run: Path, host: Host, port: int, mpirun: bool) -> dict[str, str]:
    """The container's variables: the job's and few of this shell's, with the stubs first on both paths."""
    kept = {k: v for k, v in os.environ.items() if k in plan.inherit or k.upper() in INHERITED}
    paths, python_path, open_mpi = [run / "stubs" / "bin", Path(sys.executable).parent], [run / "stubs"], {}
    if mpirun:
        paths.append(OPEN_MPI / "bin")
        python_path += (OPEN_MPI / "lib").glob("python*/site-packages")
        open_mpi = {"MPI4PY_LIBMPI": str(OPEN_MPI / "lib" / "libmpi.so.40"), "OPAL_PREFIX": str(OPEN_MPI)}
    unchanged = port == 7777 and plan.distribution not in MPI
    rehearsal = {"PYTHON": sys.executable, "PORT": port, "HOST": host.index, "BASE": host.base}
    rehearsal |= {"EVIDENCE": run / "evidence", "BATCHES": plan.batches, "FAULT": f"{plan.fault} {plan.target}"}
    rehearsal |= {"WITHOUT_MPIRUN": "" if mpirun else "1", "SINGLE_HOST": "1" if plan.hosts == 1 else ""}
    rehearsal["PROCESSES"] = plan.processes if plan.distribution != "none" else 0
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // plan.world_size)),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "HOME": str(host.base / "home"),  # without your caches, tokens and credentials
        "PYTHONUSERBASE": site.getuserbase(),
        **kept,
        **with_local_channels(plan, plan.request.get("Environment", {}), as_json=False),
        **open_mpi,
        "PATH": os.pathsep.join([*map(str, paths), kept.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(map(str, python_path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(run / "tmp"),
        "MPLCONFIGDIR": str(run / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "AWS_REGION": json.loads(plan.request["HyperParameters"]["sagemaker_region"]),
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_BASE_DIR": str(host.base),
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main" if unchanged else "mpirun_stub:main",
        "PET_MASTER_PORT": str(port),  # one host: the toolkit names no port to torchrun
        **{f"REHEARSAL_{name}": str(value) for name, value in rehearsal.items()},
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


def run_hosts(plan: Plan, run: Path, hosts: list[Host], port: int, mpirun: bool) -> Lines:
    """Start every host and yield its lines as they come, and ("", each 0.2 s); ends when all hosts have ended.

    Whatever happens, no process of the rehearsal is left when the iterator is closed.
    """
    lines: queue.Queue[tuple[Host, str]] = queue.Queue()
    readers: list[threading.Thread] = []
    started = looked = time.time()
    entrypoint = plan.request["AlgorithmSpecification"].get("ContainerEntrypoint", [])
    if not mpirun:  # hosts share this machine's /proc; interrupt() shows each the part that is its own
        entrypoint = [part.replace("/proc/", "processes/") for part in entrypoint]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    pipes |= {"text": True, "errors": "replace"}
    try:
        for host in hosts:
            host.command = entrypoint or [sys.executable, "-m", "sagemaker_training.cli.train"]
            host.process = subprocess.Popen(
                _unshare(MOUNT, str(run), str(host.base), *host.command) if mpirun else host.command,
                cwd=host.base,
                env=environment(plan, run, host, port, mpirun),
                start_new_session=True,  # Ctrl-C reaches the rehearsal, which then ends them in order
                **pipes,
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
            target = hosts[plan.target] if plan.interrupts else None
            if target and not target.interrupted_at and _in_training(plan, run, hosts):
                target.interrupted_at = time.time()
                interrupt(plan, run, target)
            failed = [host.ended_at for host in hosts if host.exit_code]
            failed += [host.interrupted_at for host in hosts if host.interrupted_at]
            if time.time() > min([started + plan.timeout, *(at + plan.grace for at in failed)]):
                for host in hosts:
                    host.overdue |= host.exit_code is None
                end_processes(run)
        end_processes(run)  # one that is left would keep the readers waiting
        for reader in readers:
            reader.join(5)
        while not lines.empty():
            yield lines.get()
    finally:
        end_processes(run)


def _read(host: Host, lines: "queue.Queue[tuple[Host, str]]") -> None:
    """Write all output to the host's log.txt; pass it on without the toolkit's remarks and listing of variables."""
    assert host.process and host.process.stdout
    listing = False
    with (host.base / "log.txt").open("w") as log:
        for line in host.process.stdout:
            log.write(line)
            listing = (listing or line.startswith("Training Env:")) and not line.startswith("Invoking script with")
            if not listing and line.strip() and "sagemaker-training-toolkit INFO" not in line:
                lines.put((host, line.rstrip()))


def _in_training(plan: Plan, run: Path, hosts: list[Host]) -> bool:
    """Whether the host to interrupt is in the middle of training, and, to be lost, there is a checkpoint to resume."""
    written = any(path for host in hosts for path in (host.base / "checkpoints").glob("[!.]*"))
    return (run / "evidence" / f"in-training-{plan.target}").exists() and (plan.fault != "lose-host" or written)


def interrupt(plan: Plan, run: Path, host: Host) -> None:
    """Kill all that runs on the host; or send SIGTERM to its entry point, as SageMaker does to the container's."""
    own = processes(run, host.index)
    if plan.fault == "lose-host":
        return send(own, signal.SIGKILL)
    (host.base / "processes").mkdir()
    for process in own:
        (host.base / "processes" / str(process.pid)).symlink_to(f"/proc/{process.pid}")
    send([process for process in own if process.info["cmdline"] == host.command], signal.SIGTERM)


def upload(hosts: list[Host], into: Path) -> Path:
    """What S3 has after an attempt: every host's checkpoints, in one folder."""
    for host in reversed(hosts):  # of two files with one name the first host's stays
        shutil.copytree(host.base / "checkpoints", into, dirs_exist_ok=True)
    return into


def processes(run: Path, host: int | None = None) -> "list[psutil.Process]":
    """The rehearsal's processes, or one host's, which their environment tells.

    Their parents would not: torchrun's have sessions of their own, a killed parent's have none.
    """
    import psutil

    wanted = {"REHEARSAL_EVIDENCE": str(run / "evidence")} | ({} if host is None else {"REHEARSAL_HOST": str(host)})
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and wanted.items() <= process.environ().items():
                found.append(process)
    return found


def send(to: "list[psutil.Process]", number: signal.Signals) -> None:
    import psutil

    for process in to:
        with contextlib.suppress(psutil.Error):  # it has ended
            process.send_signal(number)


def end_processes(run: Path) -> None:
    """End every process of this rehearsal."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in END}  # or a second Ctrl-C cuts it short
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        send(processes(run), number)
        deadline = time.monotonic() + seconds
        while processes(run) and time.monotonic() < deadline:
            time.sleep(0.05)
    for taken, handler in handlers.items():
        signal.signal(taken, handler)
