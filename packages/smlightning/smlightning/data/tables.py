"""Tables as columns: csv, tsv, jsonl, json, parquet, arrow and text files, or data sets of the hub.

    source = find_source("reviews")                # the files of --dataset
    splits = read(source, [Column("text")])
    for piece in splits["train"]:
        (texts,) = piece.columns                   # a pyarrow array of at most PIECE rows

Memory does not grow with the data, except for a json file that is one list.
"""

import bisect
import codecs
import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from smlightning import hub
from smlightning.errors import UserError, root_cause

CHANNEL = "training"  # as --dataset: the job's channel with this name
TEXT_FILES = (".txt", ".md", ".rst", ".py")  # each is a document
# Files that datasets.save_to_disk writes next to the data, and hidden files.
NOT_DATA = r"\.|cache-.*\.arrow|(state|dataset_info|dataset_dict)\.json"

# Words in the name of a file, a folder or a split of the hub, and their split, as in `datasets`.
WORDS = {
    "train": ("train", "training"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
SPLITS = {
    word + ending: split
    for split, words in WORDS.items()
    for word in words
    for ending in ("", "set", "data")
}

LINES = (".csv", ".tsv", ".jsonl")  # files whose readers skip blank lines
PIECE = 8192  # rows
BLOCK = 2 << 20  # bytes of csv that pyarrow parses at a time; it rejects a longer row
DIVIDED = 20  # a single text file becomes so many documents, or one per line if it has fewer
LARGE = 1 << 26  # bytes of a piece, or of a line of json
NO_ARRAY = (ValueError, TypeError, OverflowError)  # from pyarrow, whose text quotes the value
TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


class Piece(NamedTuple):
    """Consecutive rows of a table.

    Attributes:
        columns: an array for each column, all of one length, at most PIECE.
        table: the file or the data set of the rows.
        first: number of the first row in it. The header of a csv is row 1, as in a spreadsheet.
    """

    columns: list[pa.Array]
    table: str
    first: int = 1

    def place(self, index: int) -> str:
        """The file and number of the row at this index, for an error."""
        counted = " (blank lines not counted)" if self.table.endswith(LINES) else ""
        return f"{self.table}, row {self.first + index}{counted}"


Pieces = Iterator[Piece]


@dataclass(frozen=True)
class Column:
    """A column that is needed.

    Attributes:
        name: its name in errors; its option is ``--<name>_column``.
        given: the option's value, its name in the table; empty: search its usual names.
        usual: its usual names, in lower case.
    """

    name: str
    given: str = ""
    usual: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """The data of ``--dataset``.

    Attributes:
        dataset: the option's value.
        root: the file or folder; None: a data set of the Hugging Face hub.
        files: the data files in it, in order of name: tables, or texts if there are none.
    """

    dataset: str
    root: Path | None = None
    files: tuple[Path, ...] = ()

    def facts(self) -> list[Any]:
        """Plain data that changes when the source does; for the hub, only the name."""
        if self.root is None:
            return ["hub", self.dataset]
        return [str(self.root), file_stamps(self.files)]


def file_stamps(files: Sequence[Path]) -> list[list[Any]]:
    """Name, size and modification time of every file."""
    stamps: list[list[Any]] = []
    for file in files:
        status = file.stat()
        stamps.append([str(file.absolute()), status.st_size, status.st_mtime_ns])
    return stamps


# The source -----------------------------------------------------------------------------------


def find_source(dataset: str, texts: bool = False) -> Source:
    """The files of ``dataset``, or the hub.

    Args:
        dataset: ``training`` for the job's channel, a path, or a name on the hub.
        texts: use text files if a folder has no tables.

    Raises:
        UserError: there is no such path, or no data file in it.
    """
    path = Path(os.path.expanduser(dataset))  # noqa: PTH111  takes any user's name
    formats = (*READERS, *TEXT_FILES) if texts else tuple(READERS)
    if dataset == CHANNEL:
        path = channel_folder()
    elif not dataset or not path.exists():
        if not hub.NAME.fullmatch(dataset) or path.suffix.lower() in formats:
            similar = hub.similar_path(dataset)
            hint = f"did you mean {similar}?" if similar else "give a path, a hub name or training"
            raise UserError(f"--dataset {dataset!r}: no such file or folder", hint)
        return Source(dataset)
    root = path.absolute()  # not resolved: the name of a link chooses the split
    found = [root] if root.is_file() else sorted(root.rglob("*"))
    found = [file for file in found if file.is_file() and not _is_hidden(file.relative_to(root))]
    files = [file for file in found if file.suffix.lower() in READERS]
    files = [file for file in files if not re.match(NOT_DATA, file.name)]
    if texts and not files:
        files = [file for file in found if file.suffix.lower() in TEXT_FILES]
    if not files:
        raise UserError(
            f"--dataset {dataset!r}: no data file in {root}",
            f"expected one of {', '.join(formats)}",
        )
    return Source(dataset, root, tuple(files))


def channel_folder() -> Path:
    """The folder of the job's channel; UserError outside a job that has one."""
    channel = os.environ.get("SM_CHANNEL_TRAINING", "")
    if not channel:
        raise UserError(
            "--dataset training reads the job's channel, but SM_CHANNEL_TRAINING is not set",
            "pass a path; in a job, add training under [channels]",
        )
    return Path(channel)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


# Its rows -------------------------------------------------------------------------------------


def read(source: Source, columns: Sequence[Column]) -> dict[str, Pieces]:
    """The rows of each split in the source: ``train`` first, then perhaps ``val`` and ``test``.

    A word for validation or test in the name of a file or its folder chooses that split; all other
    files, and a single file, are for training. Numbers that `datasets` declares as classes become
    the names of the classes.

    Raises:
        UserError: the hub has no such data, no file is for training, a file cannot be read, or a
            column is not found; also while iterating.
    """
    if source.root is None:
        return _read_hub(source, columns)
    files: dict[str, list[Path]] = {"train": []}
    for file in source.files:
        files.setdefault(_split_of(file, source.root), []).append(file)
    if not files["train"]:
        others = ", ".join(split for split in files if split != "train")
        raise UserError(
            f"--dataset {source.dataset!r} has files for {others} only",
            "add one for training",
        )
    if source.files[0].suffix.lower() in TEXT_FILES:
        find_columns(["text"], columns, str(source.root))
        parts = DIVIDED if len(source.files) == 1 else 1
        return {split: _read_texts(paths, parts) for split, paths in files.items()}
    return {split: _read_files(paths, columns) for split, paths in files.items()}


def _split_of(file: Path, root: Path) -> str:
    """The split of the last such word in the file's path below ``root``, else ``train``."""
    below = "" if file == root else str(file.relative_to(root).with_suffix(""))
    splits = [SPLITS[word] for word in re.findall("[a-z]+", below.lower()) if word in SPLITS]
    return splits[-1] if splits else "train"


def find_columns(names: Sequence[str], columns: Sequence[Column], table: str) -> list[str]:
    """The name of each of ``columns`` in a table with these ``names``.

    A column without a given name is the one with a usual name, or the only column left.

    Raises:
        UserError: no column matches, or several do.
    """
    chosen: list[str] = []
    for column in columns:
        left = [name for name in names if name not in chosen]
        candidates = [name for name in left if name == column.given]
        if not column.given:
            candidates = [name for name in left if name.lower() in column.usual]
            if not candidates and len(names) == len(columns) and len(left) == 1:
                candidates = left
        if len(candidates) != 1:
            shown = ", ".join(map(repr, names))
            shown = shown if len(shown) <= 400 else f"{shown[:400]}…"
            found = "several match" if candidates else "none matches"
            wanted = repr(column.given) if column.given else f"the {column.name}"
            raise UserError(
                f"{table} has columns [{shown}]: {found} {wanted}",
                f"set --{column.name}_column; in a csv or tsv, row 1 holds the columns' names, "
                "with commas between them in a csv, and tabs in a tsv",
            )
        chosen += candidates
    return chosen


def _read_texts(files: list[Path], parts: int) -> Pieces:
    """Each file as a document, or as ``parts`` documents of similar length, cut between lines."""
    for at in range(0, len(files), PIECE):
        texts = []
        for file in files[at : at + PIECE]:
            try:
                content = file.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                raise _unreadable(file, error) from error
            texts += _divided(content, parts)
        yield Piece([pa.array(texts)], str(files[0].parent), at + 1)


def _divided(content: str, parts: int) -> list[str]:
    if parts == 1:
        return [content]
    lines = content.splitlines(keepends=True)
    ends = np.cumsum([len(line) for line in lines])
    wanted = np.arange(1, parts + 1) * len(content) / parts
    bounds = np.unique([0, *np.searchsorted(ends, wanted - 0.5) + 1])
    return ["".join(lines[start:stop]) for start, stop in itertools.pairwise(bounds)]


def _read_files(files: list[Path], columns: Sequence[Column]) -> Pieces:
    for file in files:
        read_batches = READERS[file.suffix.lower()]
        try:
            batches = read_batches(file, columns)
            yield from _pieces(batches, str(file), first=2 if read_batches is _read_csv else 1)
        except UserError:
            raise
        except Exception as error:  # each reader has exceptions of its own
            raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> UserError:
    # pyarrow quotes the row. It may be confidential, and errors become the job's FailureReason.
    reason = re.sub(r"(columns, got \d+): .*", r"\1", root_cause(error))
    return UserError(
        f"{file} could not be read ({reason})",
        "correct the file, as UTF-8; row numbers do not count blank lines",
    )


def _pieces(batches: Iterable[Any], table: str, first: int = 1) -> Pieces:
    """The rows of record batches or tables that have the needed columns only."""
    number = first
    for batch in batches:
        arrays = _plain_columns(batch)
        for at in range(0, len(batch), PIECE):
            yield Piece([array[at : at + PIECE] for array in arrays], table, number + at)
        number += len(batch)
    if number == first:
        raise UserError(f"{table} has no rows", "add rows, or remove the file")


def _plain_columns(batch: Any) -> list[pa.Array]:
    """The columns, without dictionaries, and with names for the classes of `datasets`."""
    classes = _class_names(batch.schema)
    arrays = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if isinstance(array, pa.DictionaryArray):  # pandas' categories
            array = array.dictionary_decode()
        if name in classes:  # -1: the publisher keeps the class secret
            known = pc.if_else(pc.greater_equal(array, 0), array, None)
            array = pa.array(classes[name]).take(known)
        arrays.append(array)
    return arrays


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of the classes of each column for which `datasets` has stored them."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    import datasets

    features = datasets.Features.from_arrow_schema(schema)
    classes = {name: getattr(features[name], "names", None) for name in schema.names}
    return {name: names for name, names in classes.items() if names}


# Formats: record batches of the needed columns ------------------------------------------------


def _read_csv(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Every column is text: guessing types would change 007 to 7, and NA (Namibia) to null."""
    separator = "\t" if file.suffix.lower() == ".tsv" else ","
    with file.open(newline="", encoding="utf-8-sig") as lines:
        names = next(csv.reader(lines, delimiter=separator), [])
    needed = find_columns(names, columns, str(file))
    yield from pyarrow.csv.open_csv(
        file,
        pyarrow.csv.ReadOptions(block_size=BLOCK, use_threads=False),  # so errors have the row
        pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(needed, pa.string()), include_columns=needed
        ),
    )


def _read_json(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """One record per line, or one list of records.

    pyarrow's reader is not used: it crashes at deep nesting, and makes a column of every key.
    """
    needed: list[str] = []
    first = 1
    for records in _json_pieces(file):
        if not needed:
            names = dict.fromkeys(name for record in records for name in record)
            needed = find_columns([*names], columns, str(file))
        values = {name: [record.get(name) for record in records] for name in needed}
        try:
            yield pa.RecordBatch.from_pydict(values)
        except NO_ARRAY:
            raise _misfit(values, str(file), first) from None
        first += len(records)


def _misfit(columns: dict[str, list[Any]], table: str, first: int) -> UserError:
    """The error for the first value that pyarrow takes into no array; it does not quote it."""
    name = next(name for name in columns if not _is_array(columns[name]))
    values = columns[name]
    # A longer part of the column cannot be an array if a shorter one is none.
    row = bisect.bisect_left(range(len(values)), True, key=lambda i: not _is_array(values[: i + 1]))
    problem = "has another type than in the rows before"
    if not _is_array([values[row]]):
        problem = "is an integer of more than 64 bits, or text with half of a surrogate pair"
    return UserError(
        f"{Piece([], table, first).place(row)}: {name} {problem}",
        "correct it, or write all values of the column as text",
    )


def _is_array(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except NO_ARRAY:
        return False
    return True


def _json_pieces(file: Path) -> Iterator[list[dict[str, Any]]]:
    """Consecutive records: at most PIECE, fewer if they are large."""
    records: list[dict[str, Any]] = []
    size = 0
    for number, length, record in _json_records(file):
        if not isinstance(record, dict):
            raise UserError(f"{file}, record {number} is not an object", "write it as an object")
        records.append(record)
        size += length
        if len(records) == PIECE or size > 4 * BLOCK:
            yield records
            records, size = [], 0
    if records:
        yield records


def _json_records(file: Path) -> Iterator[tuple[int, int, Any]]:
    """Each record with its line number and length; in a list, with its number and 0."""
    with file.open("rb") as stream:
        is_list = stream.read(64).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        stream.seek(0)
        if is_list:
            for number, record in enumerate(json.load(stream), 1):
                yield number, 0, record
            return
        for number in itertools.count(1):
            line = stream.readline(LARGE)
            if not line:
                return
            if line.isspace():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", str(error))  # a JSONDecodeError counts from line 1
                raise UserError(
                    f"{file}, line {number} could not be read as json ({reason})",
                    "write one record in each line, as UTF-8",
                ) from error
            yield number, len(line), record


def _read_parquet(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Reads fewer rows at a time if texts are long; a dictionary's text may be in every row."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    needed = find_columns(table.schema_arrow.names, columns, str(file))
    leaves = map(table.metadata.schema.column, range(table.metadata.num_columns))
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    encoded = pq.ParquetFile(file, read_dictionary=sorted({*needed} & {*texts}))
    for group in range(table.num_row_groups):
        sizes = table.metadata.row_group(group)
        longest = sizes.total_byte_size // max(1, sizes.num_rows)
        for batch in itertools.islice(encoded.iter_batches(1, [group], needed), 1):
            for column in batch.columns:  # with all of its dictionary
                if isinstance(column, pa.DictionaryArray) and column.type.value_type in TEXTS:
                    longest = max(longest, pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
        rows = max(1, min(PIECE, LARGE // max(1, longest)))
        for batch in table.iter_batches(rows, [group], needed):
            # In the order of `needed`, and with the names of classes.
            yield batch.select(needed).replace_schema_metadata(table.schema_arrow.metadata)


def _read_arrow(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """A stream, as datasets.save_to_disk writes, or a file with an index."""
    with pa.memory_map(str(file)) as mapped:
        try:
            reader = pa.ipc.open_stream(mapped)
            batches = iter(reader)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(mapped)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        needed = find_columns(reader.schema.names, columns, str(file))
        for batch in batches:
            yield batch.select(needed)


READERS: dict[str, Callable[[Path, Sequence[Column]], Iterator[pa.RecordBatch]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def _read_hub(source: Source, columns: Sequence[Column]) -> dict[str, Pieces]:
    import datasets

    datasets.disable_progress_bars()
    name = repr(source.dataset)
    similar = hub.similar_path(source.dataset)
    path = f"a path (did you mean {similar}?)" if similar else "a path"
    with hub.errors(f"--dataset {name} is not {path}, and not loaded from the hub"):
        loaded = datasets.load_dataset(source.dataset)
    parts = {SPLITS[split]: rows for split, rows in loaded.items() if split in SPLITS}
    if "train" not in parts:
        raise UserError(
            f"--dataset {name} has splits {', '.join(loaded)}; expected a split train",
            "choose another data set, or save the splits as files and give their folder",
        )
    splits = {}
    for split in [split for split in WORDS if split in parts]:
        needed = find_columns(parts[split].column_names, columns, source.dataset)
        rows = parts[split].select_columns(needed).with_format("arrow")
        splits[split] = _pieces(rows.iter(PIECE), f"{source.dataset} ({split})")
    return splits
