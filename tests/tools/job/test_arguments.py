"""Values of options reach the script as job.toml has them, under the toolkits of AWS's images.

Until 5.1.2 the toolkit starts the script through a shell. The images' own versions run here, with
a newer one that uses none.
"""

import json
import os
import subprocess
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from checkout import TEMPLATE
from small_job import GOOD, PROJECT
from smlightning.errors import UserError
from smlightning.options import ENCODED, decode, encode, option, parse_command_line, values_of
from smlightning_sagemaker.job import images, request

DRIVER = Path(__file__).with_name("toolkit_driver.py")
VERSIONS = sorted({str(each.toolkit) for each in images.PROFILES.values()} | {"5.1.4"})
TEXTS = (
    "review text", "", " ", "$HOME", "$((6 * 7))", "`quoted`", "a;b", "R&D", "5 < 6", "a|b",
    "~", "~/data", "a:~/b", "*", "train.p?", "[0.1, 0.9]", "{a,b}", "#x",
    "it's", '"quoted"', "back\\slash", "\\", "line\nbreak", "\t", "\r\n", "\x00", "\x1b[0m", "!!",
    "--epochs", "-x", "-", "--", "=", "a=b", "%41", "%", "é", "水曜日", "\U0001f600", "null",
    "true", "007", "1e3", "[]", "{}", "s3://bucket/a b/", "Île de la Réunion",
    ENCODED, f"{ENCODED}%41",
)  # fmt: skip
PLAIN = ("word", "s3://bucket/data/", "org/model-7b", "2026-11-27T02:53", "a,b", "1e-3", "%41")


def toolkit(version: str) -> Path:
    """The folder of a toolkit without its dependencies, installed once."""
    folder = TEMPLATE / "build" / "toolkits" / version
    if not (folder / "bin" / "train").is_file():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*pip, f"sagemaker-training=={version}"], check=True)
    return folder


def received(
    folder: Path, jobs: list[dict[str, Any]], kinds: list[type], path: Path | None = None
) -> list[dict[str, Any]]:
    """The options that the script of each job gets, as its class of options reads them."""
    tables = []
    for values in jobs:
        body = request.dry_run(GOOD.replace(hyperparameters=values), PROJECT)
        sent = body["HyperParameters"].items()
        tables.append({name: text for name, text in sent if not name.startswith("sagemaker_")})
    (folder / "jobs.json").write_text(json.dumps(tables))
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "arguments.jsonl").write_text("")
    search = {"PYTHONPATH": str(path)} if path else {}
    command = [sys.executable, str(DRIVER), "jobs.json"]
    subprocess.run(command, cwd=folder, env={**os.environ, **search}, check=True, text=True)
    lines = (folder / "code" / "arguments.jsonl").read_text().splitlines()
    words = map(json.loads, lines)
    return [
        values_of(parse_command_line(kind, argv)) for kind, argv in zip(kinds, words, strict=True)
    ]


def texts_class(values: dict[str, str]) -> type:
    """A class of options, each a text with a default of its own."""
    fields = [(name, str, option("default", "a text")) for name in values]
    return make_dataclass("Texts", fields, frozen=True)


def job_of(texts: Any) -> dict[str, str]:
    """Options with these values; the first one has a name of one letter."""
    return {"n" if not number else f"text_{number}": text for number, text in enumerate(texts)}


def test_odd_texts_arrive_as_written(tmp_path: Path) -> None:
    job = job_of(TEXTS)
    assert received(tmp_path, [job], [texts_class(job)]) == [job]


def test_plain_values_are_sent_as_they_stand() -> None:
    assert [*map(encode, PLAIN)] == [*PLAIN]
    assert [*map(encode, (1, 0.5, True))] == [1, 0.5, True]
    assert encode("review text") == "percent-encoded:review%20text"
    assert [decode(encode(text)) for text in TEXTS] == [*TEXTS]


def test_no_shell_changes_what_is_sent() -> None:
    words = [encode(text) for text in TEXTS]
    printed = ["sh", "-c", " ".join(["printf", r"'%s\n'", *words])]
    assert subprocess.check_output(printed, text=True).splitlines() == words


def test_lists_numbers_and_booleans_arrive(tmp_path: Path) -> None:
    values = {"shares": "[0.1, 0.9]", "names": '["a b", "", "$HOME"]', "flag": True, "lr": 1e-07}
    fields: list[Any] = [
        ("shares", list[float], option([1.0], "numbers")),
        ("names", list[str], option(["c"], "texts")),
        ("flag", bool, option(False, "yes or no")),
        ("lr", float, option(1.0, "a number")),
    ]
    kind = make_dataclass("Mine", fields, frozen=True)
    lists = {"shares": [0.1, 0.9], "names": ["a b", "", "$HOME"]}
    assert received(tmp_path, [values], [kind]) == [{**values, **lists}]


def test_a_name_that_a_shell_would_split_is_an_error() -> None:
    job = GOOD.replace(hyperparameters={"learning;rate": 1})
    with pytest.raises(UserError, match="learning;rate"):
        request.dry_run(job, PROJECT)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_any_text_arrives_under_each_toolkit(version: str, tmp_path: Path) -> None:
    """500 texts, 50 for each job, and those above."""
    texts = st.text(max_size=20) | st.text("$`\"'\\ ~*?[]{}()<>|&;#!%=-\n\t\x00a", max_size=20)

    @settings(max_examples=10, deadline=None, database=None, phases=[Phase.generate])
    @given(st.lists(texts, min_size=50, max_size=50))
    def arrive(values: list[str]) -> None:
        job = job_of(values)
        assert received(tmp_path, [job], [texts_class(job)], toolkit(version)) == [job]

    arrive()
    job = job_of(TEXTS)
    assert received(tmp_path, [job], [texts_class(job)], toolkit(version)) == [job]
