"""The rows of ``--dataset``, read by Hugging Face's `datasets`: a file, a folder, or the hub.

    source = find("reviews")                               # csv, tsv, jsonl, json, parquet, arrow
    tables = read(source, [Column("text"), Column("label")], cache)
    tables[0].rows                                         # a datasets.Dataset of these columns

Strings stay as they are: 007 and NA are text. Named builders of `datasets` read local files: they
run no code of a data set, and need no network.
"""

import glob
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.data_files import SPLIT_KEYWORDS

from smlightning import hub
from smlightning.data.channel import CHANNEL, channel_folder
from smlightning.errors import UserError, is_disk_full, root_cause

BUILDERS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
PACKED = (".gz", ".bz2", ".xz", ".zst")  # `datasets` unpacks them
ARCHIVES = (".zip", ".tar", ".7z", ".lz4")
# Files that datasets.save_to_disk writes next to the data.
NOT_DATA = re.compile(r"cache-.*\.arrow|(state|dataset_info|dataset_dict)\.json")
# Errors of `datasets`, pandas and pyarrow about a file without rows.
NO_ROWS = "corresponds to no data|No columns to parse|StopIteration|BatchSize .* got 0"
JOINED = 10  # lines of a text that look like rows of a csv
BLOCK = 2**20  # bytes of a file that are searched at a time
SPLITS = ("train", "validation", "test")
WORDS = {  # in the name of a file, a folder or a split of the hub
    word + ending: str(split)
    for split, words in SPLIT_KEYWORDS.items()
    for word in words
    for ending in ("", "set", "data")
}
TEXT = datasets.Value("string")


@dataclass(frozen=True)
class Column:
    """A column that is needed.

    Attributes:
        name: its name in errors and in the rows; its option is ``--<name>_column``.
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
        files: the data files in it, in order of name.
    """

    dataset: str
    root: Path | None = None
    files: tuple[Path, ...] = ()

    def facts(self) -> list[Any]:
        """Plain data that changes when the source does; for the hub, only the name."""
        return ["hub", self.dataset] if self.root is None else file_stamps(self.files)


class Table(NamedTuple):
    """The rows of one file, or of one split of the hub.

    Attributes:
        split: one of SPLITS.
        name: of the file or the data set, for errors.
        rows: of the needed columns, all of them text.
        first: number of the first row. The header of a csv is row 1, as in a spreadsheet.
    """

    split: str
    name: str
    rows: datasets.Dataset
    first: int = 1

    def place(self, row: int) -> str:
        """The file and number of a row, for an error."""
        return f"{self.name}, row {self.first + row}"


def file_stamps(files: Sequence[Path]) -> list[Any]:
    """Name, size and modification time of every file."""
    stamps = [(file, file.stat()) for file in files]
    return [[str(file.absolute()), at.st_size, at.st_mtime_ns] for file, at in stamps]


# The files ------------------------------------------------------------------------------------


def find(dataset: str) -> Source:
    """The files of ``dataset``, or the hub.

    Args:
        dataset: ``training`` for the job's channel, a path, or a name on the hub.

    Raises:
        UserError: there is no such path, or no data file in it.
    """
    path = Path(os.path.expanduser(dataset))  # noqa: PTH111  takes any user's name
    if dataset == CHANNEL:
        path = channel_folder()
    elif not dataset or not path.exists():
        if not hub.NAME.fullmatch(dataset) or builder_of(path):
            similar = hub.similar_path(dataset)
            hint = f"did you mean {similar}?" if similar else "give a path, a hub name or training"
            raise UserError(f"--dataset {dataset!r}: no such file or folder", hint)
        return Source(dataset)
    root = path.absolute()  # not resolved: the name of a link chooses the split
    found = [root] if root.is_file() else sorted(root.rglob("*"))
    found = [file for file in found if file.is_file() and not _is_hidden(file.relative_to(root))]
    files = [file for file in found if builder_of(file) and not NOT_DATA.fullmatch(file.name)]
    archives = [file for file in found if file.suffix.lower() in ARCHIVES]
    if archives or not files:
        problem = f"is an archive: {archives[0]}" if archives else f"has no data file: {root}"
        expected = f"{', '.join(BUILDERS)}, also with {', '.join(PACKED)}"
        raise UserError(f"--dataset {dataset!r} {problem}", f"unpack or write {expected}")
    return Source(dataset, root, tuple(files))


def builder_of(file: Path) -> str:
    """The builder of `datasets` for a file; "" if it is no table."""
    return BUILDERS.get(_suffix(file), "")


def _suffix(file: Path) -> str:
    """The suffix of a file's format: ``.csv`` also of a.csv.gz."""
    lower = Path(file.name.lower())
    return Path(lower.stem).suffix if lower.suffix in PACKED else lower.suffix


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _split_of(file: Path, root: Path) -> str:
    """The split of the last such word in the file's path below ``root``, else ``train``."""
    below = "" if file == root else str(file.relative_to(root).with_suffix(""))
    splits = [WORDS[word] for word in re.findall("[a-z]+", below.lower()) if word in WORDS]
    return splits[-1] if splits else "train"


# Their rows -----------------------------------------------------------------------------------


def read(source: Source, columns: Sequence[Column], cache: Path) -> list[Table]:
    """The tables of a source, those for training first.

    A word for validation or test in the name of a file or its folder chooses that split; all other
    files, and a single file, are for training. Numbers become text, and those that `datasets`
    declares as classes become the names of the classes.

    Args:
        columns: to read; each of them needs a text in every row.
        cache: a folder for what `datasets` writes.

    Raises:
        UserError: the hub has no such data, no table is for training, a file cannot be read, or a
            column is not found.
    """
    if source.root is None:
        tables = _read_hub(source.dataset, columns)
    else:
        tables = [_read_file(file, source.root, columns, cache) for file in source.files]
    tables.sort(key=lambda table: SPLITS.index(table.split))
    if not tables or tables[0].split != "train":
        others = ", ".join(dict.fromkeys(table.split for table in tables))
        raise UserError(
            f"--dataset {source.dataset!r} has {others or 'other'} data only", "add training data"
        )
    return tables


def _read_file(file: Path, root: Path, columns: Sequence[Column], cache: Path) -> Table:
    is_csv = builder_of(file) == "csv"
    split, first = _split_of(file, root), 2 if is_csv else 1
    try:
        with warnings.catch_warnings():
            # of rows with more fields than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            rows = _read_csv(file, columns, cache) if is_csv else _read_other(file, columns, cache)
        return Table(split, str(file), _as_text(rows, str(file)), first)
    except UserError:
        raise
    except Exception as error:  # each reader has exceptions of its own
        if is_disk_full(error):
            raise
        reason = root_cause(error)
        if "Length of header" in reason:
            reason = "rows have more fields than the header, row 1"
        if re.search(NO_ROWS, reason):
            raise UserError(f"{file} has no rows", "add rows, or remove the file") from None
        # The text of a row may be confidential, and errors become the job's FailureReason.
        reason = re.sub("parse string: .* as a", "parse a text as a", reason)
        raise UserError(
            f"{file} could not be read ({reason})", "correct the file, as UTF-8"
        ) from error


def _read_csv(file: Path, columns: Sequence[Column], cache: Path) -> datasets.Dataset:
    """Every column is text: guessing types would change 007 to 7, and NA (Namibia) to null."""
    separator = "\t" if _suffix(file) == ".tsv" else ","
    plain: dict[str, Any] = {"sep": separator, "keep_default_na": False, "na_filter": False}
    _check_bytes(file)
    header = pd.read_csv(file, header=None, nrows=1, dtype=str, **plain)
    names = header.iloc[0].tolist()
    chosen = find_columns(names, columns, str(file))
    numbers = [str(number) for number in range(len(names))]  # names may occur twice
    features = datasets.Features(dict.fromkeys(numbers, TEXT))
    rows = _load(file, cache, names=numbers, header=0, index_col=False, features=features, **plain)
    _check_quotes(rows, file, separator)
    kept = [str(names.index(name)) for name in chosen]
    wanted = [column.name for column in columns]
    return rows.select_columns(kept).rename_columns(dict(zip(kept, wanted, strict=True)))


def _check_bytes(file: Path) -> None:
    """Reject a file with zero bytes: pandas would cut a text there."""
    if file.suffix.lower() in PACKED:
        return
    with file.open("rb") as content:
        if any(b"\0" in block for block in iter(lambda: content.read(BLOCK), b"")):
            raise UserError(f"{file} holds a zero byte", "write the texts without it, as UTF-8")


def _check_quotes(rows: datasets.Dataset, file: Path, separator: str) -> None:
    """Find a quotation mark that has joined rows.

    A text with tabs and line ends is rejected. In a csv, commas and line ends are usual: a text of
    JOINED lines that have as many commas as row 1 is reported.
    """
    line = rf"\n[^,\n]*(,[^,\n]*){{{rows.num_columns - 1}}}"
    joined = {"\t": r"(?s)\t.*\n|\n.*\t", ",": f"({line}){{{JOINED}}}"}[separator]
    for column in rows.data.columns:
        row = first_row(column, lambda chunk: pc.match_substring_regex(chunk, joined))
        if row is None:
            continue
        problem = f"{file}, row {row + 2}: a field in quotation marks goes over several rows"
        hint = 'write a quotation mark as two, in a quoted field: "say ""so"""'
        if separator == "\t":
            raise UserError(problem, hint)
        print(f"warning: {problem}; if it is not one text, {hint}", file=sys.stderr, flush=True)
        return


def _read_other(file: Path, columns: Sequence[Column], cache: Path) -> datasets.Dataset:
    options = {}
    if builder_of(file) == "parquet":
        names = pq.read_schema(file).names
        options["columns"] = find_columns(names, columns, str(file))
    return _chosen(_load(file, cache, **options), columns, str(file))


def _load(file: Path, cache: Path, **options: Any) -> datasets.Dataset:
    """The rows of a file. `datasets` takes a name for a pattern, and ``::`` for a chain of them."""
    if "::" in str(file):
        raise UserError(f"{file}: `datasets` cannot read a path with '::'", "rename it")
    kind, escaped = builder_of(file), glob.escape(str(file))
    return datasets.load_dataset(
        kind, data_files=escaped, split="train", cache_dir=str(cache), **options
    )


def _read_hub(dataset: str, columns: Sequence[Column]) -> list[Table]:
    similar = hub.similar_path(dataset)
    path = f"a path (did you mean {similar}?)" if similar else "a path"
    with hub.errors(f"--dataset {dataset!r} is not {path}, and not loaded from the hub"):
        loaded = datasets.load_dataset(dataset)
    tables = []
    for split, rows in loaded.items():
        name = f"{dataset} ({split})"
        if split in WORDS:
            chosen = _as_text(_chosen(rows, columns, name), name)
            tables.append(Table(WORDS[split], name, chosen))
    return tables


def _chosen(rows: datasets.Dataset, columns: Sequence[Column], table: str) -> datasets.Dataset:
    """Only the needed columns, by their names in `Column`."""
    found = find_columns(rows.column_names, columns, table)
    names = {name: column.name for name, column in zip(found, columns, strict=True)}
    rows = rows.select_columns([*names])
    return rows.rename_columns({name: new for name, new in names.items() if name != new})


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
            hint = f"set --{column.name}_column; in a csv or tsv, row 1 holds the columns' names"
            if len(set(candidates)) < len(candidates):
                hint = f"write {candidates[0]!r} once in row 1, and other names for other columns"
            elif len(names) == 1 and re.search(r"[;\t|,]", names[0]):
                hint = "separate columns with commas in a csv, and with tabs in a tsv"
            raise UserError(f"{table} has columns [{shown}]: {found} {wanted}", hint)
        chosen += candidates
    return chosen


# Texts ----------------------------------------------------------------------------------------


def _as_text(rows: datasets.Dataset, table: str) -> datasets.Dataset:
    """All columns as strings; UserError if one holds neither texts nor numbers."""
    for name, feature in rows.features.items():
        if feature == TEXT:
            rows.data.column(name).validate(full=True)  # UTF-8
            continue
        kind = str(getattr(feature, "dtype", None))
        if not re.fullmatch("null|bool|u?int.*|float.*|large_string|string_view", kind):
            raise UserError(
                f"{table}: the {name} is {str(feature)[:40]}; expected text or a number",
                f"choose the right column with --{name}_column, or write it as text",
            )
        rows = rows.map(
            lambda values, name, classes: {name: [_text_of(value, classes) for value in values]},
            input_columns=[name],
            batched=True,
            fn_kwargs={"name": name, "classes": getattr(feature, "names", None)},
            features=datasets.Features({**rows.features, name: TEXT}),
        )
    return rows


def _text_of(value: Any, classes: list[str] | None) -> str | None:
    if value is None or value != value:  # NaN
        return None
    if classes:
        return classes[value] if value >= 0 else None  # -1: the publisher keeps the class secret
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes 1.0 of 1 if another value is missing
    return str(value)


def check_filled(table: Table, name: str, stripped: bool = False) -> None:
    """Raise UserError for the first row without a text in the column ``name``.

    Args:
        stripped: whether blanks are no text.
    """

    def is_empty(chunk: pa.Array) -> pa.Array:
        texts = pc.utf8_trim_whitespace(chunk) if stripped else chunk
        return pc.equal(pc.fill_null(pc.binary_length(texts), 0), 0)

    row = first_row(table.rows.data.column(name), is_empty)
    if row is not None:
        raise UserError(
            f"{table.place(row)}: the {name} is empty; expected text", "correct or remove the row"
        )


def first_row(column: pa.ChunkedArray, test: Any) -> int | None:
    """The number of the first row for which ``test``, of an array, is true."""
    before = 0
    for chunk in column.chunks:
        row = pc.index(test(chunk), True).as_py()
        if row >= 0:
            return before + row
        before += len(chunk)
    return None
