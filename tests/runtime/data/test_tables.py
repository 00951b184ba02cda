"""Sources are found by path, split by name, and read as columns in bounded memory."""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smlightning.data import tables
from smlightning.data.tables import Column, Piece
from smlightning.errors import UserError

BODY = Column("body", usual=("body", "phrase"))
KIND = Column("kind", usual=("kind", "class"))
ROWS = [(f"phrase {number}", "abc"[number % 3]) for number in range(60)]


def read(dataset: str, *columns: Column) -> dict[str, list[tuple]]:
    """All rows of each split."""
    source = tables.find_source(dataset)
    splits = tables.read(source, columns or (BODY, KIND))
    return {
        split: [row for piece in pieces for row in rows_of(piece)]
        for split, pieces in splits.items()
    }


def rows_of(piece: Piece) -> list[tuple]:
    return list(zip(*(array.to_pylist() for array in piece.columns), strict=True))


def write_csv(path: str, rows: list[tuple], separator: str = ",") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows([("body", "kind"), *rows])
    return path


def write_lines(path: str, *lines: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines), encoding="utf-8")
    return path


def write_json(path: str, *rows: object) -> str:
    return write_lines(path, *(json.dumps(row) for row in rows))


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
    assert read("own") == dict(zip(("train", "val", "test"), parts, strict=True))


def test_links_are_followed_and_hidden_files_and_folders_are_left_out() -> None:
    """The hub's cache and DVC lay files out as links."""
    write_csv("store/0123abcd", ROWS)
    write_csv("own/.ipynb_checkpoints/test-checkpoint.csv", ROWS)
    Path("own/train.csv").symlink_to(Path("store/0123abcd").absolute())
    Path("own/test.csv").mkdir()
    for name in ("own", "own/train.csv", write_csv("test/validation.csv", ROWS)):
        assert read(name) == {"train": ROWS}


def test_facts_of_a_source_change_with_its_files() -> None:
    path = write_csv("a.csv", ROWS)
    before = tables.find_source(path).facts()
    assert tables.find_source(path).facts() == before
    os.utime(path, ns=(1, 1))
    assert tables.find_source(path).facts() != before
    assert tables.find_source("owner/name").facts() == ["hub", "owner/name"]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_fields_of_a_csv_are_text_and_may_hold_separators_and_lines(separator: str) -> None:
    """With a byte order mark and lines that end as on Windows, as spreadsheets write them."""
    rows = [("NA", "007"), ("None", "1.0"), ("true", "2020-01-01"), (" six ", "Île")]
    rows += [(text, "x") for text in ("one, two", 'say "three"', "four\nfive", "\tsix")]
    path = {",": "a.csv", "\t": "a.tsv"}[separator]
    with Path(path).open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=separator).writerows([("body", "kind"), *rows])
    assert read(path) == {"train": rows}


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


def test_parquet_keeps_other_types_and_decodes_categories() -> None:
    pq.write_table(pa.table({"kind": [1.5, None], "body": ["x", "y"]}), "a.PARQUET")
    assert read("a.PARQUET") == {"train": [("x", 1.5), ("y", None)]}
    kinds = pa.array(["a", None]).dictionary_encode()  # pandas' categories
    pq.write_table(pa.table({"body": ["x", "y"], "kind": kinds}), "b.parquet")
    (piece,) = tables.read(tables.find_source("b.parquet"), (BODY, KIND))["train"]
    assert rows_of(piece) == [("x", "a"), ("y", None)] and piece.columns[1].type == pa.string()


def test_pieces_are_small_and_have_the_place_of_each_row() -> None:
    many = 3 * tables.PIECE
    table = pa.table({"body": ["x"] * many, "kind": ["y"] * many})
    pq.write_table(table, "a.parquet", row_group_size=many)
    write_csv("b.csv", [("x", "y")] * many)
    write_json("c.jsonl", *[{"body": "x", "kind": "y"}] * many)
    for name, last in (("a.parquet", many), ("b.csv", many + 1), ("c.jsonl", many)):
        pieces = [*tables.read(tables.find_source(name), (BODY, KIND))["train"]]
        sizes = [len(piece.columns[0]) for piece in pieces]
        assert sum(sizes) == many and max(sizes) <= tables.PIECE and min(sizes) > 0
        assert pieces[-1].place(sizes[-1] - 1).startswith(f"{Path(name).absolute()}, row {last}")


def test_the_cache_of_datasets_is_no_data() -> None:
    table = datasets.Dataset.from_dict({"body": ["x", "y"], "kind": ["a", "b"]})
    datasets.DatasetDict({"train": table}).save_to_disk("saved")
    datasets.load_from_disk("saved")["train"].map(lambda row: row, load_from_cache_file=False)
    assert list(Path("saved/train").glob("cache-*.arrow"))
    assert read("saved") == {"train": [("x", "a"), ("y", "b")]}


@pytest.mark.parametrize(
    ("name", "lines", "place"),
    [
        ("a.csv", ["body,kind", *["x,y"] * 9, "secret,secret,secret", "x,y"], "a.csv.*#11"),
        ("a.csv", ["body,kind", "secret"], "a.csv.*#2"),
        ("a.csv", ["body,kind", '"secret,x', "x,y"], "a.csv.*#2"),
        ("a.jsonl", ['{"body": "x", "kind": "secret"}', '{"body": "secret"'], "a.jsonl, line 2"),
        ("a.jsonl", ['{"body": "x", "kind": 1}', "", '{"kind": "secret"}'], "row 2 .*kind.*type"),
        ("a.jsonl", ['{"body": "x", "kind": 1}', '{"kind": %s}' % ("1" * 30)], "row 2 .*64 bits"),
        ("a.json", [r'[{"body": "x"}, {"body": "secret\ud800", "kind": 1}]'], "row 2: .*surrogate"),
        ("a.json", ['[{"body": "x", "kind": "secret"},', '"secret'], "a.json.*line 2"),
        ("a.json", ['[{"body": "x", "kind": "secret"}]', "secret"], "a.json.*line 2"),
        ("a.json", ['[{"body": "x", "kind": "secret"}, "secret"]'], "a.json, record 2"),
    ],
)
def test_errors_have_file_and_row_and_quote_no_data(
    name: str, lines: list[str], place: str
) -> None:
    """They become the job's FailureReason; the data may be confidential."""
    with pytest.raises(UserError, match=place) as raised:
        read(write_lines(name, *lines))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        (
            "a.json",
            '{"body": "x", "kind": 1}\n\n{"kind": 2, "body": null}\n',
            [("x", 1), (None, 2)],
        ),
        ("b.json", ' [{"body": "x", "kind": 1},\n {"kind": 2.5}]\n', [("x", 1), (None, 2.5)]),
        ("c.jsonl", '\ufeff{"body": "x", "kind": 1}\r\n{"kind": 2}', [("x", 1), (None, 2)]),
        ("d.json", '\ufeff[{"body": "x", "kind": null, "other": [{}]}]', [("x", None)]),
        ("e.jsonl", '{"body": "2020-01-01", "kind": "007"}', [("2020-01-01", "007")]),
    ],
)
def test_json_is_read_as_lines_and_as_a_list(name: str, content: str, rows: list[tuple]) -> None:
    Path(name).write_text(content, encoding="utf-8")
    assert read(name, BODY, Column("kind", given="kind")) == {"train": rows}


HOSTILE = {
    "closed.jsonl": '{"body": "x", "kind": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    "closed.json": '[{"body": "x", "kind": ' + "[" * 100_000 + "]" * 100_000 + "}]",
    "unclosed.jsonl": '{"body": "x", "kind": ' + '{"a":' * 100_000,
    "keys.json": "{" + ", ".join(f'"{key}": 1' for key in range(300_000)) + "}",
    "keys.jsonl": "\n".join(f'{{"{key}": 1}}' for key in range(100_000)),
    "list.json": "[" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_ends_in_a_short_error(name: str) -> None:
    """pyarrow's reader crashed on the first, and read the keys for more than 45 s."""
    write_lines(name, HOSTILE[name])
    began = time.process_time()
    with pytest.raises(UserError, match=name) as raised:
        read(name)
    assert time.process_time() - began < 5
    assert len(str(raised.value)) < 900


READ = """
import sys
from pathlib import Path
from smlightning.data import tables
rows = tables.read(tables.find_source(sys.argv[1]), [tables.Column("body")])
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
before, bytes_read = peak(), 0
for number, piece in enumerate(rows["train"]):
    bytes_read += piece.columns[0].nbytes
    if number == 40:  # the rest is as long
        break
print(bytes_read // 2**20, round(peak() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("store_schema", [True, False])
def test_a_short_parquet_of_long_texts_is_read_in_little_memory(store_schema: bool) -> None:
    """A dictionary's one text of 4 MB is in each of 8,192 rows: 32 GiB from a file of some kB."""
    indices = pa.array([0] + [1] * 8191, pa.int32())
    text = pa.DictionaryArray.from_arrays(indices, ["short", "x" * 2**22])
    table = pa.table({"body": text})
    pq.write_table(table, "a.parquet", compression="zstd", store_schema=store_schema)
    assert Path("a.parquet").stat().st_size < 10_000
    command = [sys.executable, "-c", READ, "a.parquet"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    read_mib, peak_mib = map(int, out.split())
    assert read_mib > 2000 and peak_mib < 500


def both(*names: str) -> str:
    for name in names:
        write_json(f"own/{name}", {"body": "x", "kind": "y"})
    return "own"


def file_of(name: str, content: bytes) -> str:
    Path(name).write_bytes(content)
    return name


@pytest.mark.parametrize(
    ("dataset", "match"),
    [
        (lambda: "./nowhere.csv", "./nowhere.csv"),
        (lambda: "a/b/c", "a/b/c"),
        (lambda: "", "''"),
        (lambda: "training", "SM_CHANNEL_TRAINING"),
        (lambda: write_json("notes.txt", 1), "no data file"),
        (lambda: write_json("a.jsonl", {"a": "x", "b": "y"}), "a.jsonl.*the body"),
        (lambda: file_of("a.csv", b""), "a.csv"),
        (lambda: file_of("a.csv", b"body,kind\n"), "a.csv has no rows"),
        (lambda: file_of("a.jsonl", b""), "a.jsonl has no rows"),
        (lambda: both("a.parquet"), "a.parquet"),
        (lambda: file_of("a.csv", b"body,kind\ncaf\xe9,x\n"), "a.csv.*UTF-8"),
        (lambda: file_of("a.csv", b"body,kind\n" + b"a,b\n" * 9999 + b"\xe9,x"), "a.csv.*UTF-8"),
        (lambda: file_of("a.jsonl", b'{"body": "caf\xe9"}'), "a.jsonl, line 1.*UTF-8"),
        (lambda: both("val.jsonl", "test.jsonl"), "test, val only"),
    ],
)
def test_an_unreadable_source_ends_in_an_error(dataset: Callable[[], str], match: str) -> None:
    with pytest.raises(UserError, match=match):
        read(dataset())


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_unknown_name_of_the_hub_ends_in_an_error(is_folder: bool) -> None:
    """With a network the hub rejects it, without one its cache does."""
    if is_folder:  # the name may be a mistyped path
        Path("no-such-owner/no-such-data-sets").mkdir(parents=True)
    source = tables.find_source("no-such-owner/no-such-data-set")
    with pytest.raises(UserError, match="no-such-data-set") as raised:
        tables.read(source, [BODY])
    assert ("no-such-owner/no-such-data-sets?" in raised.value.problem) == is_folder


def test_a_missing_path_that_is_no_name_of_the_hub_ends_in_an_error() -> None:
    Path("words").mkdir()
    with pytest.raises(UserError, match="no such file or folder; give a path"):
        tables.find_source("~no-such-user/words")
    with pytest.raises(UserError, match="no such file or folder; did you mean words"):
        tables.find_source("wrods/")


def test_columns_are_found_by_option_by_usual_name_or_as_the_only_one_left() -> None:
    columns = [BODY, KIND]
    assert tables.find_columns(["id", "Class", "PHRASE"], columns, "t") == ["PHRASE", "Class"]
    assert tables.find_columns(["other", "body"], columns, "t") == ["body", "other"]
    given = [Column("body", given="class"), KIND]
    assert tables.find_columns(["kind", "class"], given, "t") == ["class", "kind"]


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["phrase", "class"], [BODY, Column("kind", given="phrase")]),
        (["body", "kind"], [Column("body", given="nope")]),
        (["body", "phrase"], [BODY]),
        (["body;kind"], [BODY, KIND]),
    ],
)
def test_missing_and_ambiguous_columns_end_in_an_error(
    names: list[str], columns: list[Column]
) -> None:
    with pytest.raises(UserError, match=r"t has columns .* row 1 holds the columns' names"):
        tables.find_columns(names, columns, "t")


# Text files


def texts_of(dataset: str) -> dict[str, list[str]]:
    splits = tables.read(tables.find_source(dataset, texts=True), [Column("text")])
    return {
        split: [row for p in pieces for (row,) in rows_of(p)] for split, pieces in splits.items()
    }


def test_text_files_are_documents_unless_a_folder_has_tables() -> None:
    for name in ("wiki.train.txt", "valid/a.md", "wiki.test.txt", ".hidden/a.txt"):
        write_lines(f"own/{name}", name, name)
    names = {"train": "wiki.train.txt", "val": "valid/a.md", "test": "wiki.test.txt"}
    expected = {split: [f"{name}\n{name}"] for split, name in names.items()}
    assert texts_of("own") == expected
    write_json("own/a.jsonl", {"text": "x"})
    assert texts_of("own") == {"train": ["x"]}


def test_a_single_text_file_is_divided_at_its_lines() -> None:
    content = "".join(f"line {number}, and more\n" for number in range(1000))
    parts = texts_of(write_lines("book.txt", content))["train"]
    assert "".join(parts) == content and len(parts) == tables.DIVIDED
    assert all(part.startswith("line ") for part in parts)
    assert max(map(len, parts)) < 1.1 * min(map(len, parts))
    assert texts_of(write_lines("short.txt", "one", "two"))["train"] == ["one\n", "two"]


def test_text_files_have_to_be_utf_8() -> None:
    assert texts_of(file_of("a.txt", b"\xef\xbb\xbfcaf\xc3\xa9\r\n"))["train"] == ["café\n"]
    with pytest.raises(UserError, match=r"b.txt.*UTF-8"):
        texts_of(file_of("b.txt", b"caf\xe9"))
