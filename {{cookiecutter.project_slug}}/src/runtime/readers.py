"""From what ``--dataset`` names to rows, in pieces: hub name, path or the job's channel; csv, jsonl, parquet or arrow.

Memory does not grow with the data. Which columns there have to be is the caller's to say (:class:`Column`). Every
error is one sentence.
"""

import contextlib
import csv
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from runtime.report import UserError, root_cause

READERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "val")
SPLITS |= {f"{word}{more}": split for word, split in SPLITS.items() for more in ("set", "data")}
EITHER = ("eval", "evaluation", "evalset", "evaldata")  # some mean validation, others the test
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
NOT_DATA = r"\.|cache-.*\.arrow|(state|dataset_info|dataset_dict)\.json"  # what datasets.save_to_disk adds
ROWS = 8192  # of a piece
WIDEST = 100  # columns of a tsv that is searched for swallowed rows: pyarrow's patterns repeat at most 1,000 times
BLOCK = 2 << 20  # bytes of csv that are parsed at a time, about 35 ahead; a longer row is refused

Pieces = Iterator[list[pa.Array]]  # an array per column, all of one length, at most ROWS


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
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
    packed = [f for f in files if f.suffix.lower() in PACKED and Path(f.stem).suffix.lower() in READERS]
    if packed:
        raise UserError(f"--dataset {dataset!r}: {packed[0]} is compressed; unpack it, or take it out of the folder.")
    files = [f for f in files if f.suffix.lower() in READERS and f.is_file() and not re.match(NOT_DATA, f.name)]
    saves = {folder: _saved(folder) for folder in {f.parent for f in files if f.suffix == ".arrow"}}
    files = [f for f in files if f.suffix != ".arrow" or f.name in (saves[f.parent] or {f.name})]
    if not files:
        raise UserError(f"--dataset {dataset!r}: no data file in {path}; expected one of {', '.join(READERS)}.")
    ((name, times),) = Counter(f.with_suffix("") for f in files).most_common(1)
    if times > 1:
        raise UserError(
            f"--dataset {dataset!r}: {name}.* are {times} files, of the same rows perhaps; leave one there."
        )
    return [str(path), stamps(files)]


def _saved(folder: Path) -> set[str]:
    """The files that datasets.save_to_disk names as a folder's: an earlier save may have left more. Empty: no list."""
    try:
        listed = json.loads((folder / "state.json").read_text(encoding="utf-8"))["_data_files"]
        return {each["filename"] for each in listed}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def stamps(files: Sequence[Path]) -> list[list[Any]]:
    """What changes when one of the files does: name, size, time of change."""
    return [[str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def read(
    dataset: str, source: list[Any], columns: Sequence[Column], scratch: Path, builtin: Sequence[str] = ()
) -> dict[str, Pieces]:
    """The rows of each split that the source has, ``train`` first, then perhaps ``val`` and ``test``.

    Files and folders whose names say ``test`` or ``validation`` are those splits; all others are for training.
    Numbers of classes become the classes' names.

    Args:
        source: of :func:`find_source`.
        scratch: a folder for the readers' own files; the caller removes it.

    Raises:
        UserError: the hub has no such data, a file cannot be read, or a column is not found; also while iterating.
    """
    if source[0] == "hub":
        return _read_hub(dataset, columns, builtin)
    root, stamped = source
    files: dict[str, list[Path]] = {"train": []}
    for path in (Path(f) for f, *_ in stamped):
        below = str(path.relative_to(root).with_suffix("")) if path != Path(root) else ""
        words = [word for word in re.findall("[a-z]+", below.lower()) if word in SPLITS or word in EITHER]
        if words and words[-1] in EITHER:
            raise UserError(f"{path} may be for validation or for the test; name it, or its folder, val… or test….")
        files.setdefault(SPLITS[words[-1]] if words else "train", []).append(path)
    if not files["train"]:
        found = ", ".join([*files][1:])
        raise UserError(f"--dataset {dataset!r} has files for {found} only; expected one for training too.")
    return {split: (piece for path in files[split] for piece in _read_file(path, columns, scratch)) for split in files}


def _read_hub(dataset: str, columns: Sequence[Column], builtin: Sequence[str]) -> dict[str, Pieces]:
    import datasets

    datasets.disable_progress_bars()
    names = ", nor ".join([*builtin, "training", "a path"])
    with hub_errors(f"--dataset {dataset!r} is neither {names}, and could not be loaded from the Hugging Face hub"):
        loaded = datasets.load_dataset(dataset)
    parts = {SPLITS[name]: rows for name, rows in loaded.items() if name in SPLITS}
    if "train" not in parts:
        raise UserError(f"--dataset {dataset!r} has splits {', '.join(loaded)}; expected one named train.")
    return {split: _pieces(parts[split], columns, dataset) for split in ("train", "val", "test") if split in parts}


def _read_file(path: Path, columns: Sequence[Column], scratch: Path) -> Pieces:
    reader = READERS[path.suffix.lower()]
    try:
        if reader == "csv":
            yield from _read_csv(path, columns)
        else:
            import datasets

            options: dict[str, Any] = {"batch_size": ROWS} if reader == "parquet" else {}  # else groups of any size
            options |= {"streaming": True, "split": "train", "cache_dir": str(scratch)}
            yield from _pieces(datasets.load_dataset(reader, data_files=str(path), **options), columns, str(path))
    except UserError:
        raise
    except Exception as error:  # each reader has exceptions of its own
        raise UserError(f"{path} could not be read as {reader}: {root_cause(error)}; check the file.") from error


def _read_csv(path: Path, columns: Sequence[Column]) -> Pieces:
    """Every column is text: a reader that guesses makes 7 of 007, and nothing of NA, which is Namibia."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file, delimiter=separator), [])
    found = find_columns(names, columns, str(path))
    known = separator == "\t" and len({*names}) == len(names) <= WIDEST
    read = names if known else found  # all, for what is looked for below
    batches = pyarrow.csv.open_csv(
        path,
        pyarrow.csv.ReadOptions(block_size=BLOCK),
        pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(read, pa.string()), include_columns=read),
    )
    for batch in batches:
        for name in names if read is names else ():
            _refuse_swallowed_rows(batch.column(name), names.index(name), len(names), path)
        arrays = [batch.column(name) for name in found]
        yield from ([array[at : at + ROWS] for array in arrays] for at in range(0, len(batch), ROWS))


def _refuse_swallowed_rows(fields: pa.Array, before: int, columns: int, path: Path) -> None:
    """Many a tsv quotes nothing. A field that begins with a quotation mark then goes on to the next row that has one.

    Such a field holds the rest of its row, whole rows, and the beginning of one: the tabs tell.
    """
    rest, whole, begun = (f"[^\t\n]*(\t[^\t\n]*){{{tabs}}}" for tabs in (columns - 1 - before, columns - 1, before))
    at = pc.index(pc.match_substring_regex(fields, f"^{rest}\n({whole}\n)*{begun}$"), True).as_py()
    if at >= 0:
        raise UserError(
            f"{path}: a quotation mark opens the field {fields[at].as_py()[:40]!r}… and takes in rows up to the next "
            "one; double a field's own marks and quote it, or save the data as jsonl or parquet."
        )


def _pieces(rows: Any, columns: Sequence[Column], where: str) -> Pieces:
    """Of a data set of `datasets`, streamed or memory-mapped."""
    import datasets

    for table in rows.with_format("arrow").iter(ROWS):
        found = find_columns(table.column_names, columns, where)
        features = datasets.Features.from_arrow_schema(table.schema)
        arrays = [table[name].combine_chunks() for name in found]
        for i, names in enumerate(getattr(features[name], "names", None) for name in found):
            if names:  # numbers of classes; -1 stands for one that is kept secret
                arrays[i] = pa.array(names).take(pc.if_else(pc.greater_equal(arrays[i], 0), arrays[i], None))
        yield arrays


def find_columns(names: Sequence[str], columns: Sequence[Column], where: str) -> list[str]:
    """Which of a table's ``names`` is each of ``columns``.

    Args:
        where: what errors call the table.

    Raises:
        UserError: a column is not there, or several could be it.
    """
    found: list[str] = []
    for name, given, usual in columns:
        candidates = [given] if given else [c for c in names if c.lower() in usual]
        if not given and not candidates and len(names) == len(columns) == len(found) + 1:
            candidates = [c for c in names if c not in found]
        if len(candidates) != 1 or candidates[0] not in names:
            problem = f"several could be the {name}" if len(candidates) > 1 else f"none is the {name}"
            problem = f"none is {given!r}" if given else problem
            raise UserError(f"{where} has columns {', '.join(names)}: {problem}; name it with --{name}_column.")
        found.append(candidates[0])
    return found


def check_strings(values: pa.Array, name: str, split: str, done: int) -> pa.Array:
    """``values`` as strings; UserError names the first row without one. ``done`` rows of the split came before."""
    kind, wrong = values.type, 0
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.string())
        wrong = pc.index(pc.fill_null(pc.binary_length(values), 0), 0).as_py()
    if wrong >= 0:
        value = values[wrong].as_py()
        found = "null" if value is None else "empty" if value == "" else f"{value!r}, a {type(value).__name__}"
        raise UserError(
            f"Row {done + wrong + 1} of the {split} split: the {name} is {found}; expected text; correct or remove it."
        )
    return values


def encode_bytes(texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 bytes plus one of all strings, one after the other, cut at ``max_length``; and each one's length."""
    if isinstance(texts, list):
        texts = pa.array([text.encode("utf-8", "replace") or b" " for text in texts])
    cut = pc.binary_slice(texts.cast(pa.binary()), 0, max_length)
    _, ends, content = cut.buffers()
    offsets = np.frombuffer(ends, np.int32)[cut.offset : cut.offset + len(cut) + 1]
    ids = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] + np.uint8(1)  # UTF-8 has no byte above 244
    return ids, np.diff(offsets)


@contextlib.contextmanager
def hub_errors(sentence: str, local: bool = False) -> Iterator[None]:
    """Turn whatever is raised in here, by the hub's client or by readers of ``local`` files, into one sentence.

    Where there is no network the client looks in its cache at once: it would otherwise retry for half a minute.
    """
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    try:
        if not local and not getproxies():
            socket.getaddrinfo(urlsplit(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        import datasets

        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    except Exception as error:  # the hub, the network and each kind of content have exceptions of their own
        offline = huggingface_hub.constants.HF_HUB_OFFLINE and not local
        reason = "not in the cache, and no network or HF_HUB_OFFLINE" if offline else root_cause(error)
        raise UserError(f"{sentence} ({reason}); check the name{'' if local else ' and the network'}.") from error
