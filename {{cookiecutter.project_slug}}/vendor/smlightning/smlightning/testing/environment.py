"""Variables that a launcher or a job sets, and a process that stands for itself must not see."""

from collections.abc import Mapping

NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    | {"MLFLOW_TRACKING_URI", "HUB_TOKEN_SECRET"}
)
PREFIXES = ("SM_", "OMPI_", "SMDATAPARALLEL_", "TORCHELASTIC_")


def is_of_a_job(name: str) -> bool:
    """Whether a launcher, or a job's request, sets the variable of this name."""
    return name in NAMES or name.startswith(PREFIXES)


def outside_a_job(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the variables of a job."""
    return {name: value for name, value in environment.items() if not is_of_a_job(name)}
