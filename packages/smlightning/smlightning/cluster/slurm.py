"""Slurm's variables: the place of a task among those that one srun started (a step).

https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES. A batch script has no
variables of a step, and a shell of salloc has those of a step with one task.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smlightning.errors import UserError

# Ports below those that Linux gives to outgoing connections (net.ipv4.ip_local_port_range). Steps
# that share a host need different ports.
FIRST_PORT, PORTS = 15_000, 16_000
# A launcher that a task of srun starts sets this variable: the number of the launcher's agents
# (torchrun) or processes (mpirun). mpirun itself uses srun to reach other hosts.
INNER_LAUNCHERS = {"torchrun": "GROUP_WORLD_SIZE", "mpirun": "OMPI_COMM_WORLD_SIZE"}


@dataclass(frozen=True)
class Step:
    """The tasks that one srun started.

    Attributes:
        hosts: names of their hosts; the first has rank 0.
        variables: this task's place, under torchrun's names.
    """

    hosts: tuple[str, ...]
    variables: dict[str, str]


def find_step(env: Mapping[str, str]) -> Step | None:
    """The step that this process is a rank of, or None if srun started only one task or a launcher.

    Raises:
        UserError: variables contradict each other, or ranks do not fill one host after the other.
    """
    tasks = _integer(env, "SLURM_STEP_NUM_TASKS") if "SLURM_STEP_NUM_TASKS" in env else 1
    if tasks == 1 or _is_shell(env) or _has_inner_launcher(env, tasks):
        return None
    if "SM_HOSTS" in env:
        raise UserError(
            f"srun started {tasks} tasks, and SM_HOSTS is set as in a SageMaker job",
            "unset SM_HOSTS, or start the job without srun",
        )
    rank, local_rank = _integer(env, "SLURM_PROCID"), _integer(env, "SLURM_LOCALID")
    local_world_size = _tasks_per_host(env.get("SLURM_STEP_TASKS_PER_NODE", "unset"))
    first = _integer(env, "SLURM_NODEID") * local_world_size  # of this host's tasks
    expected = ",".join(str(first + number) for number in range(local_world_size))
    tasks_here = env.get("SLURM_GTIDS", expected)  # scripts may unset it for other programs
    if rank != first + local_rank or tasks_here != expected:
        raise UserError(
            f"srun's task {rank} is on a host with the tasks {tasks_here}; expected {expected}",
            "leave out --distribution, or set it to block",
        )
    places = {
        "RANK": rank,
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world_size,
    }
    for name, place in places.items():
        if env.get(name, str(place)) != str(place):
            raise UserError(
                f"{name} is {env[name]}, and Slurm's variables say {place}",
                f"unset {name}: srun needs no other launcher's variables",
            )
    variables = {name: str(place) for name, place in places.items()}
    variables["MASTER_PORT"] = env.get("MASTER_PORT") or str(_port(env))
    return Step(tuple(host_names(env.get("SLURM_STEP_NODELIST", ""))), variables)


def _is_shell(env: Mapping[str, str]) -> bool:
    """Whether this is the terminal of ``srun --ntasks N --pty bash``, where other shells ended."""
    is_first_step = env.get("SLURM_STEP_ID") == "0"
    return is_first_step and "SLURM_PTY_PORT" in env and env.get("SLURM_JOB_NAME") == "bash"


def _has_inner_launcher(env: Mapping[str, str], tasks: int) -> bool:
    """Whether torchrun or mpirun, between srun and this process, gives ranks.

    Raises:
        UserError: each task started one that does not know the others'.
    """
    for launcher, variable in INNER_LAUNCHERS.items():
        if variable in env:
            count = _integer(env, variable)
            if count < tasks:
                raise UserError(
                    f"srun started {tasks} tasks, and {launcher}'s {variable} is {count}: each "
                    "task would train separately",
                    "start `srun python src/train.py`, or one task per host with `torchrun "
                    "--nnodes $SLURM_NNODES --rdzv_backend c10d --rdzv_endpoint HOST:PORT`",
                )
            return True
    return False


def _tasks_per_host(text: str) -> int:
    """Tasks on each host, of Slurm's ``2(x3)``: three hosts with two tasks each."""
    found = re.fullmatch(r"(\d+)(\(x\d+\))?", text)
    if not found:
        raise UserError(
            f"SLURM_STEP_TASKS_PER_NODE is {text}, but each host needs the same number of tasks",
            "set --nodes and --ntasks-per-node, and leave out --ntasks",
        )
    return int(found[1])


def _integer(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "unset")
    if not text.isdecimal():
        raise UserError(
            f"{name} is {text}; expected a number, as srun and launchers set it",
            "start the command with srun, and leave its variables as they are",
        )
    return int(text)


def host_names(text: str) -> list[str]:
    """The hosts of a list such as ``gpu[01-03,7],big``, as ``scontrol show hostnames`` has them."""
    names: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)  # text and ranges in turn
        choices: Iterable[Iterable[str]] = (
            _numbers(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)
        )
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
    return names


def _numbers(ranges: str) -> Iterator[str]:
    """The numbers of ``01-03,7``: 01, 02, 03, 7."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"


def _port(env: Mapping[str, str]) -> int:
    """The port at which the ranks of this step connect if MASTER_PORT is unset."""
    step = _integer(env, "SLURM_JOB_ID") * 10 + _integer(env, "SLURM_STEP_ID")
    return FIRST_PORT + step % PORTS


def unused(env: Mapping[str, str], world_size: int, num_nodes: int) -> str:
    """A sentence if this run leaves tasks or nodes of its Slurm job unused, else an empty text."""
    counts = (env.get(name, "1") for name in ("SLURM_NTASKS", "SLURM_NNODES"))
    tasks, nodes = (int(text) if text.isdecimal() else 1 for text in counts)
    if tasks <= world_size and nodes <= num_nodes:
        return ""
    processes = "one process trains" if world_size == 1 else f"{world_size} processes train"
    return (
        f"SLURM_NTASKS is {tasks} and SLURM_NNODES {nodes}, but only {processes}: to use the whole "
        "job, start this command with srun"
    )
