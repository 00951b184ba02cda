"""Folders as Spark, Kaggle, Hugging Face, pandas, DuckDB, lakes, spreadsheets and label tools
write them: each is read right, or ends in a sentence that names the file; no file is skipped in
silence."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from smlightning.data import sources, splits
from smlightning.data.sources import Column
from smlightning.errors import UserError

COLUMNS = [
    Column("text", usual=("text", "review", "content")),
    Column("label", usual=("label", "target", "sentiment"), optional=True),
]
Row = dict[str, Any]
Rows = Sequence[Row]
Make = Callable[[], object]


def rows(number: int, first: int = 0, **more: Any) -> list[Row]:
    return [
        {"text": f"text {row}", "label": ("neg", "pos")[row % 2], **more}
        for row in range(first, first + number)
    ]


TRAIN, TEST = rows(40), rows(9, 100)
LOST = rows(30, 200)  # that must not be read


def without(name: str, given: Rows = TEST) -> list[Row]:
    return [
        {"id": number} | {k: v for k, v in row.items() if k != name}
        for number, row in enumerate(given)
    ]


def put(path: str, content: bytes | str = "") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def link(path: str, target: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).symlink_to(target)


def csv_of(given: Rows, sep: str = ",", header: bool = True) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, [*given[0]], delimiter=sep)
    if header:
        table.writeheader()
    table.writerows(given)
    return text.getvalue()


def jsonl_of(given: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in given)


def arrow_of(given: Rows) -> pa.Table:
    return pa.Table.from_pylist([*given])


def parquet_of(given: Rows | pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(given if isinstance(given, pa.Table) else arrow_of(given), sink)
    return sink.getvalue()


def feather_of(given: Rows, compression: str = "lz4") -> bytes:
    sink = io.BytesIO()
    table, options = arrow_of(given), pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options) as file:
        file.write_table(table)
    return sink.getvalue()


def packed(name: str, content: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        stream.write(content.encode())
    return sink.getvalue().to_pybytes()


def xlsx(path: str) -> None:
    """A workbook of one cell."""
    office = "http://schemas.openxmlformats.org/"
    sheet = f'<worksheet xmlns="{office}spreadsheetml/2006/main"><sheetData/></worksheet>'
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("[Content_Types].xml", f'<Types xmlns="{office}package/2006/content-types"/>')
        book.writestr("xl/worksheets/sheet1.xml", sheet)


def archive(path: str, name: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, csv_of(TEST))


def folder(contents: dict[str, bytes | str], *more: Make) -> Make:
    def make() -> None:
        for name, content in contents.items():
            put(f"own/{name}", content)
        for other in more:
            other()

    return make


def database() -> None:
    Path("own").mkdir(exist_ok=True)
    with sqlite3.connect("own/test.sqlite") as connection:
        connection.execute("create table rows (text, label)")


def saved() -> None:
    tables = {"train": datasets.Dataset.from_list(TRAIN), "test": datasets.Dataset.from_list(TEST)}
    datasets.DatasetDict(tables).save_to_disk("own")


def classes(name: str, labels: list[int], first: int = 0) -> bytes:
    features = datasets.Features(text=sources.TEXT, label=datasets.ClassLabel(names=["neg", "pos"]))
    columns = {"text": [f"{name} {first + row}" for row in range(len(labels))], "label": labels}
    datasets.Dataset.from_dict(columns, features=features).to_parquet("made.parquet")
    return Path("made.parquet").read_bytes()


CSV, TEST_CSV = csv_of(TRAIN), csv_of(TEST)
PART = "part-0000{}-6d2c-c000"
DELTA = {
    "a.parquet": parquet_of(TRAIN),
    "b.parquet": parquet_of(LOST),
    "_delta_log/00000000000000000000.json": jsonl_of(
        [{"add": {"path": "a.parquet"}}, {"add": {"path": "b.parquet"}}]
    ),
    "_delta_log/00000000000000000001.json": jsonl_of([{"remove": {"path": "b.parquet"}}]),
}
ICEBERG = {
    "data/a.parquet": parquet_of(TRAIN),
    "data/b.parquet": parquet_of(LOST),
    "metadata/v1.metadata.json": json.dumps({"format-version": 2}),
    "metadata/version-hint.text": "1",
}
ALL = "train 40, test 9"

# What a folder holds → the rows of its splits, or words of the sentence; and words of a warning.
FOLDERS: dict[str, tuple[Make, str] | tuple[Make, str, str]] = {
    # Spark, Hadoop, Hive, Databricks
    "spark csv": (
        folder(
            {
                PART.format(0) + ".csv": CSV,
                PART.format(1) + ".csv": csv_of(LOST),
                f".{PART.format(0)}.csv.crc": "crc",
                "_SUCCESS": "",
                "._SUCCESS.crc": "",
            }
        ),
        "train 70",
    ),
    "spark parquet": (
        folder(
            {
                f"train/{PART.format(0)}.snappy.parquet": parquet_of(TRAIN),
                f"test/{PART.format(0)}.gz.parquet": parquet_of(TEST),
                "train/_SUCCESS": "",
                "train/_metadata": "PAR1",
                "train/_committed_123": "{}",
                "train/_started_123": "{}",
            }
        ),
        ALL,
    ),
    "spark json.gz": (
        folder({PART.format(0) + ".json.gz": gzip.compress(jsonl_of(TRAIN).encode())}),
        "train 40",
    ),
    "spark csv.bz2": (
        folder({"test/part-0.csv.bz2": bz2.compress(TEST_CSV.encode()), "a.csv": CSV}),
        ALL,
    ),
    "spark _temporary": (
        folder({"part-0.csv": CSV, "_temporary/0/task_1/part-1.csv": csv_of(LOST)}),
        "train 40",
    ),
    "spark empty parts": (
        folder({"part-0.csv": CSV, "part-1.csv": "", "part-2.csv": "text,label\n"}),
        "train 40",
        "2 of 3 files have no rows",
    ),
    "spark empty test": (
        folder({"train/part-0.csv": CSV, "test/part-0.csv": "text,label\n"}),
        "test/part-0.csv has no rows",
    ),
    "spark empty parquet": (
        folder(
            {"part-0.parquet": parquet_of(TRAIN), "part-1.parquet": parquet_of(arrow_of(TRAIN)[:0])}
        ),
        "train 40",
        "1 of 2 files have no rows",
    ),
    "spark csv without names": (
        folder({"part-0.csv": csv_of(TRAIN, header=False)}),
        "part-0.csv has columns .*row 1 holds the columns' names",
    ),
    "spark folders named as files": (
        folder(
            {"train.parquet/part-0.parquet": parquet_of(TRAIN), "test.csv/part-0.csv": TEST_CSV}
        ),
        ALL,
    ),
    "spark orc": (
        folder({"train.csv": CSV}, lambda: orc.write_table(arrow_of(TEST), "own/test.orc")),
        r"test.orc is no file of .*pandas.read_orc",
    ),
    "spark text": (
        folder({"train.csv": CSV, "test/part-0.txt": "a"}),
        r"test/part-0.txt is no file",
    ),
    "hadoop, no ending": (
        folder({"train.csv": CSV, "test/part-00000": TEST_CSV}),
        "test/part-00000 is",
    ),
    "hadoop deflate": (
        folder({"train.csv": CSV, "test/a.csv.deflate": b"x"}),
        "a.csv.deflate is no",
    ),
    "partitions by label": (
        folder(
            {
                "label=neg/part-0.parquet": parquet_of(without("label", TRAIN)),
                "label=p%C3%A9/part-0.parquet": parquet_of(without("label", LOST)),
            }
        ),
        "train 70: neg 40, pé 30",
    ),
    "partitions by split": (
        folder({"split=train/0.csv": CSV, "split=test/0.csv": TEST_CSV}),
        ALL,
    ),
    "partitions by year": (
        folder(
            {
                "year=2023/month=1/0.parquet": parquet_of(TRAIN),
                "year=2024/0.parquet": parquet_of(LOST),
            }
        ),
        "train 70",
    ),
    "partitions by a label named test": (
        folder(
            {
                "label=test/0.csv": csv_of(without("label")),
                "label=train/0.csv": csv_of(without("label")),
            }
        ),
        "train 18: test 9, train 9",
    ),
    # Kaggle
    "kaggle competition": (
        folder(
            {
                "train.csv": csv_of(TRAIN),
                "test.csv": csv_of(without("label")),
                "sample_submission.csv": csv_of(without("text")),
            }
        ),
        "train 40",
        "submission.csv .*left out.*test.csv has no label .* a part of the training rows",
    ),
    "kaggle two columns": (
        folder({"train.csv": CSV.replace("label", "kind"), "test.csv": csv_of(without("label"))}),
        "train 40",
        r"test.csv has no label",
    ),
    "kaggle submission": (
        folder(
            {
                "train.csv": CSV,
                "test.csv": TEST_CSV,
                "gender_submission.csv": "PassengerId,Survived\n1,0\n",
            }
        ),
        ALL,
        "gender_submission.csv .*left out",
    ),
    "kaggle unlabeled": (
        folder(
            {
                "labeledTrainData.tsv": csv_of(TRAIN, "\t"),
                "testData.tsv": csv_of(without("label"), "\t"),
                "unlabeledTrainData.tsv": csv_of(without("label", LOST), "\t"),
            }
        ),
        r"unlabeledTrainData.tsv has columns \['id', 'text'\].*out of the folder",
    ),
    "kaggle test_labels": (
        folder(
            {
                "train.csv": CSV,
                "test.csv": csv_of(without("label")),
                "test_labels.csv": csv_of(without("text")),
            }
        ),
        r"test_labels.csv has columns .*none matches the text.*out of the folder",
    ),
    "kaggle zip": (
        folder({"train.csv": CSV}, lambda: archive("own/test.csv.zip", "test.csv")),
        r"test.csv.zip is no file of .*unpack it",
    ),
    "kaggle usage": (
        folder(
            {"all.csv": csv_of([*rows(40, Usage="Training"), *rows(9, 50, Usage="PublicTest")])}
        ),
        ALL,
    ),
    "kaggle pictures": (
        folder(
            {
                "train.csv": CSV,
                "test.csv": TEST_CSV,
                "images/test/1.jpg": b"\xff\xd8",
                "dataset-metadata.json": "{}",
            }
        ),
        ALL,
    ),
    "downloaded twice": (folder({"train.csv": CSV, "train (1).csv": CSV}), r"have the same rows"),
    "packed and unpacked": (
        folder({"train.csv": CSV, "train.csv.gz": gzip.compress(CSV.encode())}),
        r"train.csv and train.csv.gz may hold the same rows",
    ),
    "two formats of one table": (
        folder({"train.csv": CSV, "train.parquet": parquet_of(TRAIN)}),
        r"train.csv and train.parquet may hold",
    ),
    # Hugging Face
    "save_to_disk": (saved, ALL),
    "hub clone": (
        folder(
            {
                "README.md": "---\nlicense: mit\n---\n",
                ".gitattributes": "*.parquet filter=lfs",
                "data/train-00000-of-00002.parquet": parquet_of(TRAIN),
                "data/train-00001-of-00002.parquet": parquet_of(LOST),
                "data/test-00000-of-00001.parquet": parquet_of(TEST),
            }
        ),
        "train 70, test 9",
    ),
    "hub card with other names": (
        folder(
            {
                "README.md": "---\nconfigs:\n- config_name: default\n  data_files:\n"
                "  - split: train\n    path: a.csv\n  - split: test\n    path: held*.csv\n---\n",
                "a.csv": CSV,
                "heldout.csv": TEST_CSV,
            }
        ),
        "heldout.csv is for test in README.md, and for train by its name",
    ),
    "hub card of other forms": (
        folder(
            {
                "README.md": "---\nconfigs:\n- data_files: '*.csv'\n---\n",
                "train.csv": CSV,
                "test.csv": TEST_CSV,
            }
        ),
        ALL,
    ),
    "readme that is no card": (
        folder({"README.md": b"---\n: [\xe9\n---\n", "train.csv": CSV, "test.csv": TEST_CSV}),
        ALL,
    ),
    "hub cache of links": (
        folder(
            {"../blobs/1": CSV, "../blobs/2": parquet_of(TEST)},
            lambda: link("own/train.csv", "../blobs/1"),
            lambda: link("own/test.parquet", "../blobs/2"),
        ),
        ALL,
    ),
    "pointer of Git LFS": (
        folder(
            {
                "train.csv": CSV,
                "test.parquet": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            }
        ),
        r"test.parquet holds a pointer of Git LFS.*git lfs pull",
    ),
    "secret classes": (
        lambda: folder(
            {"train.parquet": classes("a", [0, 1] * 20), "test.parquet": classes("b", [-1] * 9)}
        )(),
        "train 40",
        "test.parquet has no label",
    ),
    "unsupervised": (
        lambda: folder(
            {
                "train.parquet": classes("a", [0, 1] * 20),
                "unsupervised.parquet": classes("b", [-1] * 9),
            }
        )(),
        "unsupervised.parquet, row 1: the label is empty",
    ),
    "three formats": (
        folder(
            {
                "train.jsonl": jsonl_of(TRAIN),
                "validation.csv": csv_of(LOST),
                "test.parquet": parquet_of(TEST),
            }
        ),
        "train 40, validation 30, test 9",
    ),
    "a column of splits": (
        folder(
            {
                "all.parquet": parquet_of(
                    [
                        *rows(40, split="train"),
                        *rows(5, 50, split="val"),
                        *rows(9, 60, split="test"),
                    ]
                )
            }
        ),
        "train 40, validation 5, test 9",
    ),
    "a column of some splits": (
        folder({"all.csv": csv_of([*rows(40, split="train"), *rows(5, 50, split="holdout")])}),
        r"all.csv, row 42: the column 'split' does not name a split",
    ),
    "a column of other splits": (
        folder({"all.csv": csv_of([*rows(20, split="A"), *rows(20, 20, split="B")])}),
        "train 40",
        "all.csv: the column 'split' holds no names of splits",
    ),
    "a column against the name": (
        folder({"train.csv": CSV, "test.csv": csv_of(rows(9, 50, split="train"))}),
        "test.csv is for test by its name, and its column 'split' differs",
    ),
    "fastai": (
        folder({"texts.csv": csv_of([*rows(40, is_valid=False), *rows(9, 50, is_valid=True)])}),
        "train 40, validation 9",
    ),
    "two columns of splits": (
        folder({"a.csv": csv_of(rows(40, is_valid=0, is_test=1))}),
        "a.csv has several columns for the split: is_valid, is_test",
    ),
    "lists as splits": (
        folder({"a.parquet": parquet_of(rows(40, split=["train"]))}),
        "the split of the row is List.*; rename its column",
    ),
    # pandas, polars, R
    "pandas index": (folder({"a.csv": pd.DataFrame(TRAIN).to_csv()}), "train 40"),
    "pandas csv.zst": (folder({"train.csv": CSV, "test.csv.zst": packed("zstd", TEST_CSV)}), ALL),
    "pandas csv.xz": (
        folder({"train.csv": CSV, "test.csv.xz": lzma.compress(TEST_CSV.encode())}),
        ALL,
    ),
    "polars csv.lz4": (folder({"train.csv": CSV, "test.csv.lz4": packed("lz4", TEST_CSV)}), ALL),
    "pandas json of columns": (
        folder({"train.csv": CSV, "test.json": pd.DataFrame(TEST).to_json()}),
        "test.json, line 1: the text is a dict",
    ),
    "pandas json of records": (
        folder(
            {"train.csv": CSV, "test.json": pd.DataFrame(TEST).to_json(orient="records", indent=2)}
        ),
        ALL,
    ),
    "pandas json table": (
        folder({"train.csv": CSV, "test.json": pd.DataFrame(TEST).to_json(orient="table")}),
        r"test.json has columns \['schema', 'data'\]",
    ),
    "feather": (
        folder({"train.csv": CSV, "test.feather": feather_of(TEST)}),
        ALL,
    ),
    "feather version 1": (
        folder({"train.csv": CSV, "test.feather": b"FEA1\0\0\0\0FEA1"}),
        "test.feather holds Feather version 1 and not arrow",
    ),
    "pickle": (
        folder({"train.csv": CSV}, lambda: pd.DataFrame(TEST).to_pickle("own/test.pkl")),
        "test.pkl is no file of",
    ),
    "stata": (
        folder({"train.csv": CSV}, lambda: pd.DataFrame(TEST).to_stata("own/test.dta")),
        "test.dta is no file of .*read_stata",
    ),
    "pq": (folder({"train.csv": CSV, "test.pq": parquet_of(TEST)}), ALL),
    "tab": (folder({"train.csv": CSV, "test.TAB": csv_of(TEST, "\t")}), ALL),
    "jsonlines": (folder({"train.csv": CSV, "test.jsonlines": jsonl_of(TEST)}), ALL),
    "polars ndjson": (folder({"train.csv": CSV, "test.ndjson": jsonl_of(TEST)}), ALL),
    "polars ipc": (
        folder({"train.csv": CSV, "test.ipc": feather_of(TEST, "zstd")}),
        ALL,
    ),
    "appended with its header": (
        folder({"a.csv": CSV + TEST_CSV}),
        "a.csv, row 42 repeats the names",
    ),
    "utf-16": (
        folder({"train.csv": CSV, "test.csv": TEST_CSV.encode("utf-16")}),
        "test.csv holds UTF-16",
    ),
    "latin-1": (
        folder({"train.csv": CSV, "test.csv": (TEST_CSV + "café,pos\n").encode("latin-1")}),
        "test.csv, line 11 is not UTF-8",
    ),
    "gzip without .gz": (
        folder({"train.csv": CSV, "test.csv": gzip.compress(TEST_CSV.encode())}),
        "test.csv holds gzip and not csv",
    ),
    "a zero byte in gzip": (
        folder({"train.csv": CSV, "test.csv.gz": gzip.compress(b"text,label\na\0b,pos\n")}),
        "test.csv.gz, line 2 holds a zero byte",
    ),
    "cut gzip": (
        folder({"train.csv": CSV, "test.csv.gz": gzip.compress(TEST_CSV.encode())[:-20]}),
        "test.csv.gz could not be read",
    ),
    "cut jsonl": (
        folder({"train.csv": CSV, "test.jsonl": jsonl_of(TEST)[:-9]}),
        "test.jsonl, line 9 is not JSON",
    ),
    # DuckDB, lakes, databases
    "duckdb export": (
        folder(
            {"schema.sql": "create", "load.sql": "copy", "train.csv": CSV, "test.csv": TEST_CSV}
        ),
        ALL,
    ),
    "duckdb partitions": (
        folder(
            {
                "label=neg/data_0.csv": csv_of(without("label", TRAIN)),
                "label=pos/data_0.csv": csv_of(without("label", LOST)),
            }
        ),
        "train 70: neg 40, pos 30",
    ),
    "sqlite": (folder({"train.csv": CSV}, database), "test.sqlite is no file of"),
    "delta": (folder(DELTA), "own is a table of Delta"),
    "delta below": (
        folder({f"reviews/{name}": content for name, content in DELTA.items()}),
        "reviews is a table of Delta",
    ),
    "iceberg": (folder(ICEBERG), "own is a table of Iceberg"),
    "iceberg's data": (
        lambda: (
            [*(put(f"lake/{name}", content) for name, content in ICEBERG.items())]
            and link("own", "lake/data")
        ),
        "lake is a table of Iceberg",
    ),
    "hudi": (
        folder({"a.parquet": parquet_of(TRAIN), ".hoodie/hoodie.properties": ""}),
        "table of Hudi",
    ),
    "lance": (
        folder({"_versions/1.manifest": b"", "data/1.lance": b"x"}),
        "data/1.lance is no file of",
    ),
    # spreadsheets
    "excel": (
        folder({"train.csv": CSV}, lambda: xlsx("own/test.xlsx")),
        "test.xlsx is no file .*read_excel",
    ),
    "excel named csv": (
        folder({"train.csv": CSV}, lambda: xlsx("own/test.csv")),
        "test.csv holds zip or Excel",
    ),
    "excel csv": (
        folder(
            {"train.csv": ("\ufeff" + CSV.replace("\n", "\r\n")).encode(), "test.csv": TEST_CSV}
        ),
        ALL,
    ),
    "excel csv with semicolons": (
        folder({"train.csv": CSV, "test.csv": csv_of(TEST, ";")}),
        "test.csv has columns .*separate columns with commas",
    ),
    "excel open": (folder({"train.csv": CSV, "~$test.xlsx": b"x"}), r"~\$test.xlsx is no file"),
    "excel empty rows": (
        folder({"train.csv": CSV + ",\n,\n"}),
        "train.csv, row 42: the text is empty",
    ),
    "libreoffice": (
        folder({"train.csv": CSV, ".~lock.train.csv#": "x", "test.ods": b"PK"}),
        "test.ods is no file of .*read_excel",
    ),
    # label tools
    "label studio min": (
        folder(
            {
                "project-1.json": json.dumps(
                    [{"text": r["text"], "sentiment": r["label"], "id": 1} for r in TRAIN]
                )
            }
        ),
        "train 40",
    ),
    "label studio": (
        folder(
            {"project-1.json": json.dumps([{"id": 1, "data": {"text": "a"}, "annotations": []}])}
        ),
        r"project-1.json has columns \['id', 'data', 'annotations'\]",
    ),
    "doccano": (
        folder({"all.jsonl": jsonl_of({**row, "label": [row["label"]]} for row in TRAIN)}),
        "all.jsonl, line 1: the label is a list",
    ),
    "prodigy": (
        folder(
            {"a.jsonl": jsonl_of({**row, "_task_hash": 1, "answer": "accept"} for row in TRAIN)}
        ),
        "train 40",
    ),
    "prodigy rejects": (
        folder({"a.jsonl": jsonl_of([*TRAIN, {**TEST[0], "_task_hash": 1, "answer": "reject"}])}),
        "a.jsonl, line 41: Prodigy's answer is not accept",
    ),
    "brat": (folder({"train.csv": CSV, "1.ann": "T1", "1.txt": "a"}), "1.ann is no file of"),
    "labels in unicode forms": (
        folder({"a.csv": CSV + "x,caf\u00e9\n", "b.csv": "text,label\ny,cafe\u0301\n"}),
        r"labels 'caf\\xe9' and 'cafe\\u0301' look like one",
    ),
    "labels without width": (
        folder({"a.csv": CSV + "x,pos\u200b\n"}),
        r"'pos\\u200b' look like one",
    ),
    "labels as floats": (
        folder(
            {
                "a.csv": "text,label\na,0.0\nb,1.0\n",
                "b.parquet": parquet_of([{"text": "c", "label": 0.0}]),
            }
        ),
        "labels '0.0' and '0' look like one",
    ),
    "labels that look like dates": (
        folder(
            {
                "a.jsonl": jsonl_of(
                    {**row, "label": f"2020-01-0{row['label'] == 'pos':d}"} for row in TRAIN
                )
            }
        ),
        "train 40: 2020-01-00 20, 2020-01-01 20",
    ),
    "numbers and texts": (
        folder({"a.jsonl": jsonl_of([{"text": "a", "label": 1}, {"text": 2, "label": "b"}])}),
        "train 2: 1 1, b 1",
    ),
    # links and what lies next to data
    "linked folder": (
        folder({"a.csv": CSV, "../store/b.csv": TEST_CSV}, lambda: link("own/test", "../store")),
        ALL,
    ),
    "link to a folder above": (folder({"a.csv": CSV}, lambda: link("own/b/c", "..")), "train 40"),
    "empty test folder": (
        folder({"train/a.csv": CSV, "test/README.md": "x"}),
        "own/test has no data file",
    ),
    "two links of one file": (
        folder(
            {"../v2.csv": CSV},
            *(lambda n=n: link(f"own/{n}.csv", "../v2.csv") for n in ("v2", "latest")),
        ),
        "train 40",
    ),
    "dangling link": (
        folder({"train.csv": CSV}, lambda: link("own/test.csv", "../none")),
        "test.csv is a link",
    ),
    "dvc": (
        folder({"train.csv": CSV, "train.csv.dvc": "md5: 0", "dvc.yaml": "", "test.csv": TEST_CSV}),
        ALL,
    ),
    "dvc not pulled": (
        folder({"train.csv": CSV, "test.csv.dvc": "md5: 0"}),
        "test.csv.dvc is no file of",
    ),
    "documents": (
        folder(
            {"train.csv": CSV, "test.csv": TEST_CSV}
            | dict.fromkeys(
                ("LICENSE", "README.txt", "SHA256SUMS", "train.csv.md5", "make.py", ".DS_Store"),
                "x",
            )
            | {"__MACOSX/._train.csv": "x", "checksums.txt": "x"}
        ),
        ALL,
    ),
    "backup": (folder({"train.csv": CSV, "test.csv.bak": TEST_CSV}), "test.csv.bak is no file of"),
    "texts in folders": (folder({"pos/1.txt": "a", "neg/1.txt": "b"}), "1.txt is no file of"),
    "web page": (folder({"train.csv": CSV, "test.csv": "<!doctype html>"}), "test.csv holds HTML"),
    "webdataset": (
        folder({"train.csv": CSV, "test-0.tar": b"x"}),
        "test-0.tar is no file of .*unpack",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_read_right_or_ends_in_a_sentence(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected, *warned = FOLDERS[name]
    make()
    datasets.disable_progress_bars()
    try:
        tables = sources.read(sources.find("own"), COLUMNS, Path("cache"))
        for table in tables:
            sources.check_filled(table, "text")
        tables = splits.labelled(tables)
        found = summary(tables, with_labels=":" in expected)
    except UserError as error:
        found = str(error)
        assert "\n" not in found and found.count("; ") >= 1
        assert re.search(expected, found), found
    else:
        assert found == expected
    warnings = " ".join(capsys.readouterr().err.split("\n"))
    assert re.search("".join(warned), warnings), warnings
    assert bool(warned) == ("warning" in warnings), warnings


def summary(tables: list[sources.Table], with_labels: bool) -> str:
    """The rows of each split, and those of each label."""
    parts = []
    for split in sources.SPLITS:
        labels = Counter(
            label for table in tables if table.split == split for label in table.rows["label"]
        )
        if labels:
            counts = ", ".join(f"{label} {labels[label]}" for label in sorted(labels))
            parts.append(f"{split} {labels.total()}" + (f": {counts}" if with_labels else ""))
    return ", ".join(parts)
