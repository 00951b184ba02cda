"""From what ``--dataset`` names to tables: a hub name, a path, or the job's channel; csv, jsonl, parquet or arrow.

    source = find_source("rows.csv")                           # at once: what would be read, as plain data
    splits = read(dataset, source, columns, scratch)           # {"train": [texts, classes], …}: a list per column
    splits = complete_splits(splits, stratify_by=1, seed=0)    # with validation and test split off where they lack

Which columns a table has to hold is the caller's to say (:class:`Column`). Every error is one sentence.
"""

import csv
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from runtime.report import UserError, root_cause

READERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "val")
NOT_DATA = r"\.|cache-.*\.arrow|(state|dataset_info|dataset_dict)\.json"  # what datasets.save_to_disk adds
HOLD_OUT = 10  # one row in ten validates, another one in ten tests

Table = list[list[Any]]  # a list of values per column


class Column(NamedTuple):
    """A column that is needed: what errors and its option, ``--<name>_column``, call it, and how it is found."""

    name: str
    given: str  # its name in the table where the person gave one, else empty
    usual: tuple[str, ...]  # names it is found by, in lower case


def find_source(dataset: str, builtin: Sequence[str] = ()) -> list[Any]:
    """What ``dataset`` names, as plain data that changes when it does: files with size and time of change, or a name.

    Args:
        dataset: ``training`` for the job's channel, a path, or a hub name.
        builtin: names that the caller reads itself; errors offer them.

    Raises:
        UserError: there is no such thing.
    """
    path = Path(dataset).expanduser()
    if dataset == "training":
        channel = os.environ.get("SM_CHANNEL_TRAINING", "")
        if not channel:
            raise UserError(
                "--dataset training reads the job's channel, but SM_CHANNEL_TRAINING is not set; give a path."
            )
        path = Path(channel)
    elif not dataset.strip() or not path.exists():
        if path.suffix in READERS or not re.match(r"[\w-]", dataset) or dataset.count("/") > 1:
            names = " or ".join(("training", *builtin))
            raise UserError(f"--dataset {dataset!r}: no such file or folder; give a path, a hub name, {names}.")
        return ["hub", dataset]
    path = path.absolute()  # not resolved: a link's own name tells what its target holds
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [f for f in files if f.suffix in READERS and f.is_file() and not re.match(NOT_DATA, f.name)]
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
    if not files:
        raise UserError(f"--dataset {dataset!r}: no data file in {path}; expected one of {', '.join(READERS)}.")
    return [str(path), stamps(files)]


def stamps(files: Sequence[Path]) -> list[list[Any]]:
    """What changes when one of the files does: name, size, time of change."""
    return [[str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def read(
    dataset: str, source: list[Any], columns: Sequence[Column], scratch: Path, builtin: Sequence[str] = ()
) -> dict[str, Table]:
    """The columns of each split that the source has, of ``train``, ``val`` and ``test``; the first is always there.

    Files and folders whose names say ``test`` or ``validation`` are those splits; all others are for training.

    Args:
        source: of :func:`find_source`.
        scratch: a folder for the readers' own copies; the caller removes it.

    Raises:
        UserError: the hub has no such data, a file cannot be read, or a column is not found.
    """
    import datasets

    if source[0] == "hub":
        offline_if_unreachable()
        try:
            loaded = datasets.load_dataset(dataset)
        except Exception as error:  # the hub, the network and the builder each have exceptions of their own
            names = "".join(f"{name}, nor " for name in builtin)
            raise UserError(
                f"--dataset {dataset!r} is neither {names}training, nor a path, and could not be loaded from the "
                f"Hugging Face hub ({hub_reason(error)}); check the name and the network."
            ) from error
        parts = {SPLITS[name]: rows for name, rows in loaded.items() if name in SPLITS}
        if "train" not in parts:
            raise UserError(f"--dataset {dataset!r} has splits {', '.join(loaded)}; expected one named train.")
        return {name: find_columns(rows, columns, dataset) for name, rows in parts.items()}

    root, stamped = source
    files: dict[str, list[Path]] = {}
    for path in (Path(f) for f, *_ in stamped):
        below = str(path.relative_to(root).with_suffix("")) if path != Path(root) else ""
        words = [word for word in re.findall("[a-z]+", below.lower()) if word in SPLITS]
        files.setdefault(SPLITS[words[-1]] if words else "train", []).append(path)
    if "train" not in files:
        raise UserError(f"--dataset {dataset!r} has files for {', '.join(files)} only; expected one for training too.")
    splits: dict[str, Table] = {}
    for split, paths in files.items():
        splits[split] = [[] for _ in columns]
        for path in paths:
            reader = READERS[path.suffix]
            try:
                options = _csv_options(path) if reader == "csv" else {}
                rows = datasets.load_dataset(
                    reader, data_files=str(path), split="train", cache_dir=str(scratch), **options
                )
            except Exception as error:  # each reader has exceptions of its own, wrapped by datasets
                raise UserError(
                    f"{path} could not be read as {reader}: {root_cause(error)}; check the file."
                ) from error
            for column, values in zip(splits[split], find_columns(rows, columns, str(path)), strict=True):
                column += values
    return splits


def _csv_options(path: Path) -> dict[str, Any]:
    """Every column of a csv file is text: pandas would make 7 of 007, and nothing of NA, which is Namibia."""
    import datasets

    separator = "\t" if path.suffix == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file, delimiter=separator), [])
    features = datasets.Features({name: datasets.Value("string") for name in names})
    return {"sep": separator, "keep_default_na": False, "features": features, "encoding": "utf-8-sig"}


def find_columns(rows: Any, columns: Sequence[Column], where: str) -> Table:
    """The values of each column of ``rows``, a `datasets.Dataset`; numbers of classes become the classes' names.

    Args:
        where: what errors call the table.

    Raises:
        UserError: a column is not there, or several could be it.
    """
    names = list(rows.column_names)
    found: list[str] = []
    for name, given, usual in columns:
        candidates = [given] if given else [c for c in names if c.lower() in usual]
        if not given and not candidates and len(names) == len(columns) == len(found) + 1:
            candidates = [c for c in names if c not in found]
        if len(candidates) != 1 or candidates[0] not in names:
            problem = f"several could be the {name}" if len(candidates) > 1 else f"none is the {name}"
            raise UserError(f"{where} has columns {', '.join(names)}: {problem}; name it with --{name}_column.")
        found.append(candidates[0])
    table = []
    for name in found:
        values, feature = rows[name][:], rows.features[name]
        if hasattr(feature, "int2str"):
            values = [None if v is None or v < 0 else feature.int2str(v) for v in values]
        table.append(values)
    return table


def complete_splits(splits: dict[str, Table], stratify_by: int, seed: int) -> dict[str, Table]:
    """Take from the training rows whichever of validation and test is missing; ``stratify_by`` numbers a column."""
    missing = [(part, name) for part, name in ((1, "val"), (2, "test")) if name not in splits]
    if not missing:
        return splits
    table = splits["train"]
    parts = split_rows(table[stratify_by], seed)
    for part in {1, 2} - {p for p, _ in missing}:
        parts[parts == part] = 0
    cut = {
        name: [[c[i] for i in np.flatnonzero(parts == part)] for c in table] for part, name in [(0, "train"), *missing]
    }
    return {**splits, **cut}


def split_rows(classes: Sequence[str], seed: int) -> np.ndarray:
    """Which split each row goes to, (N,): 0 train, 1 validation, 2 test; stratified, a function of classes and seed.

    Rows are shuffled, put in order of class, and every tenth is taken. The first of each class stays in training, so
    that none is unseen there. (`datasets` refuses to stratify where a class occurs once, and real data has those.)
    """
    shuffled = np.random.default_rng(seed).permutation(len(classes))
    values = np.unique(np.asarray(classes), return_inverse=True)[1][shuffled]
    order = shuffled[np.argsort(values, kind="stable")]
    sorted_values = np.sort(values)
    rest = order[np.flatnonzero(np.r_[False, sorted_values[1:] == sorted_values[:-1]])]
    parts = np.zeros(len(classes), dtype=np.int64)
    parts[rest[0::HOLD_OUT]] = 1
    parts[rest[1::HOLD_OUT]] = 2
    return parts


def offline_if_unreachable() -> None:
    """Where there is no network, let the hub's client look in its cache at once: it would retry for half a minute."""
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    try:
        if not getproxies():
            socket.getaddrinfo(urlsplit(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        import datasets

        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True


def hub_reason(error: BaseException) -> str:
    """Why the hub gave nothing, in one line."""
    import huggingface_hub

    return "no network, no copy in the cache" if huggingface_hub.constants.HF_HUB_OFFLINE else root_cause(error)
