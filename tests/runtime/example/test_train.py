"""train.py trains the example, and writes the promised log and files."""

import csv
import io
import re
from pathlib import Path

import pytest

import predict
import train
from options import METRICS, Options
from smlightning.errors import UserError
from smlightning.reports import log

SRC = Path(train.__file__).parent


def run(words: str, **options: object) -> None:
    small = {"dataset": words, "epochs": 2, "batch_size": 16, "lr": 0.01, "log_every": 5}
    train.train(Options(**{**small, **options}))


def test_a_run_leaves_what_it_promises(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(words)
    out = capsys.readouterr().out
    assert (
        "global_batch=16 (16 per rank x world_size=1 x accumulate_grad_batches=1) "
        "max_lr=0.01 steps=24" in out
    )
    last = out.splitlines()[-1]
    assert re.fullmatch(r"test/accuracy [01]\.\d{4}", last)
    assert float(last.split()[1]) > 0.9

    for metric in (
        "train/loss",
        "val/loss",
        "val/accuracy",
        "val/macro_f1",
        "lr",
        "samples_per_second",
        "data_wait",
        "host_gib",
    ):
        values = re.findall(log.metric_regex(metric), out, re.M)
        assert values and all(float(value) >= 0 for value in values), metric
    for metric in METRICS:
        assert re.search(log.metric_regex(metric), out, re.M), (
            f"{metric} is promised and not printed"
        )
    assert re.findall(log.metric_regex("test/accuracy"), out, re.M)[-1] == last.split()[1]

    with open("outputs/curves.csv", newline="") as file:  # noqa: PTH123
        curves = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in curves]
    assert steps == sorted(steps) and steps[-1] == 24
    assert sum(bool(row["val/accuracy"]) for row in curves) == 2
    rates = re.findall(log.metric_regex("lr"), out, re.M)
    assert [float(rate) for rate in rates] == pytest.approx(
        [float(row["lr"]) for row in curves if row["lr"]], rel=1e-5
    )
    for picture in ("curves.png", "confusion.png"):
        assert Path("outputs", picture).read_bytes().startswith(b"\x89PNG")
    assert list(Path("outputs/tensorboard").glob("events*"))

    answers = dict(
        predict.predict(["αβγδ", "abcd", "абвг"], predict.model_fn("outputs/model"), top=2)
    )
    assert [answers[text][0][0] for text in answers] == ["greek", "latin", "cyrillic"]
    assert all(1 >= pairs[0][1] >= pairs[1][1] >= 0 for pairs in answers.values())


def test_a_hugging_face_checkpoint_is_fine_tuned(
    words: str, tiny_bert: str, recwarn: pytest.WarningsRecorder
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run(words, model_name=tiny_bert, max_steps=3, gradient_checkpointing=True)
    made = AutoModelForSequenceClassification.from_pretrained("outputs/model")
    assert made.config.id2label == {0: "cyrillic", 1: "greek", 2: "latin"}
    assert AutoTokenizer.from_pretrained("outputs/model")("αβ")["input_ids"][0] == 2
    assert not [w for w in recwarn if "eval mode" in str(w.message)], (
        "from_pretrained gave a network without dropout"
    )
    ((_, answers),) = predict.predict(["αβ"], predict.model_fn("outputs/model"))
    assert sum(p for _, p in answers) == pytest.approx(1, abs=1e-5)


def test_predict_reads_standard_input(
    words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(words, max_steps=12)
    capfd.readouterr()
    monkeypatch.setattr("sys.argv", ["predict.py", "--top", "1"])
    typed = "αβγδ\nabcd\r\n".encode() + b"caf\xe9\n\x1b]0;\tx\x07\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
    assert predict.main() == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [text for text, _ in lines] == ["αβγδ", "abcd", "caf\ufffd", r"\x1b]0;\tx\x07"]
    assert re.fullmatch(r"greek 0\.\d{3}|greek 1\.000", lines[0][1])


def test_predict_without_a_model_says_so() -> None:
    with pytest.raises(UserError, match=r"nowhere has no trained model.*train first"):
        predict.model_fn("nowhere")
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/config.json").write_text("{}")
    with pytest.raises(UserError, match=r"mine has no trained model.*use mine/model"):
        predict.model_fn("mine")


def test_predict_takes_no_abbreviation(monkeypatch, capsys) -> None:
    """Which a new option would give another meaning."""
    monkeypatch.setattr("sys.argv", ["predict.py", "--model", "outputs/model", "a text"])
    with pytest.raises(SystemExit):
        predict.main()
    assert "--model" in capsys.readouterr().err
