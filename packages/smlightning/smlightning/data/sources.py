"""The rows of ``--dataset``, read by Hugging Face's `datasets`: a file, a folder, or the hub.

    source = find("reviews")                               # csv, jsonl, parquet, arrow and others
    tables = read(source, [Column("text"), Column("label")], cache)
    tables[0].rows                                         # a datasets.Dataset of these columns

Strings stay as they are: 007 and NA are text. Named builders of `datasets` read local files: they
run no code of a data set, and need no network.
"""

import functools
import glob
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import ParquetFragmentScanOptions

from smlightning import hub
from smlightning.data import folder
from smlightning.data.channel import CHANNEL, channel_folder
from smlightning.data.folder import SPLIT_COLUMNS, SPLITS, builder_of
from smlightning.errors import UserError, is_disk_full, root_cause
from smlightning.files import ensure_dir

# Errors of `datasets`, pandas and pyarrow about a file without rows.
NO_ROWS = "corresponds to no data|No columns to parse|StopIteration|BatchSize .* got 0"
JOINED = 10  # lines of a text that look like rows of a csv
EQUAL = 10  # rows that are not equal in two files by accident
HEAD = 10_000  # records of a json file whose keys are its columns
STORED = 10_000  # rows that `datasets` stores at a time, at most
TEXT = datasets.Value("string")
SPLIT = "split of the row"  # a column of the rows until they are divided
FLAG = "is_"  # in front of the name of a split, the name of a column: true, false, 1, 0
YES, NO = ("true", "1", "1.0", "yes", "t", "y"), ("false", "0", "0.0", "no", "f", "n")

# The names of a file's columns → those to keep, and their new names.
Choose = Callable[[Sequence[str]], dict[str, str]]


@dataclass(frozen=True)
class Column:
    """A column that is needed.

    Attributes:
        name: its name in errors and in the rows; its option is ``--<name>_column``.
        given: the option's value, its name in the table; empty: search its usual names.
        usual: its usual names, in lower case.
        optional: whether files for validation and test may lack it.
        found: its name in the first file; `read` sets it.
    """

    name: str
    given: str = ""
    usual: tuple[str, ...] = ()
    optional: bool = False
    found: str = ""


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
        numbers: of the rows, counted from 0, if the file has others.
    """

    split: str
    name: str
    rows: datasets.Dataset
    first: int = 1
    numbers: np.ndarray | None = None

    def place(self, row: int) -> str:
        """The file and number of a row, for an error."""
        number = row if self.numbers is None else self.numbers[row]
        return f"{self.name}, row {self.first + number}"


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
    if not root.is_dir():
        folder.check_known(root)
        return Source(dataset, root, (root,))
    files = folder.data_files(root)
    if not files:
        problem = f"--dataset {dataset!r} has no data file: {root}"
        raise UserError(problem, f"write {folder.FORMATS}")
    return Source(dataset, root, tuple(files))


# Their rows -----------------------------------------------------------------------------------


def read(source: Source, columns: Sequence[Column], cache: Path) -> list[Table]:
    """The tables of a source, those for training first.

    A word for validation or test in the name of a file or its folder chooses that split, and so
    does one in a column of SPLIT_COLUMNS; all other files, and a single file, are for training.
    Numbers become text, and those that `datasets` declares as classes become the names of the
    classes.

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
        tables = _without_empty(_read_files(source, source.root, columns, cache))
    tables.sort(key=lambda table: SPLITS.index(table.split))
    if not tables or tables[0].split != "train":
        others = ", ".join(dict.fromkeys(table.split for table in tables))
        raise UserError(
            f"--dataset {source.dataset!r} has {others or 'other'} data only", "add training data"
        )
    _check_doubled(tables)
    return tables


def _read_files(
    source: Source, root: Path, columns: Sequence[Column], cache: Path
) -> Iterator[Table]:
    """The tables of all files. Those for training come first: their columns have the same names."""

    def order(file: Path) -> tuple[int, bool]:
        split = folder.split_of(file, root) or "train"
        return SPLITS.index(split), "submission" in file.name.lower()

    for file in sorted(source.files, key=order):
        try:
            tables, columns = _read_file(file, root, columns, cache)
        except MissingColumn as error:
            if "submission" not in file.name.lower() or file == root:
                raise
            _warn(f"{error.problem}; it is left out as a form for the answers of a competition")
        else:
            yield from tables


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _without_empty(found: Iterator[Table]) -> list[Table]:
    """The tables with rows: Spark writes empty files. UserError if a split has only empty ones."""
    tables = [*found]
    kept = [table for table in tables if len(table.rows)]
    empty = [table for table in tables if not len(table.rows)]
    for table in empty:
        if table.split not in {other.split for other in kept}:
            raise UserError(f"{table.name} has no rows", "add rows, or remove the file")
    if empty:
        _warn(f"{len(empty)} of {len(tables)} files have no rows, such as {empty[0].name}")
    return kept


def _check_doubled(tables: Sequence[Table]) -> None:
    """Reject a second copy of a file in a split."""
    seen: dict[str, Table] = {}
    for table in tables:
        rows = table.rows
        if len(rows) < EQUAL:
            continue
        key = json.dumps([table.split, len(rows), rows[0], rows[-1]])
        other = seen.setdefault(key, table)
        if other is not table and all(
            map(pa.ChunkedArray.equals, other.rows.data.columns, rows.data.columns)
        ):
            raise UserError(f"{other.name} and {table.name} have the same rows", "remove one")


def _read_file(
    file: Path, root: Path, columns: Sequence[Column], cache: Path
) -> tuple[list[Table], Sequence[Column]]:
    """The file's tables, and the columns with their names in it."""
    keys = folder.partitions(file, root)
    named = folder.split_of(file, root)
    split = named or "train"
    chosen: dict[str, str] = {}  # new names, and those in the file or in ``keys``

    def choose(names: Sequence[str]) -> dict[str, str]:
        every = [*names, *(key for key in keys if key not in names)]
        found = find_columns(every, columns, str(file), split != "train")
        chosen.update(zip((column.name for column in columns), found, strict=True))
        free = [name for name in names if name not in found]
        splits = [name for name in free if _names_splits(name.lower())]
        if sum(name.lower().startswith(FLAG) for name in splits) > 1:
            problem = f"{file} has several columns for the split: {', '.join(splits)}"
            raise UserError(problem, f"write one column split, with {', '.join(SPLITS)}")
        if splits:
            chosen[SPLIT] = splits[0]
        return {name: new for new, name in chosen.items() if name in names}

    with tempfile.TemporaryDirectory(dir=ensure_dir(cache)) as temporary:
        try:
            plain = folder.unpacked(file, Path(temporary))
            folder.check_format(plain, file)
            with warnings.catch_warnings():
                # of rows with more fields than the header
                warnings.simplefilter("error", pd.errors.ParserWarning)
                rows = READERS[builder_of(file)](plain, file, choose, cache)
        except UserError:
            raise
        except Exception as error:  # the readers raise exceptions of many classes
            if is_disk_full(error):
                raise
            reason = root_cause(error)
            if re.search(NO_ROWS, reason):
                empty: dict[str, list[str]] = {column.name: [] for column in columns}
                return [Table(split, str(file), datasets.Dataset.from_dict(empty))], columns
            raise UserError(*_unread(file, reason)) from error
    rows = _as_text(rows, str(file))
    for new, name in chosen.items():
        if new not in rows.column_names:
            values = pa.array([keys.get(name)] * len(rows), pa.string())
            rows = rows.add_column(new, values)
    first = 2 if builder_of(file) == "csv" else 1
    table = Table(split, str(file), rows, first)
    known = [replace(column, found=chosen[column.name] or column.found) for column in columns]
    return _divided(table, chosen.get(SPLIT, ""), named), known


def _names_splits(name: str) -> bool:
    """Whether a column with this name, in lower case, may say the split of each row."""
    return name in SPLIT_COLUMNS or (name[:3] == FLAG and name[3:] in folder.WORDS)


def _unread(file: Path, reason: str) -> tuple[str, str]:
    """Problem and hint for an error of a reader.

    The text of a row may be confidential, and errors become the job's FailureReason.
    """
    reason = re.sub("parse string: .* as a", "parse a text as a", reason)
    if "Length of header" in reason:
        reason = "rows have more fields than the header, row 1"
    return f"{file} could not be read ({reason})", "correct the file, or write it again"


def _divided(table: Table, name: str, named: str) -> list[Table]:
    """A table for each split that the column SPLIT names.

    Args:
        name: of this column in the file, or "".
        named: the split that the file's name has, or "".
    """
    if not name:
        return [table]
    wanted = [name for name in table.rows.column_names if name != SPLIT]
    kept = table.rows.select_columns(wanted)
    column = table.rows.data.column(SPLIT)
    splits = {value: _split_of_row(value, name.lower()) for value in column.unique().to_pylist()}
    if not any(splits.values()):
        if "split" in name.lower() or name.lower().startswith(FLAG):
            _warn(f"{table.name}: the column {name!r} holds no names of splits and is not used")
        return [table._replace(rows=kept)]
    tables = []
    for split in dict.fromkeys(splits.values()):
        values = [value for value in splits if splits[value] == split]
        numbers = np.flatnonzero(pc.is_in(column, pa.array(values, pa.string())))
        if not split:
            problem = f"{table.place(numbers[0])}: the column {name!r} does not name a split"
            raise UserError(problem, f"write {', '.join(SPLITS)} there, or rename the column")
        rows = kept
        if len(numbers) < len(kept):
            rows = kept.with_format("arrow").select(numbers).flatten_indices().with_format(None)
        tables.append(table._replace(split=split, rows=rows, numbers=numbers))
    if named and named not in splits.values():
        problem = f"{table.name} is for {named} by its name, and its column {name!r} differs"
        raise UserError(problem, "rename the file or the column")
    return tables


def _split_of_row(value: str | None, name: str) -> str:
    """The split that a value of a column means, also of fastai's ``is_valid``; "" if none."""
    if name in SPLIT_COLUMNS:
        return folder.split_in(value or "") if len((value or "").split()) < 3 else ""
    flagged = folder.WORDS[name.removeprefix(FLAG)]
    others = "test" if flagged == "train" else "train"
    meant = {**dict.fromkeys(YES, flagged), **dict.fromkeys(NO, others)}
    return meant.get((value or "").lower(), "")


# The formats ----------------------------------------------------------------------------------


def _read_csv(plain: Path, file: Path, choose: Choose, cache: Path) -> datasets.Dataset:
    """Every column is text: guessing types would change 007 to 7, and NA (Namibia) to null."""
    separator = "," if folder.suffix_of(file) == ".csv" else "\t"
    options: dict[str, Any] = {"sep": separator, "keep_default_na": False, "na_filter": False}
    header = pd.read_csv(plain, header=None, nrows=1, dtype=str, **options)
    names = header.iloc[0].tolist()
    chosen = choose(names)
    numbers = [str(number) for number in range(len(names))]  # names may occur twice
    features = datasets.Features(dict.fromkeys(numbers, TEXT))
    options |= {"names": numbers, "header": 0, "index_col": False, "features": features}
    rows = _load("csv", plain, cache, **options)
    _check_quotes(rows, file, separator)
    new_names = {str(names.index(name)): new for name, new in chosen.items()}
    rows = _chosen(rows, lambda _: new_names)
    equal = [pc.equal(rows.data.column(new), name) for name, new in chosen.items()]
    row = pc.index(functools.reduce(pc.and_, equal), True).as_py()
    if row >= 0 and len(equal) > 1:
        raise UserError(f"{file}, row {row + 2} repeats the names of the columns", "remove it")
    return rows


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
        _warn(f"{problem}; if it is not one text, {hint}")
        return


def _read_json(plain: Path, file: Path, choose: Choose, cache: Path) -> datasets.Dataset:
    """Records, a line each or in a list. A type that is guessed would make dates of texts."""
    lines = _load("text", plain, cache, encoding="utf-8-sig", features=datasets.Features(text=TEXT))
    unit = "line"
    if next((line for line in lines["text"] if line.strip()), "").lstrip().startswith("["):
        unit = "record"
        records = _parsed(plain.read_text("utf-8-sig"), str(file))
        lines = datasets.Dataset.from_dict({"text": [json.dumps(record) for record in records]})

    def parse(texts: Sequence[str], numbers: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
        for text, number in zip(texts, numbers, strict=True):
            if not text.strip():
                continue
            place = f"{file}, {unit} {number + 1}"
            record = _parsed(text, place)
            if not isinstance(record, dict):
                problem = f"{place} is no JSON object"
                raise UserError(problem, "write one record per line, or a list of records")
            if "_task_hash" in record and record.get("answer", "accept") != "accept":
                raise UserError(f"{place}: Prodigy's answer is not accept", "remove such records")
            yield place, record

    head = lines["text"][:HEAD]
    keys = {key: None for _, record in parse(head, range(len(head))) for key in record}
    if not keys:
        raise ValueError("No columns to parse")
    chosen = choose([*keys])

    def values(texts: Sequence[str], numbers: Sequence[int]) -> dict[str, list[str | None]]:
        columns: dict[str, list[str | None]] = {new: [] for new in chosen.values()}
        for place, record in parse(texts, numbers):
            for name, new in chosen.items():
                value = record.get(name)
                if isinstance(value, list | dict):
                    kind = f"{place}: the {new} is a {type(value).__name__}"
                    raise UserError(*_no_text(kind, new))
                columns[new].append(_text_of(value, None))
        return columns

    features = datasets.Features(dict.fromkeys(chosen.values(), TEXT))
    settings: dict[str, Any] = {"input_columns": ["text"], "remove_columns": ["text"]}
    settings |= {"batched": True, "with_indices": True, "batch_size": HEAD, "features": features}
    return lines.map(values, **settings)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise UserError(
            f"{place}{line} is not JSON ({error.msg})",
            "write one record per line, or a list of records, each of them whole",
        ) from None


def _read_parquet(plain: Path, file: Path, choose: Choose, cache: Path) -> datasets.Dataset:
    chosen = choose(pq.read_schema(plain).names)
    # Otherwise all columns of the file stay in memory until it is read (pyarrow 25.0).
    scan = ParquetFragmentScanOptions(pre_buffer=False)
    rows = _load("parquet", plain, cache, columns=[*chosen], fragment_scan_options=scan)
    return _chosen(rows, lambda _: chosen)


def _read_arrow(plain: Path, file: Path, choose: Choose, cache: Path) -> datasets.Dataset:
    return _chosen(_load("arrow", plain, cache), choose)


READERS = {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet, "arrow": _read_arrow}


def _load(kind: str, file: Path, cache: Path, **options: Any) -> datasets.Dataset:
    """The rows of a file. `datasets` takes a name for a pattern, and ``::`` for a chain of them.

    Stored in stretches of at most STORED rows: what is known of each stays in memory, some 2 kB.
    """
    if "::" in str(file):
        raise UserError(f"{file}: `datasets` cannot read a path with '::'", "rename it")
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # a connection for each file, of up to 5 s
    return datasets.load_dataset(
        kind,
        data_files=glob.escape(str(file)),
        split="train",
        cache_dir=str(cache),
        writer_batch_size=STORED,
        **options,
    )


def _chosen(rows: datasets.Dataset, choose: Choose) -> datasets.Dataset:
    """Only the needed columns, by their names in `Column`."""
    names = choose(rows.column_names)
    rows = rows.select_columns([*names])
    return rows.rename_columns({name: new for name, new in names.items() if name != new})


def _read_hub(dataset: str, columns: Sequence[Column]) -> list[Table]:
    similar = hub.similar_path(dataset)
    path = f"a path (did you mean {similar}?)" if similar else "a path"
    with hub.errors(f"--dataset {dataset!r} is not {path}, and not loaded from the hub"):
        loaded = datasets.load_dataset(dataset)
    tables = []
    for split, rows in loaded.items():
        name = f"{dataset} ({split})"
        if split not in folder.WORDS:
            _warn(f"{name} is no split for training, validation or test, and is left out")
            continue

        def choose(names: Sequence[str], name: str = name) -> dict[str, str]:
            found = find_columns(names, columns, name)
            return dict(zip(found, (column.name for column in columns), strict=True))

        tables.append(Table(folder.WORDS[split], name, _as_text(_chosen(rows, choose), name)))
    return tables


class MissingColumn(UserError):
    """A table has no column for one that is needed, or several."""


def find_columns(
    names: Sequence[str], columns: Sequence[Column], table: str, optional: bool = False
) -> list[str]:
    """The name of each of ``columns`` in a table with these ``names``.

    A column without a given name is the one with its name in the first file, else the one with a
    usual name, or, in the first file, the only column left.

    Args:
        optional: "" stands for an optional column that is not found.

    Raises:
        MissingColumn: no column matches, or several do.
    """
    chosen: list[str] = []
    for column in columns:
        left = [name for name in names if name not in chosen]
        wanted = column.given or column.found
        candidates = [name for name in left if name == wanted]
        if not candidates and not column.given:
            candidates = [name for name in left if name.lower() in column.usual]
            is_last = len(names) == len(columns) and len(left) == 1
            if not candidates and not column.found and is_last:
                candidates = left
        if not candidates and optional and column.optional:
            candidates = [""]
        if len(candidates) != 1:
            raise MissingColumn(*_unfound(names, candidates, column, table))
        chosen += candidates
    return chosen


def _unfound(
    names: Sequence[str], candidates: Sequence[str], column: Column, table: str
) -> tuple[str, str]:
    """Problem and hint for a column that is not found."""
    shown = ", ".join(map(repr, names))
    shown = shown if len(shown) <= 400 else f"{shown[:400]}…"
    found = "several match" if candidates else "none matches"
    wanted = repr(column.given) if column.given else f"the {column.name}"
    hint = f"set --{column.name}_column"
    if column.found:
        hint = f"name it {column.found!r}, as in the first file, or move the file out of the folder"
    elif column.given:
        hint += " to another one, or move a file without it out of the folder"
    elif builder_of(Path(table)) == "csv":
        hint += "; in a csv or tsv, row 1 holds the columns' names"
    if len(set(candidates)) < len(candidates):
        hint = f"write {candidates[0]!r} once in row 1, and other names for other columns"
    elif len(names) == 1 and re.search(r"[;\t|,]", names[0]):
        hint = "separate columns with commas in a csv, and with tabs in a tsv"
    return f"{table} has columns [{shown}]: {found} {wanted}", hint


# Texts ----------------------------------------------------------------------------------------


def _as_text(rows: datasets.Dataset, table: str) -> datasets.Dataset:
    """All columns as strings; UserError if one holds neither texts nor numbers."""
    for name, feature in rows.features.items():
        if feature == TEXT:
            rows.data.column(name).validate(full=True)  # UTF-8
            continue
        kind = str(getattr(feature, "dtype", None))
        if not re.fullmatch("null|bool|u?int.*|float.*|large_string|string_view", kind):
            raise UserError(*_no_text(f"{table}: the {name} is {str(feature)[:40]}", name))
        rows = rows.map(
            lambda values, name, classes: {name: [_text_of(value, classes) for value in values]},
            input_columns=[name],
            batched=True,
            fn_kwargs={"name": name, "classes": getattr(feature, "names", None)},
            features=datasets.Features({**rows.features, name: TEXT}),
        )
    return rows


def _no_text(problem: str, name: str) -> tuple[str, str]:
    hint = f"choose the right column with --{name}_column, or write it as text"
    hint = "rename its column, or write it as text" if name == SPLIT else hint
    return f"{problem}; expected text or a number", hint


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
