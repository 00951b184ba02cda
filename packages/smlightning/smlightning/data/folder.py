"""The data files of a folder: each file is data, is known to be none, or ends in an error.

files = data_files(Path("reviews"))              # sorted; links are followed
split_of(files[0], Path("reviews"))              # "train", "validation" or "test"
plain = unpacked(files[0], temporary_folder)     # a.csv of a.csv.gz
check_format(plain, files[0])
"""

import codecs
import itertools
import lzma
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa
from datasets.data_files import SPLIT_KEYWORDS
from huggingface_hub import DatasetCard

from smlightning.errors import UserError

# The builder of `datasets` for each ending.
BUILDERS = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines", ".json"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
}
# An ending after that of a table, and the name that pyarrow has for it.
PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}
FORMATS = f"{', '.join(BUILDERS)}, also with {', '.join(PACKED)}"
ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", *PACKED)
# The reader of pandas for the ending of a table that is not read here.
PANDAS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), "read_excel"),
    ".orc": "read_orc",
    ".dta": "read_stata",
    ".sav": "read_spss",
    ".sas7bdat": "read_sas",
    ".h5": "read_hdf",
    ".xml": "read_xml",
}
# Files and folders with these names hold no data; docs/data.md lists them.
NOT_DATA = re.compile(
    r"""
    \..* | _[^=]*                      # hidden; of Spark, such as _SUCCESS and _temporary
    | cache-.*\.arrow                  # of datasets.save_to_disk
    | (state|dataset_info|dataset_infos|dataset_dict|dataset-metadata|croissant)\.json
    | (readme|licen[cs]e|copying|notice|changelog|citation|authors|version|makefile|dockerfile)
      (\.(txt|md|rst|cff))?
    | .*\.(md|rst|pdf|html?|py|ipynb|sh|r|sql|ya?ml|toml|png|jpe?g|gif|svg|webp)
    | (checksums?|(md5|sha\d+)(sums?)?)(\.(txt|md5|sha\d+))? | thumbs\.db | desktop\.ini
    """,
    re.VERBOSE | re.IGNORECASE,
)
COMPANION = re.compile(r"(.+)\.(dvc|crc|md5|sha\d+|asc|sig)", re.IGNORECASE)  # train.csv.md5
# A folder with this entry is a table that only its own library can read.
LAKES = {"Delta": "_delta_log", "Iceberg": "metadata/*.metadata.json", "Hudi": ".hoodie"}
# First bytes, and the name of the format.
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip or Excel",
    b"\xd0\xcf\x11\xe0": "old Excel",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"FEA1": "Feather version 1",
    b"ORC": "ORC",
    b"Obj\x01": "Avro",
    b"SQLite format 3": "SQLite",
    b"\x89HDF": "HDF5",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"<!DOCTYPE": "HTML",
    b"<!doctype": "HTML",
    b"<html": "HTML",
    b"version https://git-lfs": "a pointer of Git LFS, which `git lfs pull` replaces,",
}
BLOCK = 2**20  # bytes of a file that are searched at a time
SPLITS = ("train", "validation", "test")
WORDS = {  # in the name of a file, a folder or a split of the hub
    word + ending: str(split)
    for split, words in SPLIT_KEYWORDS.items()
    for word in words
    for ending in ("", "set", "data")
}
# Names of columns, and of folders as in split=test, that may hold names of splits.
SPLIT_COLUMNS = ("split", "data_split", "dataset_split", "subset", "partition", "set", "usage")


def data_files(root: Path) -> list[Path]:
    """The data files of a folder in order of name; a file that two links name once per split.

    Raises:
        UserError: a file is not known, a link has no target, the folder is one of a lake's tables,
            or two files are one table in two formats.
    """
    for folder in root.resolve().parents:
        _check_lake(folder)
    found = [*_walk(root)]
    empty = {each for each in found if each.is_dir()}
    unique = {(split_of(each, root), each.resolve()): each for each in reversed(found)}
    files = sorted(set(unique.values()) - empty)
    splits = {"", "train", *(split for (split, _), each in unique.items() if each not in empty)}
    for (split, _), folder in unique.items():
        if folder in empty and split not in splits and files:
            raise UserError(f"{folder} has no data file", "add one, or remove the folder")
    _check_card(root, files)
    tables: dict[Path, Path] = {}
    for file in files:
        other = tables.setdefault(file.with_name(_stem(file)), file)
        if other != file:
            raise UserError(
                f"{other} and {file.name} may hold the same rows",
                "keep one of them, or give them different names",
            )
    return files


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The data files below a folder, and the folders in it that have none."""
    real = folder.resolve()
    if real in above:  # a link to a folder above
        return
    _check_lake(folder)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error})", "correct its permissions") from error
    for entry in entries:
        companion = COMPANION.fullmatch(entry.name)
        if NOT_DATA.fullmatch(entry.name) or (companion and entry.with_name(companion[1]).exists()):
            continue
        if entry.is_dir():
            below = [*_walk(entry, (*above, real))]
            yield from below or [entry]
        else:
            check_known(entry, ", or move it out of the folder")
            yield entry


def check_known(file: Path, otherwise: str = "") -> None:
    """Raise UserError unless the file is there and has the ending of a format that is read."""
    suffix = file.suffix.lower()
    if not file.exists():
        raise UserError(f"{file} is a link without a target", f"correct the link{otherwise}")
    if builder_of(file) and file.is_file():
        return
    hint = "unpack it, or write it" if suffix in ARCHIVES else "write it"
    if suffix in PANDAS:
        hint = f"write it, by pandas.{PANDAS[suffix]}(...).to_parquet(...),"
    raise UserError(f"{file} is no file of {FORMATS}", f"{hint} as one of them{otherwise}")


def _check_card(root: Path, files: list[Path]) -> None:
    """Raise UserError if the card of a data set of the hub has another split for a file."""
    card = root / "README.md"
    try:
        configs = DatasetCard.load(card).data.to_dict()["configs"] if card.is_file() else []
        given = [part for config in configs for part in config["data_files"]]
        parts = [(part["split"], part["path"]) for part in given]
    except Exception:  # no card, or one that leaves the splits to the names of files
        return
    for split, paths in parts:
        for file, path in itertools.product(files, [paths] if isinstance(paths, str) else paths):
            named = split_of(file, root) or "train"
            if fnmatch(file.relative_to(root).as_posix(), path) and split_in(split) != named:
                raise UserError(
                    f"{file} is for {split} in {card.name}, and for {named} by its name",
                    "put the split into the name, or move the file out of the folder",
                )


def _check_lake(folder: Path) -> None:
    for lake, pattern in LAKES.items():
        if any(folder.glob(pattern)):
            raise UserError(
                f"{folder} is a table of {lake}, whose files may hold rows that were removed",
                f"write its rows as parquet to another folder, by a library for {lake}",
            )


def builder_of(file: Path) -> str:
    """The builder of `datasets` for a file; "" if it is no table."""
    return BUILDERS.get(suffix_of(file), "")


def suffix_of(file: Path) -> str:
    """The ending of a file's format: ``.csv`` also of a.csv.gz."""
    return Path(_without_packing(file)).suffix.lower()


def _stem(file: Path) -> str:
    return Path(_without_packing(file)).stem


def _without_packing(file: Path) -> str:
    return file.stem if file.suffix.lower() in PACKED else file.name


# Splits and columns in paths -------------------------------------------------------------------


def split_of(file: Path, root: Path) -> str:
    """The split of the last such word in the file's path below ``root``; "" without any.

    Names as in kind=test count only for a column of SPLIT_COLUMNS.
    """
    below = () if file == root else file.relative_to(root).with_suffix("").parts
    pairs = [part.rpartition("=") for part in below]
    values = [value for key, _, value in pairs if not key or key.lower() in SPLIT_COLUMNS]
    return split_in("/".join(values))


def split_in(text: str) -> str:
    """The split of the last word for one in a text, such as labeledTrainData; "" without any."""
    apart = re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text).lower()
    splits = [WORDS[word] for word in re.findall("[a-z]+", apart) if word in WORDS]
    return splits[-1] if splits else ""


def partitions(file: Path, root: Path) -> dict[str, str | None]:
    """The columns that names of folders hold, as Hive, Spark and DuckDB write them: year=2024."""
    below = () if file == root else file.relative_to(root).parts[:-1]
    pairs = dict(part.split("=", 1) for part in below if "=" in part)
    missing = "__HIVE_DEFAULT_PARTITION__"
    return {key: None if text == missing else unquote(text) for key, text in pairs.items()}


# Their bytes ----------------------------------------------------------------------------------


def unpacked(file: Path, folder: Path) -> Path:
    """The file, or its content in ``folder`` if it is packed: `datasets` reads fewer packings."""
    packing = PACKED.get(file.suffix.lower())
    if not packing:
        return file
    plain = folder / f"unpacked{suffix_of(file)}"
    opened: Any = lzma.open if packing == "xz" else partial(pa.input_stream, compression=packing)
    with closing(opened(file)) as content, plain.open("wb") as target:
        shutil.copyfileobj(content, target, BLOCK)
    return plain


def check_format(plain: Path, file: Path) -> None:
    """Raise UserError if an unpacked file is not in the format that its name says.

    Args:
        file: its name in errors.
    """
    builder = builder_of(plain)
    with plain.open("rb") as content:
        first = content.read(max(map(len, MAGIC)))
        name = next((MAGIC[magic] for magic in MAGIC if first.startswith(magic)), builder)
        if name != builder:
            raise UserError(
                f"{file} holds {name} and not {builder}",
                "give it the ending of its format, or write it as its name says, texts as UTF-8",
            )
        content.seek(0)
        if builder in ("csv", "json"):
            _check_text(content, file)


def _check_text(content: IO[bytes], file: Path) -> None:
    """Find what is not UTF-8, and zero bytes, at which pandas would cut a text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    for block in itertools.chain(iter(lambda: content.read(BLOCK), b""), [b""]):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise UserError(f"{file}, line {line} is not UTF-8", "write it as UTF-8") from None
        if "\0" in text:
            line += text[: text.index("\0")].count("\n")
            raise UserError(f"{file}, line {line} holds a zero byte", "write it without, as UTF-8")
        line += text.count("\n")
