"""The data is real, prepared once, verified, split and ordered by numbers alone; bad data is refused in a sentence."""

import csv
import json
import math
import pickle
import tracemalloc
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import data
from runtime import prepared as prepared_files
from runtime.batches import GlobalBatches
from runtime.report import UserError


def prepared(dataset: str, **options: object) -> data.Data:
    made = data.Data(dataset, data_dir="prepared", **options)  # type: ignore[arg-type]
    made.prepare_data()
    made.setup()
    return made


def texts_of(made: data.Data) -> list[str]:
    """The texts that the prepared bytes spell, of all splits."""
    found = []
    for rows in made.splits.values():
        ids, starts, lengths = (rows.arrays[name] for name in ("ids", "starts", "lengths"))
        found += [bytes(ids[starts[i] : starts[i] + lengths[i]] - 1).decode() for i in rows.index]
    return found


def test_the_example_is_real() -> None:
    texts, labels = data.cldr()
    assert len(texts) > 25_000
    assert len(set(texts)) == len(texts)
    assert sorted(set(labels)) == sorted(data.LANGUAGES)
    assert len(data.LANGUAGES) == 30
    language = dict(zip(texts, labels, strict=True))
    assert [language[name] for name in ("Mittwoch", "Île Christmas", "Саудовская Аравия", "水曜日")] == [
        "de",
        "fr",
        "ru",
        "ja",
    ]


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=300), st.integers(0, 5))
def test_splits_are_stratified_and_repeatable(labels: list[str], seed: int) -> None:
    codes = np.unique(labels, return_inverse=True)[1]
    parts = split(codes, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_files, "CHUNK", 7)
        assert {name: rows.tolist() for name, rows in split(codes, seed).items()} == {
            name: rows.tolist() for name, rows in parts.items()
        }
    assert sorted(np.concatenate([*parts.values()])) == [*range(len(labels))]
    for label, count in Counter(labels).items():
        mine = {name: sum(labels[i] == label for i in rows) for name, rows in parts.items()}
        assert mine["train"] >= 1
        for part in ("val", "test"):
            assert abs(mine[part] - (count - 1) / prepared_files.HOLD_OUT) < 1


def split(codes: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    pieces = [*prepared_files.split_rows(codes, ["train", "val", "test"], seed)]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in ("train", "val", "test")}


def test_splits_of_large_data_have_a_greatest_size_and_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_files, "LARGEST", 100)
    codes = np.arange(10_000) % 3
    one, other = split(codes, 0), split(codes, 1)
    assert len(one["val"]) == len(one["test"]) == 100
    assert np.bincount(codes[one["val"]]).tolist() == [34, 33, 33]
    assert len({*one["val"]} & {*other["val"]}) < 20, "another seed draws other rows"
    assert len({*(one["val"] // 3 % 100)}) > 50, "not one row in so many"
    assert {*prepared_files.split_rows(codes, ["test"], 0).__next__()} == {"test"}


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=200),
    per_rank=st.integers(1, 9),
    world_size=st.integers(1, 4),
    seed=st.one_of(st.none(), st.integers(0, 3)),
    epoch=st.integers(0, 3),
)
def test_every_sample_once_whatever_the_world_size(
    lengths: list[int], per_rank: int, world_size: int, seed: int | None, epoch: int
) -> None:
    global_batch = per_rank * world_size
    ranks = [GlobalBatches(lengths, global_batch, rank, world_size, seed) for rank in range(world_size)]
    alone = GlobalBatches(lengths, global_batch, seed=seed)
    for order in (*ranks, alone):
        order.set_epoch(epoch)
    assert {len(order) for order in ranks} == {len(alone)}
    seen: list[int] = []
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert len({len(rows) for rows, _, _ in parts}) == 1, "ranks would wait for each other"
        together = [row for rows, real, _ in parts for row in rows[:real]]
        assert sorted(together) == sorted(whole[0][: whole[1]])
        assert len(parts[0][0]) >= min(2, per_rank), "a rank with a single row"
        # The factor: DDP's mean over ranks of (sum of losses × scale) is the mean over the global batch.
        assert {round(scale * len(together) / world_size, 9) for _, _, scale in parts} == {1.0}
        seen += together
    assert sorted(seen) == list(range(len(lengths)))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = GlobalBatches(range(1, 101), 8, seed=seed)
        batches.set_epoch(epoch)
        return [rows.tolist() for rows, _, _ in batches]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


def test_batches_are_grouped_by_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 4096)
    padded = sum(len(rows) * lengths[rows].max() for rows, _, _ in GlobalBatches(lengths, 32, seed=0))
    assert padded < 1.1 * lengths.sum()  # in random order it is about 1.9


def test_a_batch(words: str, rows: list[tuple[str, str]]) -> None:
    made = prepared(words, batch_size=50)
    batches = list(made.test_dataloader())
    assert sum(int(batch["weight"].sum()) for batch in batches) == len(made.splits["test"])
    batch = batches[0]
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    lengths = batch["attention_mask"].sum(1)
    assert batch["input_ids"].shape[1] == lengths.max()
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    assert (lengths.diff() <= 0).all(), "the longest first"
    dataset = made.test_dataloader().dataset
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301  as a loader worker that is spawned gets it
    assert len(pickle.dumps(dataset)) < 1000, "the files are mapped anew, not copied"
    assert all(torch.equal(again[[3, 1], 2, 1.0][k], dataset[[3, 1], 2, 1.0][k]) for k in ("input_ids", "label"))
    seen = [
        (row[: sum(mask)] - 1).numpy()
        for b in batches
        for row, mask in zip(b["input_ids"], b["attention_mask"], strict=True)
    ]
    assert {bytes(row.astype(np.uint8)).decode() for row in seen} <= {text for text, _ in rows}


def test_prepared_once_and_verified(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = prepared(words)
    assert "prepare_data: 240 texts" in capsys.readouterr().out
    labels, train = made.labels, made.splits["train"]
    made.setup()
    assert made.splits["train"] is train and made.labels == labels == ["cyrillic", "greek", "latin"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_files, "digest", None)  # nothing is hashed again
        prepared(words)
    assert capsys.readouterr().out == "", "a verified copy was there"

    file = next((made.path / "train").glob("ids.*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    prepared(words)
    assert "prepare_data" in capsys.readouterr().out, "one flipped bit went unnoticed"

    meta = made.path / "meta.json"
    meta.write_text(meta.read_text().replace("greek", "graek"))
    prepared(words)
    assert "prepare_data" in capsys.readouterr().out, "a changed label went unnoticed"
    meta.unlink()  # what a copy that was not finished lacks
    prepared(words)
    assert "prepare_data" in capsys.readouterr().out
    assert prepared(words, seed=1).path != made.path
    names = {path.name for path in Path("prepared").iterdir()}
    assert not [name for name in names if name.startswith(".")], "something half-built was left"


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_formats(kind: str, rows: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.Dataset.from_dict(
        {"id": [*range(240)], "phrase": [t for t, _ in rows], "class": [c for _, c in rows]}
    )
    channel = Path("channel")
    channel.mkdir()
    match kind:
        case "csv":
            table.to_csv(channel / "rows.csv")
        case "tsv":
            table.to_csv(channel / "rows.tsv", sep="\t")
        case "jsonl":
            table.to_json(channel / "rows.jsonl")
        case "parquet":
            table.to_parquet(channel / "rows.parquet")
        case "arrow":
            table.save_to_disk(str(channel))
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(channel.absolute()))
    made = prepared("training")
    assert sorted(texts_of(made)) == sorted(text for text, _ in rows)


@pytest.mark.parametrize(
    "names", [("trainset", "validation", "test-1"), ("a/training", "a/dev.en", "imdb_testset"), ("x", "val/1", "Test2")]
)
def test_splits_that_are_given_are_kept(names: tuple[str, str, str], rows: list[tuple[str, str]]) -> None:
    for name, part in zip(names, (rows[0::2], rows[1::4], rows[3::4]), strict=True):
        lines = [json.dumps({"text": text, "label": label}) for text, label in part]
        path = Path("own", f"{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    made = prepared("own")
    assert {name: len(split) for name, split in made.splits.items()} == {"train": 120, "val": 60, "test": 60}


def test_links_folders_and_copies_that_editors_keep(rows: list[tuple[str, str]]) -> None:
    """Names are the links' own, as the hub's cache and DVC lay files out; folders and hidden files are not data."""
    lines = ["text,label", *(f"{text},{label}" for text, label in rows)]
    for name in ("store/0123abcd", "own/.ipynb_checkpoints/test-checkpoint.csv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("\n".join(lines), encoding="utf-8")
    Path("own/train.csv").symlink_to(Path("store/0123abcd").absolute())
    Path("own/test.csv").mkdir()
    for name in ("own", "own/train.csv"):
        assert sum(len(split) for split in prepared(name).splits.values()) == len(rows)


def test_a_file_that_is_named_is_training_data_wherever_it_lies(words: str) -> None:
    Path("test").mkdir()
    lone = Path(words).rename("test/validation.csv")
    assert len(prepared(str(lone)).splits["train"]) == 192


def test_what_csv_holds_is_text() -> None:
    rows = [f"{text},{label}" for text, label in (("NA", "01"), ("None", "02"), ("12", "NA")) for _ in range(12)]
    Path("a.csv").write_text("\n".join(["text,label", *rows]))
    made = prepared("a.csv")
    assert made.labels == ["01", "02", "NA"]
    assert {*texts_of(made)} == {"NA", "None", "12"}


def test_csv_as_spreadsheets_write_it() -> None:
    """A mark at the beginning, lines that end as on Windows, quoted commas, quotes and ends of lines."""
    texts = ["one, two", 'say "three"', "four\nfive", " six ", "\u00cele"]
    with Path("a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("id", "text", "label"), *((i, text, i % 2) for i in range(9) for text in texts)])
    made = prepared("a.csv")
    assert sorted(texts_of(made)) == sorted(texts * 9)
    assert made.labels == ["0", "1"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_numbers_that_stand_for_classes_become_their_names(kind: str) -> None:
    features = datasets.Features(
        {"text": datasets.Value("large_string"), "label": datasets.ClassLabel(names=["b", "a"])}
    )
    rows = {"text": [f"word {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
    Path("own").mkdir()
    for name, labels in (("train", rows["label"]), ("test", [-1] * 40)):  # -1: kept secret
        table = datasets.Dataset.from_dict({**rows, "label": labels}, features=features)
        table.to_parquet(f"own/{name}.parquet") if kind == "parquet" else table.save_to_disk(f"own/{name}")
    made = prepared("own")
    assert made.labels == ["a", "b"]
    split = made.splits["train"]
    for text, label in zip(texts_of(made), split.arrays["classes"][split.index], strict=False):
        assert int(text.split()[1]) % 2 == 1 - label
    assert sum(len(rows) for rows in made.splits.values()) == 40


def test_values_of_other_types_are_classes_or_refused() -> None:
    table = {"text": ["x", "y"] * 20, "label": [1.5, True] * 20}
    Path("a.json").write_text(json.dumps([{"text": t, "label": str(y)} for t, y in zip(*table.values(), strict=True)]))
    assert prepared("a.json").labels == ["1.5", "True"]
    datasets.Dataset.from_dict({"text": ["x", "y"], "label": [[1], [2]]}).to_parquet("b.parquet")
    with pytest.raises(UserError, match=r"A class is \[1\], a list<.*expected text or a number"):
        prepared("b.parquet")


def test_memory_does_not_grow_with_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_files, "CHUNK", 4096)
    monkeypatch.setattr(prepared_files, "LARGEST", 100)
    peaks = []
    for rows in (40_000, 320_000):
        Path("a.csv").write_text("text,label\n" + "".join(f"some words and number {i},{i % 3}\n" for i in range(rows)))
        made = data.Data("a.csv", data_dir="prepared")
        tracemalloc.start()
        made.prepare_data()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.15 * peaks[0] < 20e6


def test_an_order_takes_few_bytes_a_row() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 1_000_000).astype(np.uint32)
    batches = GlobalBatches(lengths, 64, seed=0)
    tracemalloc.start()
    order, _ = batches.order()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(order)) == len(lengths)
    assert peak < 5e6, "with the lengths, 9 bytes a row"


def test_what_datasets_leaves_beside_its_data_is_not_data(rows: list[tuple[str, str]]) -> None:
    table = datasets.Dataset.from_dict({"text": [t for t, _ in rows], "label": [c for _, c in rows]})
    datasets.DatasetDict({"train": table}).save_to_disk("saved")
    datasets.load_from_disk("saved")["train"].map(lambda row: row, load_from_cache_file=False)
    assert list(Path("saved/train").glob("cache-*.arrow"))
    assert sum(len(split) for split in prepared("saved").splits.values()) == len(rows)


def test_another_tokenizer_at_the_same_path_is_another_data_set(words: str, tiny_bert: str) -> None:
    import shutil

    shutil.copytree(tiny_bert, "mine")
    before = data.Data(words, model_name="mine").path
    Path("mine/tokenizer_config.json").write_text(Path("mine/tokenizer_config.json").read_text() + "\n")
    assert data.Data(words, model_name="mine").path != before


def test_a_place_that_is_a_file_is_one_sentence(words: str) -> None:
    Path("prepared").write_text("")
    with pytest.raises(UserError, match="Folder prepared cannot be made"):
        prepared(words)


def jsonl(name: str, *rows: object) -> str:
    Path(name).write_text("\n".join(json.dumps(row) for row in rows))
    return name


GOOD = [{"text": f"word {i}", "label": "ab"[i % 2]} for i in range(30)]


def both(*names: str) -> None:
    Path("own").mkdir()
    for name in names:
        jsonl(f"own/{name}", *GOOD)


def tsv(*lines: str) -> str:
    Path("a.tsv").write_text("\n".join(lines), encoding="utf-8")
    return "a.tsv"


def parquet(texts: list[str], labels: list[float]) -> str:
    pq.write_table(pa.table({"text": texts, "label": labels}), "a.parquet")
    return "a.parquet"


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (lambda: "./nowhere.csv", {}, "no such file or folder"),
        (lambda: "", {}, "no such file or folder"),
        (lambda: "training", {}, "SM_CHANNEL_TRAINING is not set"),
        (lambda: (Path("empty").mkdir(), "empty")[1], {}, "no data file"),
        (lambda: jsonl("notes.txt", 1), {}, "no data file"),
        (lambda: jsonl("a.jsonl", {"a": "x", "b": "y"}), {}, "none is the text; name it with --text_column"),
        (lambda: jsonl("a.jsonl", {"text": "x", "review": "y", "label": 1}), {}, "several could be the text"),
        (lambda: jsonl("a.jsonl", *GOOD), {"label_column": "nope"}, "none is 'nope'"),
        (lambda: jsonl("a.jsonl", *GOOD[:3]), {}, "split is empty: too few rows"),
        (lambda: jsonl("a.jsonl", *GOOD[::2]), {}, "a single class, 'a'"),
        (
            lambda: jsonl("a.jsonl", *GOOD, {"text": None, "label": "a"}),
            {},
            "Row 31 of the train split: the text is null",
        ),
        (lambda: jsonl("a.jsonl", *({"text": i, "label": "a"} for i in range(9))), {}, "the text is 0, a int"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "", "label": "a"}), {}, "the text is empty"),
        (lambda: jsonl("a.jsonl", *GOOD, {"text": "x", "label": None}), {}, "has no label"),
        (lambda: jsonl("a.parquet", *GOOD), {}, "could not be read as parquet"),
        (lambda: (Path("a.csv").write_bytes(bytes(range(256))), "a.csv")[1], {}, "could not be read as csv"),
        (lambda: (Path("a.jsonl").write_text(""), "a.jsonl")[1], {}, "a.jsonl"),
        (
            lambda: jsonl("a.jsonl", *({**row, "label": i} for i, row in enumerate(40 * GOOD))),
            {},
            "1,200 different values",
        ),
        (lambda: (both("a.jsonl", "a.jsonl.gz"), "own")[1], {}, "a.jsonl.gz is compressed; unpack it"),
        (lambda: (both("a.jsonl", "a.json"), "own")[1], {}, "a.* are 2 files, of the same rows perhaps"),
        (lambda: (both("train.jsonl", "eval.jsonl"), "own")[1], {}, "eval.jsonl may be for validation or for the test"),
        (lambda: tsv("text\tlabel", '"a\tx', 'b"\ty'), {}, "opens the field 'a\\tx\\nb'… and takes in rows"),
        (lambda: tsv("note\ttext\tlabel", '"a\tx\t1', "b\ty\t2", 'c"\tz\t1'), {}, "opens the field 'a\\tx\\t1\\nb"),
        (lambda: tsv("label\ttext", '1\t"a', "2\tb", '1\tc"'), {}, "opens the field 'a\\n2\\tb\\n1\\tc'"),
        (lambda: parquet([*"abcde"], [1.0, 0.0, 1.0, 0.0, math.nan]), {}, "Row 5 of the train split has no label"),
    ],
)
def test_bad_data_is_refused_in_a_sentence(make, options: dict[str, str], expected: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError) as refusal:
        prepared(make(), **options)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)
    left = {path.suffix for path in Path("prepared").glob("*")} if Path("prepared").exists() else set()
    assert left <= {".lock"}


def test_a_text_of_a_tsv_may_hold_tabs_and_lines_where_it_is_quoted() -> None:
    code = "if x:\n\treturn 1\nreturn 2"
    with Path("a.tsv").open("w", newline="") as file:
        rows = [(f"{code} {i}", "ab"[i % 2]) for i in range(40)]
        csv.writer(file, delimiter="\t").writerows([("text", "label"), *rows])
    assert sorted(texts_of(prepared("a.tsv"))) == sorted(text for text, _ in rows)


def test_a_tsv_may_be_wide() -> None:
    rows = ["\t".join([f"word {i}", "ab"[i % 2], *["0"] * 1200]) for i in range(40)]
    Path("a.tsv").write_text("\n".join(["\t".join(["text", "label", *map(str, range(1200))]), *rows]))
    assert len(texts_of(prepared("a.tsv"))) == 40


def test_a_class_has_one_name_whatever_type_a_file_gives_it() -> None:
    """pandas makes floats of integers where one was missing."""
    Path("own").mkdir()
    for name, labels in (("a", [0, 1] * 20), ("b", [0.0, 1.0] * 20), ("C", ["0", "1"] * 20)):
        table = pa.table({"text": [f"{name}{i}" for i in range(40)], "label": labels})
        pq.write_table(table, f"own/{name}.{'PARQUET' if name == 'C' else 'parquet'}")
    made = prepared("own")
    assert made.labels == ["0", "1"] and sum(len(split) for split in made.splits.values()) == 120


def test_a_save_into_the_folder_of_an_earlier_one_is_read_alone() -> None:
    for many, shards in ((300, 3), (100, 1)):
        table = {"text": [f"{many} {i}" for i in range(many)], "label": [i % 2 for i in range(many)]}
        datasets.Dataset.from_dict(table).save_to_disk("saved", num_shards=shards)
    assert len([*Path("saved").glob("*.arrow")]) == 4
    assert all(text.startswith("100 ") for text in texts_of(prepared("saved")))


def test_an_unseen_label_is_refused() -> None:
    Path("own").mkdir()
    jsonl("own/train.jsonl", *GOOD)
    jsonl("own/test.jsonl", *GOOD, {"text": "x", "label": "c"})
    with pytest.raises(UserError, match="'c' of the test split does not occur in training"):
        prepared("own")


def test_a_test_split_without_labels_is_left_out() -> None:
    Path("own").mkdir()
    jsonl("own/train.jsonl", *GOOD)
    jsonl("own/test.jsonl", {"text": "x", "label": None}, {"text": "y", "label": None})
    assert sum(len(split) for split in prepared("own").splits.values()) == len(GOOD)


def test_a_name_that_no_hub_gives() -> None:
    """Where there is a network the hub says no; where there is none, its cache does; either way, one sentence."""
    with pytest.raises(UserError, match=r"neither cldr, nor training, nor a path.*check the name and the network"):
        prepared("no-such-owner/no-such-data-set")


def test_the_checkpoints_own_tokenizer(words: str, tiny_bert: str) -> None:
    made = prepared(words, model_name=tiny_bert, max_length=6)
    batch = next(iter(made.train_dataloader()))
    assert batch["input_ids"].shape[1] == 6
    assert (batch["input_ids"][:, 0] == 2).all(), "[CLS] first"
    assert isinstance(batch["weight"], torch.Tensor)
