"""Tables read as columns: csv, tsv, jsonl, parquet and arrow files, or data sets of the hub.

    source = find_source("reviews")                # the files that --dataset names
    splits = read(source, [Column("text")], scratch)
    for (texts,) in splits["train"]:               # a pyarrow array per column, at most PIECE rows
        ...

Memory does not grow with the data, except for a list in a json file. This file knows which columns
are needed, not what they mean.
"""

import codecs
import contextlib
import csv
import glob
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from smlightning import hub
from smlightning.errors import UserError, root_cause
from smlightning.terminal import one_line

CHANNEL = "training"  # as --dataset: the job's channel of that name

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# What datasets.save_to_disk writes beside the data, and files that a dot hides.
NOT_DATA = r"\.|cache-.*\.arrow|(state|dataset_info|dataset_dict)\.json"

# Words in the name of a file, a folder or a split of the hub, and the split that each means.
WORDS = {
    "train": ("train", "training"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
SPLITS = {
    word + ending: split
    for split, words in WORDS.items()
    for word in words
    for ending in ("", "set", "data")
}
AMBIGUOUS = ("eval", "evaluation", "evalset", "evaldata")  # validation to some, the test to others

# Words that may mean one of them, or none.
NEAR = ("holdout", "heldout", "validate", "validated", "validating", "evaluate", "evaluating")
MISSING = ("null", "nan", "none", "n/a", "#n/a")  # texts that stand for no value, or for themselves

PIECE = 8192  # rows
BLOCK = 2 << 20  # bytes of csv that pyarrow parses at a time; a longer row is refused
SEARCHED = 1 << 18  # bytes of csv that are searched for stray marks at a time
# A quoted field of a csv: from a mark that begins a field to the one that ends it, or to the text's
# end. Two marks together stand for one.
QUOTED = re.compile(rb'"(?<=[,\r\n]")[^"]*+(?:""[^"]*+)*+(?:(")|\Z)')
ENDS = (b",", b"\r", b"\n", b"")  # of a field
WIDEST = 100  # columns of a tsv searched for swallowed rows: RE2 repeats at most 1,000 times

TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
LARGE = 1 << 26  # bytes of a piece, or of a line of json
JSON_BLANKS = re.compile(r"[ \t\r\n]*")  # RFC 8259, section 2
JSON_KINDS = {
    type(None): "null",
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}

Pieces = Iterator[list[pa.Array]]
"""Consecutive rows of a split: an array per column, all of one length, at most PIECE."""


@dataclass(frozen=True)
class Column:
    """A column that is needed.

    Attributes:
        name: what errors call it; its option is ``--<name>_column``.
        given: the option's value: its name in the table; empty: found by its usual names.
        usual: names that it usually has, in lower case.
    """

    name: str
    given: str = ""
    usual: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """What ``--dataset`` names.

    Attributes:
        dataset: the option's value.
        builtin: names that the caller reads without this file; errors offer them.
        root: the file or folder; None: a data set of the Hugging Face hub.
        files: the data files in it, in order of name.
    """

    dataset: str
    builtin: tuple[str, ...] = ()
    root: Path | None = None
    files: tuple[Path, ...] = ()

    def facts(self) -> list[Any]:
        """Plain data that changes when the source does; of the hub, the name alone."""
        if self.root is None:
            return ["hub", self.dataset]
        return [str(self.root), file_stamps(self.files)]


def file_stamps(files: Sequence[Path]) -> list[list[Any]]:
    """The name, size and time of change of every file."""
    stamps: list[list[Any]] = []
    for file in files:
        status = file.stat()
        stamps.append([str(file.absolute()), status.st_size, status.st_mtime_ns])
    return stamps


# The source -----------------------------------------------------------------------------------


def find_source(dataset: str, builtin: Sequence[str] = ()) -> Source:
    """The files that ``dataset`` names, or the hub.

    Args:
        dataset: ``training`` for the job's channel, a path, or a name on the hub.
        builtin: names that the caller reads without this file; errors offer them.

    Raises:
        UserError: there is no such path, or no data file in it, or not one that is to be read.
    """
    root = locate(dataset, builtin)
    if root is None:
        return Source(dataset, tuple(builtin))
    return Source(dataset, tuple(builtin), root, tuple(_data_files(root, dataset)))


def locate(dataset: str, builtin: Sequence[str] = ()) -> Path | None:
    """The file or folder that ``dataset`` names; None: a name on the hub.

    Raises:
        UserError: there is no such path, and it is no name on the hub either.
    """
    path = Path(dataset).expanduser()
    if dataset == CHANNEL:
        channel = os.environ.get("SM_CHANNEL_TRAINING", "")
        if not channel:
            raise UserError(
                "--dataset training reads the job's channel, but SM_CHANNEL_TRAINING is not set",
                "give a path",
            )
        path = Path(channel)
    elif not dataset.strip() or not path.exists():
        looks_like_a_path = path.suffix in FORMATS or dataset.count("/") > 1
        if looks_like_a_path or not re.match(r"[\w-]", dataset):
            raise UserError(
                f"--dataset {dataset!r}: no such file or folder",
                f"give a path, a hub name, {' or '.join((CHANNEL, *builtin))}",
            )
        return None
    return path.absolute()  # not resolved: a link's own name tells what its target holds


def _data_files(root: Path, dataset: str) -> list[Path]:
    """The data files in a folder and its folders, or ``root`` itself where it is a file."""
    files = [root] if root.is_file() else sorted(root.rglob("*"))
    files = [file for file in files if not is_hidden(file.relative_to(root))]
    for file in files:
        packed = file.suffix.lower() in COMPRESSED
        if packed and Path(file.stem).suffix.lower() in FORMATS:
            raise UserError(
                f"--dataset {dataset!r}: {file} is compressed",
                "unpack it, or take it out of the folder",
            )
    files = [file for file in files if is_table(file)]
    files = _without_earlier_saves(files)
    if not files:
        raise UserError(
            f"--dataset {dataset!r}: no data file in {root}",
            f"expected one of {', '.join(FORMATS)}",
        )
    ((name, times),) = Counter(file.with_suffix("") for file in files).most_common(1)
    if times > 1:
        raise UserError(
            f"--dataset {dataset!r}: {name}.* are {times} files, of the same rows perhaps",
            "leave one there",
        )
    return files


def is_table(file: Path) -> bool:
    """Whether a file's name is a table's."""
    is_data = file.suffix.lower() in FORMATS and not re.match(NOT_DATA, file.name)
    return is_data and file.is_file()


def is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _without_earlier_saves(files: list[Path]) -> list[Path]:
    """Leave out arrow files that an earlier datasets.save_to_disk left in the same folder."""
    folders = {file.parent for file in files if file.suffix == ".arrow"}
    saved = {folder: _saved_names(folder) for folder in folders}
    kept = []
    for file in files:
        names = saved.get(file.parent, set()) if file.suffix == ".arrow" else set()
        if not names or file.name in names:
            kept.append(file)
    return kept


def _saved_names(folder: Path) -> set[str]:
    """The names of a folder's files in its latest save; empty where there is no list of them."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return {file["filename"] for file in state["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


# Its rows -------------------------------------------------------------------------------------


def read(source: Source, columns: Sequence[Column], scratch: Path) -> dict[str, Pieces]:
    """The rows of each split that the source has: ``train`` first, then perhaps ``val``, ``test``.

    Files and folders whose names have a word for validation or the test are those splits; all
    others are for training. A file that ``--dataset`` names itself is for training. Numbers that
    `datasets` declares to be classes become the classes' names.

    Args:
        scratch: a folder for the readers' own files; the caller removes it.

    Raises:
        UserError: the hub has no such data, there is none for training, a file cannot be read,
            or a column is not found; also while iterating.
    """
    if source.root is None:
        return _read_hub(source, columns)
    files: dict[str, list[Path]] = {"train": []}
    for file in source.files:
        files.setdefault(_split_of(file, source.root), []).append(file)
    _refuse_near_names(files["train"], source.root)
    for split, names in files.items():
        _warn_of_versions(split, names)
    if not files["train"]:
        others = ", ".join(split for split in files if split != "train")
        raise UserError(
            f"--dataset {source.dataset!r} has files for {others} only",
            "add one for training",
        )
    return {split: _read_files(paths, columns, scratch) for split, paths in files.items()}


def _split_of(file: Path, root: Path) -> str:
    """The split that the last telling word below ``root`` names; ``train`` where there is none."""
    telling = [word for word in words_of(file, root) if word in SPLITS or word in AMBIGUOUS]
    if not telling:
        return "train"
    if telling[-1] in AMBIGUOUS:
        raise UserError(
            f"{file} may be for validation or for the test",
            "name it, or its folder, val… or test…",
        )
    return SPLITS[telling[-1]]


def words_of(file: Path, root: Path) -> list[str]:
    """The words of a file's name, and of its folders' below ``root``, in small letters."""
    below = "" if file == root else str(file.relative_to(root).with_suffix(""))
    return re.findall("[a-z]+", below.lower())


def _refuse_near_names(files: list[Path], root: Path) -> None:
    """Refuse files for training whose names look as if they were another split's.

    Those have a word of NEAR; or they are named alike but for the split, as mytrain and myval.
    """
    names = {file: re.findall("[a-z]+", file.stem.lower()) for file in files if file != root}
    for file, words in names.items():
        if set(words) & set(NEAR):
            raise UserError(
                f"{file} would be used for training, and its name may mean another split",
                "name it, or its folder, val… or test…, or give it another name",
            )
    begun: dict[str, set[str]] = {}  # what comes before a split's word, and which splits follow
    for words in names.values():
        for word in words:
            for ending, split in SPLITS.items():
                if word.endswith(ending) and word != ending:
                    begun.setdefault(word.removesuffix(ending), set()).add(split)
    for beginning, splits in begun.items():
        if "train" in splits and len(splits) > 1:
            alike = ", ".join(
                str(file) for file, words in names.items() if beginning in "".join(words)
            )
            raise UserError(
                f"{alike} would all be used for training, and their names may mean splits",
                f"set the split apart: {beginning}_train, {beginning}_val",
            )


def _warn_of_versions(split: str, files: list[Path]) -> None:
    """Say which files are read together, where one is named as if it were another's version.

    That is train_old.csv beside train.csv, and not train-1.csv beside train-2.csv.
    """
    paths = {file.with_suffix("") for file in files}
    for file in files:
        for boundary in re.finditer(r"[\W_]", file.stem):
            first, rest = file.stem[: boundary.start()], file.stem[boundary.start() :]
            is_part = re.fullmatch(r"[-_.]?[\d_.-]+(of[\d_.-]+)?", rest)
            if first and file.with_name(first) in paths and not is_part:
                print(
                    one_line(
                        f"warning: {file} is read for {split} beside {first}{file.suffix}; take it "
                        "out of the folder if it is another version of it"
                    ),
                    file=sys.stderr,
                )


def warn_of_missing_names(column: str, names: Iterable[str]) -> None:
    """Say so where a value of a column is a text that often stands for none, as NULL."""
    suspects = [name for name in names if name.strip().lower() in MISSING]
    if suspects:
        print(
            f"warning: the {column} {', '.join(map(repr, suspects))} is taken as it stands; where "
            "it means that there is none, leave the field empty",
            file=sys.stderr,
        )


def _read_files(files: list[Path], columns: Sequence[Column], scratch: Path) -> Pieces:
    for file in files:
        form = FORMATS[file.suffix.lower()]
        try:
            if form == "arrow":
                yield from _read_arrow(file, columns, scratch)
            else:
                reader = {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet}[form]
                yield from reader(file, columns)
        except UserError:
            raise
        except Exception as error:  # each reader has exceptions of its own
            reason = _wrong_row(file) if form == "csv" else ""
            raise _unreadable(file, reason or root_cause(error)) from error


def _unreadable(file: Path, reason: str) -> UserError:
    form = FORMATS[file.suffix.lower()]
    return UserError(f"{file} could not be read as {form} ({reason})", "check the file")


def _read_json(file: Path, columns: Sequence[Column]) -> Pieces:
    """A line for each record, or a list of them.

    Not by pyarrow's reader: deep nesting ends its process, and it makes columns of all keys.
    """
    needed: list[str] = []
    kinds: dict[str, str] = {}  # of each column's values
    for numbers, records in _json_pieces(file):
        if not needed:
            names = dict.fromkeys(name for record in records for name in record)
            needed = find_columns([*names], columns, str(file))
        arrays = []
        for name in needed:
            values = [record.get(name) for record in records]
            if {JSON_KINDS[kind] for kind in set(map(type, values))} - {"null", kinds.get(name)}:
                _check_kinds(file, name, numbers, values, kinds)
            arrays.append(pa.array(values))
        yield arrays


def _check_kinds(
    file: Path, name: str, numbers: list[int], values: list[Any], kinds: dict[str, str]
) -> None:
    """Check that a column has texts, or numbers, or truth values only; ``kinds`` learns which."""
    for number, value in zip(numbers, values, strict=True):
        kind = JSON_KINDS[type(value)]
        expected = "text or a number"
        if kind in ("text", "a number", "true or false"):
            expected = kinds.setdefault(name, kind)
        if kind not in ("null", expected):
            raise UserError(
                f"{file}, record {number}: {name!r} is {kind}; expected {expected}",
                "write all of them as text, or name another column",
            )


def _json_pieces(file: Path) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    """The numbers of consecutive records, and these: at most PIECE, fewer if they are large."""
    numbers: list[int] = []
    records: list[dict[str, Any]] = []
    size = number = 0
    for number, length, record in _json_records(file):
        if isinstance(record, str):  # of a list of texts
            record = {"text": record}
        if not isinstance(record, dict):
            raise _unreadable(file, f"record {number} is no object")
        numbers.append(number)
        records.append(record)
        size += length
        if len(records) == PIECE or size > 4 * BLOCK:
            yield numbers, records
            numbers, records, size = [], [], 0
    if records or not number:  # an empty file has no columns
        yield numbers, records


def _json_records(file: Path) -> Iterator[tuple[int, int, Any]]:
    """Each record's number, from 1 (its line's, or its place in a list), its length, and itself."""
    number = 0
    try:
        with file.open("rb") as stream:
            beginning = stream.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
            stream.seek(0)
            records = _json_list if beginning.startswith(b"[") else _json_lines
            for length, record in records(stream):
                number += 1
                if length:
                    yield number, length, record
    except RecursionError:
        raise _unreadable(file, f"record {number + 1} is nested too deeply") from None
    except ValueError as error:
        raise _unreadable(file, f"record {number + 1}: {error}") from None


def _json_lines(stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The length and the record of each line; length 0: it is blank."""
    stream.seek(len(codecs.BOM_UTF8) * (stream.read(3) == codecs.BOM_UTF8))
    while line := stream.readline(LARGE + 1):
        if len(line) > LARGE:
            raise ValueError(f"it is longer than {LARGE:,} bytes")
        yield (0, None) if line.isspace() else (len(line), json.loads(line))


def _json_list(stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The length and the value of each record of a list, of which the text is held in memory."""
    text = stream.read().decode("utf-8-sig")
    decoder = json.JSONDecoder()

    def after_blanks(at: int) -> int:
        return JSON_BLANKS.match(text, at).end()  # type: ignore[union-attr]

    at = after_blanks(text.index("[") + 1)
    following = "]" if text.startswith("]", at) else ","
    while following == ",":
        start = at
        record, at = decoder.raw_decode(text, start)
        yield at - start, record
        at = after_blanks(at)
        following = text[at : at + 1]
        at = after_blanks(at + 1) if following == "," else at
    if following != "]":
        raise ValueError("expected a comma or the end of the list before it")
    if after_blanks(at + 1) < len(text):
        raise ValueError("expected nothing after the end of the list")


def _read_parquet(file: Path, columns: Sequence[Column]) -> Pieces:
    """Fewer rows at a time if texts are long: a dictionary's text may be in every row."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    needed = find_columns(schema.names, columns, str(file))
    for name in needed:
        kind = schema.field(name).type
        if pa.types.is_nested(kind):
            problem = f"{file}: {name!r} is a {str(kind)[:40]}; expected text or a number"
            raise UserError(problem, "name another column")
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    encoded = pq.ParquetFile(file, read_dictionary=sorted({*needed} & {*texts}))
    table = pq.ParquetFile(file)
    for group in range(metadata.num_row_groups):
        sizes = metadata.row_group(group)
        longest = sizes.total_byte_size // max(1, sizes.num_rows)
        for batch in itertools.islice(encoded.iter_batches(1, [group], needed), 1):
            for column in batch.columns:  # with all of its dictionary
                if isinstance(column, pa.DictionaryArray) and column.type.value_type in TEXTS:
                    longest = max(longest, pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
        rows = max(1, min(PIECE, LARGE // max(1, longest)))
        for batch in table.iter_batches(rows, [group], needed):
            arrays = {name: batch.column(name) for name in needed}
            for name, array in arrays.items():
                if isinstance(array, pa.DictionaryArray):  # as of pandas' categories
                    arrays[name] = array.dictionary_decode()
            yield _class_names(schema, arrays)


def _read_csv(file: Path, columns: Sequence[Column]) -> Pieces:
    """Every column is text: a reader that guesses makes 7 of 007, and nothing of NA (Namibia)."""
    separator = _separator(file)
    with file.open(newline="", encoding="utf-8-sig") as lines:
        names = next(csv.reader(lines, delimiter=separator), [])
    needed = find_columns(names, columns, str(file))
    if separator == ",":
        _refuse_stray_marks(file)
    searched: list[str] = []  # for swallowed rows: every column, since any may hold them
    if separator == "\t" and len(set(names)) == len(names) <= WIDEST:
        searched = names
    include = searched or needed
    rows = 0
    batches = pyarrow.csv.open_csv(
        file,
        pyarrow.csv.ReadOptions(block_size=BLOCK),
        pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(include, pa.string()), include_columns=include
        ),
    )
    for batch in batches:
        for position, name in enumerate(searched):
            _refuse_swallowed_rows(batch.column(name), position, len(names), file, rows)
        rows += len(batch)
        for at in range(0, len(batch), PIECE):
            yield [batch.column(name)[at : at + PIECE] for name in needed]


def _wrong_row(file: Path) -> str:
    """Which row of a csv has too few fields or too many; pyarrow's own error quotes the row."""
    wrong: list[pyarrow.csv.InvalidRow] = []

    def keep(row: pyarrow.csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    options = pyarrow.csv.ParseOptions(
        delimiter=_separator(file), newlines_in_values=True, invalid_row_handler=keep
    )
    one_thread = pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK)  # counts the rows
    with contextlib.suppress(pa.ArrowException):
        for _ in pyarrow.csv.open_csv(file, one_thread, options):
            pass
    for row in wrong:
        return f"row {row.number}: {row.actual_columns} fields; expected {row.expected_columns}"
    return ""


def _separator(file: Path) -> str:
    return "\t" if file.suffix.lower() == ".tsv" else ","


def _refuse_stray_marks(file: Path) -> None:
    """Refuse a csv in which a quotation mark begins a field and none ends it.

    Readers go on to the next mark, rows further down, and make one field of all of it.
    """
    done, rest = 0, b"\n"  # lines before the rest; what is not judged yet
    with file.open("rb") as stream:
        block = stream.read(SEARCHED).removeprefix(codecs.BOM_UTF8)
        while block:
            text, block = rest + block, stream.read(SEARCHED)
            judged = len(text) - 1
            for field in QUOTED.finditer(text) if b'"' in text else ():
                start, end = field.span()
                if end == len(text) and block and end - start < BLOCK:
                    judged = start - 1  # it may go on
                elif field[1] is None or text[end : end + 1] not in ENDS:
                    line = done + text.count(b"\n", 0, start)
                    raise UserError(
                        f"{file}, line {line}: a quotation mark begins a field, and no mark ends "
                        "it before a comma or the line's end",
                        "double a field's own marks and quote it, or save the data as jsonl or "
                        "parquet",
                    )
            done += text.count(b"\n", 0, judged)
            rest = text[judged:]


def _refuse_swallowed_rows(
    fields: pa.Array, position: int, columns: int, file: Path, rows: int
) -> None:
    """Refuse a tsv in which a quotation mark that quotes nothing opens a field.

    Many a tsv quotes nothing. Such a field goes on to the next row with a quotation mark, so it
    holds the rest of its own row, perhaps whole rows, and the beginning of one: the tabs tell.

    Args:
        fields: the values of a column.
        position: how many columns are before it.
        columns: how many the table has.
        rows: how many are before them.
    """
    tabs = "[^\t\n]*(\t[^\t\n]*)"
    rest = f"{tabs}{{{columns - 1 - position}}}"
    whole = f"{tabs}{{{columns - 1}}}"
    begun = f"{tabs}{{{position}}}"
    matches = pc.match_substring_regex(fields, f"^{rest}\n({whole}\n)*{begun}$")
    row = pc.index(matches, True).as_py()
    if row >= 0:
        raise UserError(
            f"{file}, row {rows + row + 1}: a quotation mark opens field {position + 1} and takes "
            "in rows up to the next one",
            "double a field's own marks and quote it, or save the data as jsonl or parquet",
        )


def _read_arrow(file: Path, columns: Sequence[Column], scratch: Path) -> Pieces:
    import datasets

    rows = datasets.load_dataset(
        "arrow",
        data_files=glob.escape(str(file)),
        split="train",
        streaming=True,
        cache_dir=str(scratch),
    )
    yield from _pieces(rows, columns, str(file))


def _read_hub(source: Source, columns: Sequence[Column]) -> dict[str, Pieces]:
    import datasets

    datasets.disable_progress_bars()
    name = repr(source.dataset)
    others = ", nor ".join((*source.builtin, CHANNEL, "a path"))
    problem = f"--dataset {name} is neither {others}, and the Hugging Face hub does not give it"
    with hub.errors(problem):
        loaded = datasets.load_dataset(source.dataset)
    parts = {SPLITS[split]: rows for split, rows in loaded.items() if split in SPLITS}
    if "train" not in parts:
        raise UserError(
            f"--dataset {name} has splits {', '.join(loaded)}, none of them named train",
            "name another data set, or save the splits as files and give their folder",
        )
    ordered = [split for split in WORDS if split in parts]
    return {split: _pieces(parts[split], columns, source.dataset) for split in ordered}


def _pieces(rows: Any, columns: Sequence[Column], table_name: str) -> Pieces:
    """The pieces of a data set of `datasets`, streamed or memory-mapped."""
    for table in rows.with_format("arrow").iter(PIECE):
        needed = find_columns(table.column_names, columns, table_name)
        arrays = {name: table[name].combine_chunks() for name in needed}
        yield _class_names(table.schema, arrays)


def _class_names(schema: pa.Schema, arrays: dict[str, pa.Array]) -> list[pa.Array]:
    """The columns, with names where `datasets` has written numbers of classes."""
    if b"huggingface" not in (schema.metadata or {}):
        return [*arrays.values()]
    import datasets

    features = datasets.Features.from_arrow_schema(schema)
    named = []
    for name, array in arrays.items():
        classes = getattr(features[name], "names", None)
        if classes:  # -1 is a class that is kept secret
            known = pc.if_else(pc.greater_equal(array, 0), array, None)
            array = pa.array(classes).take(known)
        named.append(array)
    return named


def find_columns(names: Sequence[str], columns: Sequence[Column], table_name: str) -> list[str]:
    """Which of a table's ``names`` is each of ``columns``.

    A column without a given name is the one with a usual name, or the only one that is left.

    Args:
        table_name: what errors call the table.

    Raises:
        UserError: a column is not there, several could be it, or it is another one's already.
    """
    chosen: list[str] = []
    for column in columns:
        cure = f"name it with --{column.name}_column"
        if not names:
            raise UserError(
                f"{table_name} has no columns: it is empty, or its first line is",
                "begin it with a line of the columns' names",
            )
        shown = ", ".join(map(repr, names))
        table = f"{table_name} has columns {shown if len(shown) <= 400 else f'{shown[:400]}…'}"
        if len(names) == 1 and len(columns) > 1:
            cure = f"separate columns by commas, or by tabs in a .tsv file; or {cure}"
        if column.given:
            if column.given not in names:
                raise UserError(f"{table}: none is {column.given!r}", cure)
            chosen.append(column.given)
            continue
        candidates = [name for name in names if name.lower() in column.usual]
        left = [name for name in names if name not in chosen]
        if not candidates and len(names) == len(columns) and len(left) == 1:
            candidates = left
        if not candidates:
            raise UserError(f"{table}: none is the {column.name}", cure)
        if len(candidates) > 1:
            raise UserError(f"{table}: several could be the {column.name}", cure)
        chosen.append(candidates[0])
    for name, column in zip(chosen, columns, strict=True):
        first = columns[chosen.index(name)]
        if first is not column:
            raise UserError(
                f"{table_name}: {name!r} would be both the {first.name} and the {column.name}",
                f"name another one with --{first.name}_column or --{column.name}_column",
            )
    return chosen
