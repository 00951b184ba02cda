"""`job.toml`, read and typed: the one description of a job that `launch` and `rehearsal` share."""

import difflib
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin

from launch import ROOT
from runtime.report import UserError

Value = str | int | float | bool

DISTRIBUTIONS = ("auto", "smddp", "torch_distributed", "pytorchddp", "none")


class JobError(UserError):
    """`job.toml` is wrong. `problems` holds one sentence for each thing found."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a stack trace (IPython looks for this name)."""
        return [f"error: {problem}" for problem in self.problems]


@dataclass(frozen=True)
class Spot:
    """Spare capacity, up to 90 % cheaper, which AWS takes back at will."""

    enabled: bool = False
    max_wait_s: int = field(default=172_800, metadata={"min": 1})


@dataclass(frozen=True)
class Network:
    """Your VPC. Empty: SageMaker's own network."""

    subnets: list[str] = field(default_factory=list)
    security_groups: list[str] = field(default_factory=list)
    encrypt: bool = False


@dataclass(frozen=True)
class Job:
    """Every answer a job needs; the comments of `job.toml` say what each is for."""

    name: str
    region: str
    instance_type: str
    instance_count: int = field(metadata={"min": 1})
    distribution: str = field(default="auto", metadata={"choices": DISTRIBUTIONS})
    image: str = "auto"
    role: str = ""
    bucket: str = ""
    volume_gb: int = field(default=100, metadata={"min": 1})
    max_run_s: int = field(default=86_400, metadata={"min": 1})
    checkpoint_s3: str = "auto"
    forward_stop: bool = False
    keep_alive_s: int = field(default=0, metadata={"min": 0})
    price_per_hour: float = field(default=0.0, metadata={"min": 0})
    telemetry: bool = False
    hyperparameters: dict[str, Value] = field(default_factory=dict)
    channels: dict[str, str] = field(default_factory=dict)
    spot: Spot = field(default_factory=Spot)
    network: Network = field(default_factory=Network)
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def load(path: str | Path = ROOT / "job.toml") -> Job:
    """The job that the file describes.

    Raises:
        JobError: with every problem of the file at once, each naming key, value and expectation.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise JobError([f"{path} cannot be read ({error.strerror}); name the file with --job"]) from error
    except UnicodeDecodeError as error:
        raise JobError([f"{path} is not UTF-8 text, as TOML has to be; save it as UTF-8"]) from error
    except tomllib.TOMLDecodeError as error:
        raise JobError([f"{path} is not TOML: {error}"]) from error
    problems: list[str] = []
    job = _build(Job, table, "", problems)
    if problems:
        raise JobError(problems)
    return job


def _build(cls: type, table: dict[str, Any], prefix: str, problems: list[str]) -> Any:
    """An instance of the dataclass `cls` from a TOML table; what does not fit goes to `problems`."""
    known = {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"
            problems.append(f"{prefix}{key} = {_show(value)} is no key of job.toml; {hint}")
            continue
        values[key] = _typed(known[key], value, prefix, problems)
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            problems.append(f"{prefix}{name} is missing; set it in job.toml")
    return None if problems else cls(**values)


def _typed(f: Any, value: Any, prefix: str, problems: list[str]) -> Any:
    """`value` as field `f` wants it. bool is no int here, and an int will do for a float."""
    key, wanted = prefix + f.name, f.type

    def refuse(name: str, found: Any, expected: str) -> None:
        problems.append(f"{name} = {_show(found)} is not what it has to be: {expected}")

    if hasattr(wanted, "__dataclass_fields__"):
        if isinstance(value, dict):
            return _build(wanted, value, f"{f.name}.", problems)
        refuse(key, value, f"a table, [{f.name}]")
    elif get_origin(wanted) is list:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        refuse(key, value, 'a list of texts, ["…", "…"]')
    elif get_origin(wanted) is dict:
        if not isinstance(value, dict):
            refuse(key, value, f"a table, [{f.name}]")
            return value
        inner = get_args(wanted)[1]
        for name, item in value.items():
            if inner is str and not isinstance(item, str):
                refuse(f"{key}.{name}", item, f'a text, "{item}"')
            elif not isinstance(item, str | int | float):
                refuse(f"{key}.{name}", item, "a text, a number, true or false")
        return value
    elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    elif type(value) is not wanted:
        names = {str: 'a text, in "quotes"', int: "a whole number", float: "a number", bool: "true or false"}
        refuse(key, value, names[wanted])
        return value
    low, choices = f.metadata.get("min"), f.metadata.get("choices")
    if low is not None and not low <= value < float("inf"):  # nan fails too
        refuse(key, value, f"at least {low}")
    if choices and value not in choices:
        refuse(key, value, f"one of {', '.join(choices)}")
    return value


def _show(value: Any) -> str:
    """A value as TOML writes it, cut to one short line."""
    text = repr(value)
    if isinstance(value, bool):
        text = text.lower()
    elif isinstance(value, str):
        text = f'"{value}"' if value.isprintable() else '"' + text[1:-1] + '"'
    return text if len(text) <= 80 else text[:79] + "…"
