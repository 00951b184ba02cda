"""The sizes of a job's model, counted by a process with torch.

The project's folder keeps the last count, so that `preflight` finds a job that cannot fit without
waiting for torch, and without it.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smlightning import __version__
from smlightning.errors import UserError
from smlightning.launch import images, launchers, resources
from smlightning.launch.estimate.host import Host
from smlightning.launch.estimate.sizes import Length, Run, Sizes
from smlightning.launch.job import Job
from smlightning.options import Option, declared_options, parse_command_line
from smlightning.project import Project
from smlightning.training.allocator import EXACT_SINCE

FILE = ".estimate.json"  # in the project's folder
LORA_RANK = 8  # that is tried where the job has no adapters
# Options that save memory, where src/options.py declares them, with the value that is tried.
SAVING: dict[str, Any] = {"gradient_checkpointing": True, "lora_rank": LORA_RANK}
LOADERS = 2  # that keep their workers while it trains: for training and for validation
MOST_SECONDS = 900  # of counting; data that was never prepared is prepared meanwhile
READ = ("dataset", "model_name")  # options that may name files of which sizes are counted
Changed = frozenset[tuple[str, Any]]


@dataclass(frozen=True)
class Known:
    """A model's sizes: of the job's own options, and of those with which memory is saved."""

    variants: dict[Changed, Sizes]
    length: Length | None  # None: the data was not looked at, or has no length
    tokens: int  # of the longest sample; 0: samples are no texts
    largest: tuple[int, ...] = ()  # shape of the step's largest tensor

    @property
    def sizes(self) -> Sizes:
        """With the job's own options."""
        return self.variants[frozenset()]


def options_of(job: Job, project: Project, more: Sequence[str] = ()) -> dict[str, Any]:
    """Every option of src/train.py, as the job sets it, or else its default.

    Args:
        more: words of a command line that replace the job's own.

    Raises:
        UserError: train.py has no such option, or does not take the value.
    """
    words = [f"--{name}={value}" for name, value in job.hyperparameters.items()]
    return vars(parse_command_line(project.options().cls, [*words, *more]))


def may_shard(job: Job, options: Mapping[str, Any]) -> bool:
    """Whether --strategy fsdp can be a cure: SMDDP's library does not carry it."""
    return "strategy" in options and launchers.launcher(job) != "smddp"


def run_of(job: Job, options: Mapping[str, Any]) -> Run | None:
    """How the job trains; None where its GPUs or its batch are not known.

    The names are those of both examples' options: a project of other options is counted at the
    batch that its data gives.
    """
    gpus = resources.gpus(job)
    if gpus is None:
        return None
    processes = 1 if launchers.launcher(job) == "none" else max(gpus, 1)
    batch, accumulate = options.get("batch_size"), options.get("accumulate_grad_batches", 1)
    if not isinstance(batch, int) or not isinstance(accumulate, int):
        return None
    ranks = resources.host_count(job) * processes
    shard_size = int(options.get("shard_size", 0))
    return Run(
        batch_size=batch,
        ranks=ranks,
        shards=(shard_size or ranks) if options.get("strategy") == "fsdp" else 1,
        mixed=precision(job, options) == "bf16-mixed",
        accumulate=accumulate,
    )


def host_of(job: Job, options: Mapping[str, Any], run: Run) -> Host:
    """The first host of a job that trains so."""
    has_gpus = resources.gpus(job) != 0
    workers = int(options.get("num_workers", 0))
    if workers < 0:
        workers = 2 if has_gpus else 0  # as data/batches.py has it
    image = images.profile(job)
    return Host(
        ranks=run.ranks // resources.host_count(job),
        workers=LOADERS * workers,
        gpus=has_gpus,
        exact=image is not None and image.version >= EXACT_SINCE,
    )


def precision(job: Job, options: Mapping[str, Any]) -> str:
    """What is computed with on the job's instances, as the CPU here can: 16 bits are bf16-mixed."""
    chosen = str(options.get("precision", "32-true"))
    if chosen == "auto":
        return "bf16-mixed" if resources.gpus(job) else "32-true"
    return "bf16-mixed" if chosen == "16-mixed" else chosen


def variants_of(options: Mapping[str, Any], declared: Mapping[str, Option]) -> list[Changed]:
    """The job's own options, then those that save memory, alone and together."""
    free = [
        (name, value)
        for name, value in SAVING.items()
        if name in declared and not options.get(name)
    ]
    subsets = [frozenset[tuple[str, Any]]()]
    for item in free:
        subsets += [subset | {item} for subset in subsets]
    return subsets


def counted(
    job: Job,
    project: Project,
    options: Mapping[str, Any],
    channels: Mapping[str, Path] | None = None,
) -> Known:
    """Count the sizes of the project's model.

    Args:
        job: of job.toml.
        options: of `options_of`.
        channels: folders with data of the job's channels.

    Raises:
        UserError: the model or its data cannot be built here.
    """
    declared = declared_options(project.options().cls)
    variants = variants_of(options, declared)
    request = {
        "src": str(project.src.resolve()),
        "options": counted_options(job, options),
        "variants": [sorted(changed) for changed in variants],
    }
    answer = _ask(request, project, channels or {})
    first = answer["variants"][0]
    length = None
    if first["samples"]:
        epochs, limit = options.get("epochs", 1), options.get("max_steps", -1)
        length = Length(first["samples"], int(epochs), int(limit))
    return Known(
        variants=_variants(answer["variants"]),
        length=length,
        tokens=first["length"],
        largest=tuple(first["largest"]),
    )


def _variants(rows: Sequence[Mapping[str, Any]]) -> dict[Changed, Sizes]:
    """Sizes by changed options, as JSON holds them."""
    return {
        frozenset((name, value) for name, value in row["changed"]): Sizes.from_dict(row["sizes"])
        for row in rows
    }


def counted_options(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which train.py is run here: nothing but sizes is wanted of it."""
    instead = {
        "precision": precision(job, options),
        "strategy": "ddp",
        "shard_size": 0,
        "compression": "none",
        "compile": False,
        "resume": "never",
        "num_workers": 0,
    }
    known = {name: value for name, value in instead.items() if name in options}
    return {**options, **known}


def _ask(
    request: Mapping[str, Any], project: Project, channels: Mapping[str, Path]
) -> dict[str, Any]:
    """The answer of a process of `counting`."""
    package = Path(__file__).parents[3]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SM_")}
    paths = [str(package), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env["CUDA_VISIBLE_DEVICES"] = ""
    for name, folder in channels.items():
        env[f"SM_CHANNEL_{name.upper()}"] = str(folder.resolve())
    command = [sys.executable, "-m", "smlightning.launch.estimate.counting"]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(request),
            env=env,
            cwd=project.root,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"counting the model's sizes took more than {MOST_SECONDS} s",
            "name a part of the data with --channel, or with -- --dataset",
        ) from None
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        raise UserError(
            f"the model's sizes could not be counted: {last}", "see whether make train runs"
        ) from None
    if "problem" in answer:
        raise UserError(
            answer["problem"], answer["cure"] or "see whether make train runs with these options"
        )
    return answer


def fingerprint(
    job: Job, project: Project, options: Mapping[str, Any], channels: Mapping[str, Path]
) -> str:
    """A digest of all that sizes depend on: code, options, 16 or 32 bits, data and checkpoint.

    Of a channel that no folder stands for and of a hub's data set the names alone are known here.
    """
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(project.src.rglob("*.py")):
        digest.update(path.relative_to(project.src).as_posix().encode())
        digest.update(path.read_bytes())
    facts = [
        precision(job, options),
        sorted(map(repr, options.items())),
        job.channels,
        {name: _stamps(folder) for name, folder in channels.items()},
        {name: _stamps_of_option(name, options, project) for name in READ if name in options},
    ]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def _stamps_of_option(name: str, options: Mapping[str, Any], project: Project) -> Any:
    """Of the files that an option names; of a fetched checkpoint the folder of its revision."""
    value = str(options[name])
    path = project.root / value
    if value and path.exists():
        return _stamps(path)
    is_default = value == declared_options(project.options().cls)[name].default
    return "" if name != "model_name" or is_default else _cached(value)


def _stamps(place: Path) -> list[tuple[str, int, int]]:
    """Name, bytes and time of change of a file, or of each one in a folder."""
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    states = [(file, file.stat()) for file in files if file.is_file()]
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in states]


def remember(
    known: Known,
    job: Job,
    project: Project,
    options: Mapping[str, Any],
    channels: Mapping[str, Path],
) -> None:
    """Keep what was counted for `preflight`."""
    folders = {name: folder.resolve() for name, folder in channels.items()}
    content = {
        "fingerprint": fingerprint(job, project, options, folders),
        "channels": {name: str(folder) for name, folder in folders.items()},
        "variants": [
            {"changed": sorted(changed), "sizes": sizes.to_dict()}
            for changed, sizes in known.variants.items()
        ],
        "length": asdict(known.length) if known.length else None,
        "tokens": known.tokens,
        "largest": known.largest,
    }
    text = json.dumps(content, indent=1)
    (project.root / FILE).write_text(text, encoding="utf-8")


def remembered(job: Job, project: Project, options: Mapping[str, Any]) -> Known | None:
    """What was counted last, if it was of this code, these options and this data."""
    try:
        content = json.loads((project.root / FILE).read_text(encoding="utf-8"))
        folders = {name: Path(folder) for name, folder in content["channels"].items()}
        if content["fingerprint"] != fingerprint(job, project, options, folders):
            return None
        return Known(
            variants=_variants(content["variants"]),
            length=Length(**content["length"]) if content["length"] else None,
            tokens=int(content["tokens"]),
            largest=tuple(content["largest"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # none, or another version's


def _cached(model_name: str) -> str:
    """The path of a checkpoint's config.json in the hub's cache; empty where it is not there."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return ""
    try:
        path = try_to_load_from_cache(model_name, "config.json")
    except ValueError:  # no name of the hub
        return ""
    return path if isinstance(path, str) else ""
