"""Sources are found by path, split by name, and read as text; a file that is wrong is named."""

import bz2
import csv
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smlightning.data import sources
from smlightning.data.sources import Column
from smlightning.errors import UserError

BODY = Column("body", usual=("body", "phrase"))
KIND = Column("kind", usual=("kind", "class"))
ROWS = [(f"phrase {number}", "abc"[number % 3]) for number in range(60)]


def read(dataset: str, *columns: Column) -> dict[str, list[tuple]]:
    """All rows of each split."""
    found: dict[str, list[tuple]] = {}
    for table in sources.read(sources.find(dataset), columns or (BODY, KIND), Path("cache")):
        rows = table.rows.to_dict()
        names = [column.name for column in columns or (BODY, KIND)]
        found.setdefault(table.split, []).extend(zip(*(rows[name] for name in names), strict=True))
    return found


def write(path: str, content: str | bytes) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_csv(path: str, rows: list[tuple], separator: str = ",", encoding: str = "utf-8") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=separator).writerows([("body", "kind"), *rows])
    return path


def write_json(path: str, *rows: object) -> str:
    return write(path, "\n".join(json.dumps(row) for row in rows))


MOST_MEMORY = """
import tracemalloc
from pathlib import Path
from smlightning.data import sources
columns = [sources.Column(name, usual=(name,)) for name in ("body", "kind")]
tracemalloc.start()
tables = sources.read(sources.find("rows.parquet"), columns, Path("cache"))
assert len(tables[0].rows) == 200_000
print(tracemalloc.get_traced_memory()[1])
"""


def test_the_groups_of_a_parquet_file_are_in_memory_one_by_one() -> None:
    """Of 60 MB: pyarrow's own setting keeps what it has read until the file ends."""
    table = pa.table({"body": ["x" * 290] * 200_000, "kind": ["a", "b"] * 100_000})
    pq.write_table(
        table, "rows.parquet", row_group_size=2000, use_dictionary=False, compression="none"
    )
    run = subprocess.run([sys.executable, "-c", MOST_MEMORY], stdout=subprocess.PIPE, check=True)
    assert table.nbytes > 58e6 and int(run.stdout) < 12e6


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "json", "parquet", "arrow", "ipc"])
def test_every_format_is_read_from_the_channel(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.Dataset.from_dict(
        {
            "class": [kind for _, kind in ROWS],
            "id": list(range(len(ROWS))),
            "phrase": [phrase for phrase, _ in ROWS],
        }
    )
    channel = Path("channel")
    channel.mkdir()

    def save_with_index() -> None:
        whole = table.data.table
        with pa.ipc.new_file(channel / "rows.arrow", whole.schema) as file:
            file.write_table(whole)

    save: dict[str, Callable[[], object]] = {
        "csv": lambda: table.to_csv(channel / "rows.csv"),
        "tsv": lambda: table.to_csv(channel / "rows.tsv", sep="\t"),
        "jsonl": lambda: table.to_json(channel / "rows.jsonl"),
        "json": lambda: table.to_json(channel / "rows.json", lines=False),
        "parquet": lambda: table.to_parquet(channel / "rows.parquet"),
        "arrow": lambda: table.save_to_disk(str(channel)),
        "ipc": save_with_index,
    }
    save[form]()
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(channel.absolute()))
    assert read("training") == {"train": ROWS}


@pytest.mark.parametrize(
    "names",
    [
        ("trainset", "validation", "test-1"),
        ("a/training", "a/dev.en", "imdb_testset"),
        ("x", "val/1", "Test2"),
        ("train", "valid", "eval"),
    ],
)
def test_names_of_files_and_folders_choose_the_split(names: tuple[str, str, str]) -> None:
    parts = (ROWS[0::2], ROWS[1::4], ROWS[3::4])
    for name, part in zip(names, parts, strict=True):
        write_json(f"own/{name}.jsonl", *({"body": body, "kind": kind} for body, kind in part))
    assert read("own") == dict(zip(sources.SPLITS, parts, strict=True))


def test_files_with_links_packed_or_with_signs_in_their_names_are_read() -> None:
    """The hub's cache and DVC lay files out as links; `datasets` takes a name for a pattern."""
    write_csv("store/0123abcd", ROWS)
    write_csv("own/.ipynb_checkpoints/test-checkpoint.csv", ROWS)
    Path("own/train[1]*?.csv").symlink_to(Path("store/0123abcd").absolute())
    Path("own/dev.csv").mkdir()
    content = Path("store/0123abcd").read_bytes()
    write("own/test.csv.gz", gzip.compress(content))
    write("own/val.CSV.bz2", bz2.compress(content))
    assert read("own") == {split: ROWS for split in sources.SPLITS}
    assert read("own/train[1]*?.csv") == {"train": ROWS}


def test_facts_of_a_source_change_with_its_files() -> None:
    path = write_csv("a.csv", ROWS)
    before = sources.find(path).facts()
    assert sources.find(path).facts() == before
    os.utime(path, ns=(1, 1))
    assert sources.find(path).facts() != before
    assert sources.find("owner/name").facts() == ["hub", "owner/name"]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_fields_of_a_csv_are_text_and_may_hold_separators_and_lines(separator: str) -> None:
    """With a byte order mark and lines that end as on Windows, as spreadsheets write them."""
    rows = [("NA", "007"), ("None", "1.0"), ("true", "2020-01-01"), (" six ", "Île"), ("", "0x1")]
    rows += [(text, "x") for text in ("one, two", 'say "three"', "four\nfive", "\tsix", "a\r\nb")]
    path = {",": "a.csv", "\t": "a.tsv"}[separator]
    assert read(write_csv(path, rows, separator, "utf-8-sig")) == {"train": rows}


@pytest.mark.parametrize("lines", [5, 600])
def test_a_quotation_mark_that_joins_rows_of_a_csv_is_reported(
    lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few lines may be one text."""
    joined = ['"secret,a', *["x,b"] * lines, 'y",a']
    table = read(write("a.csv", "\n".join(["body,kind", "x,a", *joined, "z,b\n"])))
    assert len(table["train"]) == 3
    warned = "a.csv, row 3: a field in quotation marks goes over several rows"
    err = capsys.readouterr().err
    assert (warned in err) is (lines > 10) and "secret" not in err


def test_quoted_line_ends_stay_at_the_border_of_a_block() -> None:
    """pyarrow's reader of csv loses one (arrow#51368)."""
    rows = [(f"{'a' * (number % 97)}\r\n{'b' * (number % 31)}", "x") for number in range(40_000)]
    content = "".join(f'"{text}",{kind}\r\n' for text, kind in rows)
    assert len(content) > 2**21
    assert read(write("a.csv", "body,kind\r\n" + content)) == {"train": rows}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),  # pandas' categories
        (pa.array([1.5, 2.0, None]), ["1.5", "2", None]),
        (pa.array([1, 2, None], pa.int8()), ["1", "2", None]),
        (pa.array([True, False]), ["True", "False"]),
        (pa.array(["007", "NA", ""]), ["007", "NA", ""]),
        (pa.nulls(2), [None, None]),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_columns_of_other_types_become_text(form: str, kinds: pa.Array, expected: list) -> None:
    table = pa.table({"kind": kinds, "other": [[1]] * len(kinds), "body": ["x"] * len(kinds)})
    if form == "parquet":
        pq.write_table(table, "a.parquet")
    else:
        with pa.ipc.new_stream("a.arrow", table.schema) as stream:
            stream.write_table(table)
    assert read(f"a.{form}") == {"train": [("x", kind) for kind in expected]}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_numbers_of_classes_become_their_names(form: str) -> None:
    features = datasets.Features(
        {"body": datasets.Value("large_string"), "kind": datasets.ClassLabel(names=["b", "a"])}
    )
    for name, kinds in (("train", [0, 1, 0]), ("test", [-1, -1, -1])):  # -1: kept secret
        columns = {"body": ["x", "y", "z"], "kind": kinds}
        table = datasets.Dataset.from_dict(columns, features=features)
        if form == "parquet":
            Path("own").mkdir(exist_ok=True)
            table.to_parquet(f"own/{name}.parquet")
        else:
            table.save_to_disk(f"own/{name}")
    rows = read("own")
    assert rows["train"] == [("x", "b"), ("y", "a"), ("z", "b")]
    assert rows["test"] == [("x", None), ("y", None), ("z", None)]


def test_the_cache_of_datasets_is_no_data() -> None:
    table = datasets.Dataset.from_dict({"body": ["x", "y"], "kind": ["a", "b"]})
    datasets.DatasetDict({"train": table}).save_to_disk("saved")
    datasets.load_from_disk("saved")["train"].map(lambda row: row, load_from_cache_file=False)
    assert list(Path("saved/train").glob("cache-*.arrow"))
    assert read("saved") == {"train": [("x", "a"), ("y", "b")]}


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.json", '{"body": "x", "kind": 1}\n\n{"kind": 2, "body": null}\n', "x1 _2"),
        ("b.json", '[{"body": "x", "kind": 1},\n {"kind": 2}]\n', "x1 _2"),
        ("c.jsonl", '\ufeff{"body": "x", "kind": 1}\r\n{"kind": 2}', "x1 _2"),
        ("d.json", '\ufeff[{"body": "x", "kind": null, "other": [{}]}]', "x_"),
        (
            "e.jsonl",
            '{"body": "x", "o": {"a": 1}, "kind": 1}\n{"o": {"b": [1]}, "kind": 2}',
            "x1 _2",
        ),
    ],
)
def test_json_is_read_as_lines_and_as_a_list(name: str, content: str, rows: str) -> None:
    expected = [tuple(None if sign == "_" else sign for sign in row) for row in rows.split()]
    assert read(write(name, content), BODY, Column("kind", given="kind")) == {"train": expected}


def test_dates_and_numbers_in_the_texts_of_json_stay_as_they_are() -> None:
    rows = [("2020-01-01", "007"), ("1e3", "NA")]
    write_json("a.jsonl", *({"body": body, "kind": kind} for body, kind in rows))
    assert read("a.jsonl") == {"train": rows}


def test_json_may_change_the_type_of_a_key_or_have_it_late() -> None:
    rows = [{"body": "x" * 200, "kind": number, "more": 1} for number in range(60_000)]
    rows[-1] = {"body": 1.0, "kind": "b", "more": {"a": [1]}, "late": "y"}
    write_json("a.jsonl", *rows)
    assert Path("a.jsonl").stat().st_size > 10 * 2**20  # a block of `datasets`
    found = read("a.jsonl")["train"]
    assert found[59_998:] == [("x" * 200, "59998"), ("1", "b")]


def test_a_row_of_a_divided_file_keeps_its_number() -> None:
    columns = [BODY, Column("label", usual=("label",))]
    write("a.csv", "body,label,split\nx,a,train\ny,a,test\n,a,test\n")
    test = sources.read(sources.find("a.csv"), columns, Path("cache"))[1]
    with pytest.raises(UserError, match=r"a.csv, row 4: the body is empty"):
        sources.check_filled(test, "body")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", "body,kind\n" + "x,y\n" * 9 + "secret,secret,secret\nx,y\n", "line 11"),
        ("a.csv", "body,kind\nsecret,x,y\nsecret,x,y\n", "more fields than the header"),
        ("a.csv", 'body,kind\n"secret,x\nx,y\n', "row 1"),
        ("a.csv", "body,body,kind\nsecret,x,y\n", "several match the body"),
        ("a.csv", "Île,mer\nbeau,grand\n", "none matches the body; set --body_column; .*row 1"),
        ("a.csv", "body;kind\nx;y\n", "none matches"),
        ("a.csv", "", "has no rows"),
        ("a.csv", "body,kind\n", "has no rows"),
        ("a.csv", b"body,kind\ncaf\xe9,x\n", "line 2 is not UTF-8"),
        ("a.csv", b"body,kind\n" + b"a,b\n" * 999_999 + b"\xe9,x", "line 1000001 is not UTF-8"),
        ("a.csv", b"body,kind\nx,y\xc3", "line 2 is not UTF-8"),
        ("a.tsv", 'body\tkind\nx\ty\n"secret\ty\nx\ty\n"x\ty\n', "row 3: .*quotation"),
        ("a.csv", "body,kind\nsec\0ret,x\n", "line 2 holds a zero byte"),
        ("a.jsonl", '{"body": "x", "kind": "secret"}\n{"body": "secret"', "line 2 is not JSON"),
        ("a.jsonl", '\n{"body": "x", "kind": 1}\n["secret"]', "line 3 is no JSON object"),
        ("a.jsonl", '{"body": "x", "kind": ["secret"]}', "line 1: the kind is a list"),
        (
            "a.json",
            '[{"body": "x", "kind": 1}, {"body": {"secret": 1}}]',
            "record 2: the body is a dict",
        ),
        ("a.jsonl", '{"a": "secret", "b": "y"}', "none matches the body; set --body_column$"),
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", b'{"body": "caf\xe9", "kind": "x"}', "line 1 is not UTF-8"),
        ("a.json", '[{"body": "x", "kind": "secret"},\n"secret', "line 2 is not JSON"),
        ("a.parquet", "secret", "could not be read"),
        ("a.arrow", "secret", "could not be read"),
        ("a.csv.gz", "secret", "could not be read"),
        ("a::file:b.csv", "body,kind\nx,y\n", "rename"),
    ],
)
def test_an_error_names_the_file_and_quotes_no_data(name: str, content: Any, match: str) -> None:
    """It becomes the job's FailureReason; the data may be confidential."""
    with pytest.raises(UserError, match=match) as raised:
        read(write(f"own/{name}", content))
    assert f"own/{name}" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_parquet_without_rows_ends_in_an_error() -> None:
    pq.write_table(pa.table({"body": pa.nulls(0), "kind": pa.nulls(0)}), "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet has no rows"):
        read("a.parquet")


@pytest.mark.parametrize("kinds", [pa.array([b"a"]), pa.array([[1]]), pa.array([{"a": 1}])])
def test_a_column_that_is_no_text_ends_in_an_error(kinds: pa.Array) -> None:
    pq.write_table(pa.table({"body": ["x"], "kind": kinds}), "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet: the kind is .*--kind_column"):
        read("a.parquet")


def both(*names: str) -> str:
    for name in names:
        write_json(f"own/{name}", {"body": "x", "kind": "y"})
    return "own"


@pytest.mark.parametrize(
    ("dataset", "match"),
    [
        (lambda: "./nowhere.csv", "./nowhere.csv"),
        (lambda: "a/b/c", "a/b/c"),
        (lambda: "", "''"),
        (lambda: "training", "SM_CHANNEL_TRAINING"),
        (lambda: write_json("notes.txt", 1), "notes.txt is no file of"),
        (lambda: write("own/README.md", "") and "own", "no data file"),
        (lambda: both("train.jsonl", "test.csv.zip"), "test.csv.zip"),
        (lambda: both("val.jsonl", "test.jsonl"), "validation, test data only"),
    ],
)
def test_a_source_without_data_ends_in_an_error(dataset: Callable[[], str], match: str) -> None:
    with pytest.raises(UserError, match=match):
        read(dataset())


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_unknown_name_of_the_hub_ends_in_an_error(is_folder: bool) -> None:
    """With a network the hub rejects it, without one its cache does."""
    if is_folder:  # the name may be a mistyped path
        Path("no-such-owner/no-such-data-sets").mkdir(parents=True)
    with pytest.raises(UserError, match="no-such-data-set") as raised:
        read("no-such-owner/no-such-data-set", BODY)
    assert ("no-such-owner/no-such-data-sets?" in raised.value.problem) == is_folder


def test_a_missing_path_that_is_no_name_of_the_hub_ends_in_an_error() -> None:
    Path("words").mkdir()
    with pytest.raises(UserError, match="no such file or folder; give a path"):
        sources.find("~no-such-user/words")
    with pytest.raises(UserError, match="no such file or folder; did you mean words"):
        sources.find("wrods/")


def test_local_files_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` ignores the errors of a connection, so the test counts them."""
    connections = []

    def connect(*address: object, **_: object) -> None:
        connections.append(address)
        raise OSError("no network")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)
    assert read(write_csv("a.csv", ROWS)) == {"train": ROWS}
    assert not connections


def test_columns_are_found_by_option_by_usual_name_or_as_the_only_one_left() -> None:
    columns = [BODY, KIND]
    assert sources.find_columns(["id", "Class", "PHRASE"], columns, "t") == ["PHRASE", "Class"]
    assert sources.find_columns(["other", "body"], columns, "t") == ["body", "other"]
    given = [Column("body", given="class"), KIND]
    assert sources.find_columns(["kind", "class"], given, "t") == ["class", "kind"]


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["phrase", "class"], [BODY, Column("kind", given="phrase")]),
        (["body", "kind"], [Column("body", given="nope")]),
        (["body", "phrase"], [BODY]),
    ],
)
def test_missing_and_ambiguous_columns_end_in_an_error(
    names: list[str], columns: list[Column]
) -> None:
    with pytest.raises(UserError, match=r"t has columns .*; set --(body|kind)_column"):
        sources.find_columns(names, columns, "t")


def test_a_later_file_needs_the_names_of_the_first_one_or_usual_ones() -> None:
    found = [BODY, Column("kind", usual=("kind",), optional=True, found="other")]
    assert sources.find_columns(["other", "body"], found, "t") == ["body", "other"]
    assert sources.find_columns(["kind", "body"], found, "t") == ["body", "kind"]
    assert sources.find_columns(["id", "body"], found, "t", optional=True) == ["body", ""]
    with pytest.raises(UserError, match="none matches the kind; name it 'other'"):
        sources.find_columns(["id", "body"], found, "t")


@pytest.mark.parametrize(("texts", "row"), [(["a", None, ""], 12), (["a", " ", ""], 13)])
def test_the_first_row_without_a_text_is_named(texts: list[str | None], row: int) -> None:
    rows = datasets.Dataset.from_dict({"body": texts})
    with pytest.raises(UserError, match=f"a.csv, row {row}: the body is empty"):
        sources.check_filled(sources.Table("train", "a.csv", rows, 11), "body")
