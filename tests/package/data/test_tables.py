"""Sources are named and read as columns; what cannot be read rightly is refused."""

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
from smlightning.data.tables import Column
from smlightning.errors import UserError

BODY = Column("body", usual=("body", "phrase"))
KIND = Column("kind", usual=("kind", "class"))
ROWS = [(f"phrase {number}", "abc"[number % 3]) for number in range(60)]


def read(dataset: str, *columns: Column) -> dict[str, list[tuple]]:
    """All rows of each split."""
    source = tables.find_source(dataset)
    splits = {}
    for split, pieces in tables.read(source, columns or (BODY, KIND), Path("scratch")).items():
        splits[split] = [row for arrays in pieces for row in rows_of(arrays)]
    return splits


def rows_of(arrays: list[pa.Array]) -> list[tuple]:
    return list(zip(*(array.to_pylist() for array in arrays), strict=True))


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


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_every_format_in_the_jobs_channel(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.Dataset.from_dict(
        {
            "id": list(range(len(ROWS))),
            "phrase": [phrase for phrase, _ in ROWS],
            "class": [kind for _, kind in ROWS],
        }
    )
    channel = Path("channel")
    channel.mkdir()
    save: dict[str, Callable[[], object]] = {
        "csv": lambda: table.to_csv(channel / "rows.csv"),
        "tsv": lambda: table.to_csv(channel / "rows.tsv", sep="\t"),
        "jsonl": lambda: table.to_json(channel / "rows.jsonl"),
        "parquet": lambda: table.to_parquet(channel / "rows.parquet"),
        "arrow": lambda: table.save_to_disk(str(channel)),
    }
    save[form]()
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(channel.absolute()))
    assert read("training") == {"train": ROWS}


def test_a_csv_with_a_mark_that_no_other_ends_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where what is read at a time ends within a field; quoted fields of any kind are read."""
    quoted = [('a, "b" c', "x"), ('two\nlines, "', "y"), ('5" wide', "z"), ('""', "x"), ("", '"')]
    path = write_csv("quoted.csv", quoted * 9)
    assert read(path) == {"train": quoted * 9}
    with monkeypatch.context() as patch:
        for size in range(20, 60):
            patch.setattr(tables, "BLOCK", size)
            tables._refuse_stray_marks(Path(path))
    good = [f"phrase {number},a" for number in range(50)]
    for stray in ('"she said,a', '"so" they say,b', '"'):
        write_lines("stray.csv", "body,kind", *good[:20], stray, *good, '"quoted, too",b', *good)
        with pytest.raises(UserError) as refused:
            read("stray.csv")
        assert "line 22" in refused.value.problem and "jsonl" in refused.value.cure


@pytest.mark.parametrize(
    "names",
    [
        ("trainset", "validation", "test-1"),
        ("a/training", "a/dev.en", "imdb_testset"),
        ("x", "val/1", "Test2"),
    ],
)
def test_names_tell_the_splits(names: tuple[str, str, str]) -> None:
    parts = (ROWS[0::2], ROWS[1::4], ROWS[3::4])
    for name, part in zip(names, parts, strict=True):
        write_json(f"own/{name}.jsonl", *({"body": body, "kind": kind} for body, kind in part))
    assert read("own") == dict(zip(("train", "val", "test"), parts, strict=True))


def test_links_folders_and_copies_that_editors_keep() -> None:
    """The hub's cache and DVC lay files out as links; folders and hidden files are not data."""
    write_csv("store/0123abcd", ROWS)
    write_csv("own/.ipynb_checkpoints/test-checkpoint.csv", ROWS)
    Path("own/train.csv").symlink_to(Path("store/0123abcd").absolute())
    Path("own/test.csv").mkdir()
    for name in ("own", "own/train.csv"):
        assert read(name) == {"train": ROWS}


def test_a_file_that_is_named_is_for_training_wherever_it_lies() -> None:
    assert read(write_csv("test/validation.csv", ROWS)) == {"train": ROWS}


def test_a_changed_file_is_another_source() -> None:
    path = write_csv("a.csv", ROWS)
    before = tables.find_source(path).facts()
    assert tables.find_source(path).facts() == before
    os.utime(path, ns=(1, 1))
    assert tables.find_source(path).facts() != before
    assert tables.find_source("owner/name").facts() == ["hub", "owner/name"]


def test_what_csv_holds_is_text() -> None:
    rows = [("NA", "007"), ("None", "1.0"), ("12", "NA"), ("true", "2020-01-01")]
    assert read(write_csv("a.csv", rows)) == {"train": rows}


def test_csv_as_spreadsheets_write_it() -> None:
    """A mark at the beginning, lines that end as on Windows, quoted commas, quotes and lines."""
    rows = [(text, "x") for text in ("one, two", 'say "three"', "four\nfive", " six ", "Île")]
    with Path("a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("body", "kind"), *rows])
    assert read("a.csv") == {"train": rows}


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


def test_other_types_are_given_as_they_are() -> None:
    pq.write_table(pa.table({"body": ["x", "y"], "kind": [1.5, None]}), "a.PARQUET")
    assert read("a.PARQUET") == {"train": [("x", 1.5), ("y", None)]}
    kinds = pa.array(["a", None]).dictionary_encode()  # as of pandas' categories
    pq.write_table(pa.table({"body": ["x", "y"], "kind": kinds}), "b.parquet")
    (pieces,) = tables.read(tables.find_source("b.parquet"), (BODY, KIND), Path())["train"]
    assert rows_of(pieces) == [("x", "a"), ("y", None)] and pieces[1].type == pa.string()


def test_pieces_are_small_whatever_the_file_has() -> None:
    many = 3 * tables.PIECE
    table = pa.table({"body": ["x"] * many, "kind": ["y"] * many})
    pq.write_table(table, "a.parquet", row_group_size=many)
    write_csv("b.csv", [("x", "y")] * many)
    write_json("c.jsonl", *[{"body": "x", "kind": "y"}] * many)
    for name in ("a.parquet", "b.csv", "c.jsonl"):
        source = tables.find_source(name)
        pieces = tables.read(source, (BODY, KIND), Path("scratch"))["train"]
        sizes = [len(body) for body, _ in pieces]
        assert sum(sizes) == many and max(sizes) <= tables.PIECE and min(sizes) > 0


def test_what_datasets_leaves_beside_its_data_is_not_data() -> None:
    table = datasets.Dataset.from_dict({"body": ["x", "y"], "kind": ["a", "b"]})
    datasets.DatasetDict({"train": table}).save_to_disk("saved")
    datasets.load_from_disk("saved")["train"].map(lambda row: row, load_from_cache_file=False)
    assert list(Path("saved/train").glob("cache-*.arrow"))
    assert read("saved") == {"train": [("x", "a"), ("y", "b")]}


def test_a_save_into_the_folder_of_an_earlier_one_is_read_alone() -> None:
    for many, shards in ((300, 3), (100, 1)):
        columns = {"body": [f"{many} {i}" for i in range(many)], "kind": ["x"] * many}
        datasets.Dataset.from_dict(columns).save_to_disk("saved", num_shards=shards)
    assert len(list(Path("saved").glob("*.arrow"))) == 4
    assert [body for body, _ in read("saved")["train"]] == [f"100 {i}" for i in range(100)]


def test_a_quoted_field_of_a_tsv_may_hold_tabs_and_lines() -> None:
    rows = [(f"if x:\n\treturn 1\nreturn {i}", "a") for i in range(40)]
    assert read(write_csv("a.tsv", rows, "\t")) == {"train": rows}


def test_a_tsv_may_be_wide() -> None:
    header = ["body", "kind", *map(str, range(1200))]
    lines = ["\t".join([f"x {i}", "a", *["0"] * 1200]) for i in range(40)]
    write_lines("a.tsv", "\t".join(header), *lines)
    assert len(read("a.tsv")["train"]) == 40


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (["body\tkind", '"a\tx', 'b"\ty'], "row 1: a quotation mark opens field 1"),
        (["note\tbody\tkind", *["a\tx\t1"] * 3, '"a\tx\t1', "b\ty\t2", 'c"\tz\t1'], "row 4:"),
        (["kind\tbody", '1\t"a', "2\tb", '1\tc"'], "row 1: a quotation mark opens field 2"),
    ],
)
def test_a_quotation_mark_that_swallows_rows_is_refused(lines: list[str], place: str) -> None:
    with pytest.raises(UserError) as refusal:
        read(write_lines("a.tsv", *lines))
    assert place in refusal.value.problem


@pytest.mark.parametrize(
    ("name", "lines", "place"),
    [
        ("a.csv", ["body,kind", *["x,y"] * 9, "secret,secret,secret", "x,y"], "row 11: 3 fields"),
        ("a.csv", ["body,kind", "secret"], "row 2: 1 fields"),
        ("a.csv", ["body,kind", '"secret,x', "x,y"], "line 2"),
        ("a.tsv", ["body\tkind", '"secret\tx', 'b"\ty'], "row 1"),
        ("a.jsonl", ['{"body": "x", "kind": "secret"}', '{"body": "secret"'], "record 2"),
        ("a.jsonl", ['{"body": "x", "kind": 1}', '{"body": "x", "kind": "secret"}'], "record 2"),
        ("a.jsonl", ['{"body": "x", "kind": ["secret"]}'], "record 1"),
        ("a.json", ['[{"body": "x", "kind": "secret"}, "secret'], "record 2"),
    ],
)
def test_errors_quote_no_rows(name: str, lines: list[str], place: str) -> None:
    """They become the job's FailureReason; the data may be confidential."""
    with pytest.raises(UserError) as refused:
        read(write_lines(name, *lines))
    assert place in refused.value.problem and name in refused.value.problem
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lines.json", '{"body": "x", "kind": 1}\n\n{"kind": 2.5, "body": null}\n'),
        ("list.json", ' [{"body": "x", "kind": 1},\n {"kind": 2.5, "other": [{}]}]\n'),
        ("mark.jsonl", '\ufeff{"body": "x", "kind": 1}\r\n{"kind": 2.5}'),
        ("marked.json", '\ufeff[{"body": "x", "kind": 1}, {"kind": 2.5}]'),
    ],
)
def test_json_is_read_as_lines_and_as_a_list(name: str, content: str) -> None:
    Path(name).write_text(content, encoding="utf-8")
    assert read(name) == {"train": [("x", 1), (None, 2.5)]}


@pytest.mark.parametrize(
    ("content", "record"),
    [
        ('[{"body": "x", "kind": 1}]\n[{"body": "y", "kind": 2}]', 2),
        ('[{"body": "x", "kind": 1} {"body": "y", "kind": 2}]', 2),
        ('[{"body": "x", "kind": 1}, , {"body": "y", "kind": 2}]', 2),
        ('[{"body": "x", "kind": 1},]', 2),
        ('[{"body": "x", "kind": 1}', 2),
    ],
)
def test_a_list_of_json_is_read_whole_or_rejected(content: str, record: int) -> None:
    Path("list.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=f"list.json.*record {record}"):
        read("list.json")


def test_what_json_holds_as_text_stays_text() -> None:
    rows = [("2020-01-01", "007"), ("1", "true")]
    path = write_json("a.jsonl", *({"body": body, "kind": kind} for body, kind in rows))
    assert read(path) == {"train": rows}
    assert read(write_json("b.json", ["x", "y"]), Column("text")) == {"train": [("x",), ("y",)]}


HOSTILE = {
    "closed.jsonl": '{"body": "x", "kind": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    "closed.json": '[{"body": "x", "kind": ' + "[" * 100_000 + "]" * 100_000 + "}]",
    "unclosed.jsonl": '{"body": "x", "kind": ' + '{"a":' * 100_000,
    "keys.json": "{" + ", ".join(f'"{key}": 1' for key in range(300_000)) + "}",
    "keys.jsonl": "\n".join(f'{{"{key}": 1}}' for key in range(100_000)),
    "list.json": "[" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_in_a_sentence(name: str) -> None:
    """pyarrow's reader crashed on the first, and read the keys for more than 45 s."""
    write_lines(name, HOSTILE[name])
    began = time.process_time()
    with pytest.raises(UserError) as refused:
        read(name)
    assert time.process_time() - began < 5
    assert name in refused.value.problem and len(str(refused.value)) < 900


READ = """
import sys
from pathlib import Path
from smlightning.data import tables
rows = tables.read(tables.find_source(sys.argv[1]), [tables.Column("body")], Path("scratch"))
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
before, bytes_read = peak(), 0
for number, (texts,) in enumerate(rows["train"]):
    bytes_read += texts.nbytes
    if number == 40:  # the rest is as long
        break
print(bytes_read // 2**20, round(peak() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("store_schema", [True, False])
def test_a_short_parquet_of_long_texts_is_read_in_little_memory(store_schema: bool) -> None:
    """A dictionary's one text of 4 MB is in each of 8,192 rows: 32 GiB, of a file of some kB."""
    indices = pa.array([0] + [1] * 8191, pa.int32())
    text = pa.DictionaryArray.from_arrays(indices, ["short", "x" * 2**22])
    table = pa.table({"body": text})
    pq.write_table(table, "a.parquet", compression="zstd", store_schema=store_schema)
    assert Path("a.parquet").stat().st_size < 10_000
    command = [sys.executable, "-c", READ, "a.parquet"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    read_mib, peak_mib = map(int, said.split())
    assert read_mib > 2000 and peak_mib < 500


def both(*names: str) -> str:
    for name in names:
        write_json(f"own/{name}", {"body": "x", "kind": "y"})
    return "own"


def file_of(name: str, content: bytes) -> str:
    Path(name).write_bytes(content)
    return name


def folder() -> str:
    Path("empty").mkdir()
    return "empty"


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (lambda: "./nowhere.csv", "./nowhere.csv"),
        (lambda: "a/b/c", "a/b/c"),
        (lambda: "", "''"),
        (lambda: "training", "SM_CHANNEL_TRAINING"),
        (folder, "no data file"),
        (lambda: write_json("notes.txt", 1), "no data file"),
        (lambda: write_json("a.jsonl", {"a": "x", "b": "y"}), "none is the body"),
        (lambda: write_json("a.jsonl", {"body": 1, "phrase": 2, "x": 3}), "several could be"),
        (lambda: file_of("a.csv", b""), "no columns"),
        (lambda: both("a.parquet"), "a.parquet could not be read as parquet"),
        (lambda: file_of("a.csv", bytes(range(256))), "a.csv could not be read as csv"),
        (lambda: file_of("a.jsonl", b""), "a.jsonl"),
        (lambda: write_lines("a.jsonl", '{"body": "x"}', '{"body": '), "record 2"),
        (lambda: both("a.jsonl", "a.jsonl.gz"), "a.jsonl.gz is compressed"),
        (lambda: both("a.jsonl", "a.json"), "own/a.* are 2 files"),
        (lambda: both("train.jsonl", "eval.jsonl"), "own/eval.jsonl may be for"),
        (lambda: both("val.jsonl", "test.jsonl"), "test, val only"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(dataset: Callable[[], str], named: str) -> None:
    with pytest.raises(UserError) as refusal:
        read(dataset())
    assert named in refusal.value.problem
    assert refusal.value.cure
    assert "\n" not in str(refusal.value)


def test_a_name_that_no_hub_gives() -> None:
    """With a network the hub says no, without one its cache does; either way one sentence."""
    source = tables.find_source("no-such-owner/no-such-data-set", ["builtin"])
    with pytest.raises(UserError) as refusal:
        tables.read(source, [BODY], Path("scratch"))
    assert "neither builtin, nor training, nor a path" in refusal.value.problem


def test_columns_are_found_by_name_or_as_the_only_one_left() -> None:
    columns = [BODY, KIND]
    assert tables.find_columns(["id", "Class", "PHRASE"], columns, "t") == ["PHRASE", "Class"]
    assert tables.find_columns(["other", "body"], columns, "t") == ["body", "other"]
    given = [Column("body", given="class"), KIND]
    assert tables.find_columns(["kind", "class"], [given[0]], "t") == ["class"]
    for columns in ([Column("body", given="class"), KIND], [BODY, Column("kind", given="phrase")]):
        with pytest.raises(UserError) as refusal:
            tables.find_columns(["phrase", "class"], columns, "t")
        assert "both the body and the kind" in refusal.value.problem
    with pytest.raises(UserError) as refusal:
        tables.find_columns(["body", "kind"], [Column("body", given="nope")], "t")
    assert "'nope'" in refusal.value.problem and "--body_column" in refusal.value.cure


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (("train", "holdout"), True),
        (("rows", "validate"), True),
        (("mytrain", "myval"), True),
        (("a-mytrain", "a-mytest"), True),
        (("rows", "interval"), False),
        (("constraint", "contest"), False),  # English words that end so
        (("latest", "greatest"), False),
    ],
)
def test_names_near_those_of_splits_are_asked_about(names: tuple[str, ...], refused: bool) -> None:
    for name in names:
        write_csv(f"near/{name}.csv", ROWS)
    if refused:
        with pytest.raises(UserError):
            read("near")
    else:
        assert len(read("near")["train"]) == 2 * len(ROWS)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("train", "train_old"), ["train_old"]),
        (("rows", "rows (1)", "rows copy"), ["rows (1)", "rows copy"]),
        (("train-1", "train-2", "train_3"), []),
        (("train", "train-00000-of-00002", "train-00001-of-00002"), []),
        (("train", "test_old"), []),
        (("trained", "train"), []),
    ],
)
def test_an_older_version_that_is_read_with_a_file_is_said(
    names: tuple[str, ...], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        write_csv(f"own/{name}.csv", ROWS)
    read("own")
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split("own/")[1].split(".csv")[0] for line in warnings] == said


def test_texts_that_stand_for_no_value_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    tables.warn_of_missing_names("label", ["NULL", "nan", "NA", "yes"])
    error = capsys.readouterr().err
    assert "'NULL', 'nan'" in error and "NA'" not in error and "yes" not in error
    tables.warn_of_missing_names("label", ["NA", "no"])
    assert not capsys.readouterr().err


def test_columns_that_cannot_be_told_apart_have_a_cure() -> None:
    columns = [tables.Column("text"), tables.Column("label")]
    with pytest.raises(UserError) as refusal:
        tables.find_columns([], columns, "a.csv")
    assert "no columns" in refusal.value.problem
    with pytest.raises(UserError) as refusal:
        tables.find_columns(["text;label"], columns, "a.csv")
    assert "'text;label'" in refusal.value.problem and "commas" in refusal.value.cure
