"""Options become a command line, whatever they are; reading it imports nothing heavy."""

import json
import subprocess
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Literal

import pytest

import train
from options import OPTIONS
from runtime import command_line
from runtime.report import UserError

SRC = Path(train.__file__).parent


def test_what_is_declared_is_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "999")  # or --help divides words at their hyphens
    declared = command_line.declared(OPTIONS)
    assert train.parse([]) == {name: each.default for name, each in declared.items()}
    help_text = " ".join(command_line.parser(OPTIONS).format_help().split())
    for name, each in declared.items():
        assert len(each.help) > 10 and each.help in help_text, f"--{name} is without a word of help"
        assert train.parse([f"--{name}={each.default}"])[name] == each.default
    assert all(f"{cls.__name__}:" in help_text for cls in OPTIONS)
    json.dumps(train.parse([])), "plain values only: a checkpoint holds them"


def test_an_option_may_be_a_list() -> None:
    """Its default and a value alike are plain, as a checkpoint holds and compares them."""
    for kind in (float, command_line.Ratio):
        made = classes(shares=(list[kind], command_line.option([0.1, 0.9], "how much")))
        for given in ([], ["--shares", "[0.1, 0.9]"]):
            found = command_line.parse(made, given)["shares"]
            assert found == [0.1, 0.9] and type(found) is list and {*map(type, found)} == {float}
        assert command_line.parse(made, ["--shares", "[0.2]"])["shares"] == [0.2]
        with pytest.raises(UserError, match=r"--shares: found '0\.2,0\.5', expected a list such as \"\[1, 2\]\""):
            command_line.parse(made, ["--shares", "0.2,0.5"])


def classes(**fields: tuple[type, object]) -> tuple[type, type]:
    """Two classes of options: one has a `width`, the other has `fields`."""
    first = make_dataclass("First", [("width", int, command_line.option(1, "how wide"))], frozen=True)
    return first, make_dataclass("Second", [(name, *field) for name, field in fields.items()], frozen=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"width": (int, command_line.option(2, "how wide"))},
            "Option width is declared twice, in First and in Second; rename one of them, or make one shared().",
        ),
        ({"depth": (int, command_line.shared(2))}, "Second.depth is shared, but no other class declares it"),
        ({"depth": (int, 2)}, "Second.depth has no default with an explanation; declare it as depth: int = option"),
        (
            {"depth": (int, command_line.option(1, "how deep", resume="x"))},
            "Second.depth: found resume='x', expected one",
        ),
        (
            {"depth": (command_line.Ratio, command_line.option(2.0, "how deep"))},
            "Second.depth: found 2.0 as its default, expected a number from 0 to below 1",
        ),
        (
            {"depth": (int, command_line.option(2.5, "how deep"))},
            "Second.depth: found 2.5 as its default, expected a whole",
        ),
        ({"depth": (bool, command_line.option("no", "how deep"))}, "Second.depth: found 'no' as its default, expected"),
        (
            {"depth": (str, command_line.option(3, "how deep"))},
            "Second.depth: found 3 as its default, expected a text",
        ),
        (
            {"depth": (Literal["a", "b"], command_line.option("c", "how deep"))},
            "Second.depth: found 'c' as its default, expected a or b",
        ),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_in_a_sentence(fields: dict, expected: str) -> None:
    with pytest.raises(UserError) as refusal:
        command_line.parse(classes(**fields), [])
    assert str(refusal.value).startswith(expected)


def test_options_of_plain_types() -> None:
    """A default of 1 does not make a whole number of what is declared as float."""
    made = classes(rate=(float, command_line.option(1, "how fast, in % of all")), width=(int, command_line.shared(1)))
    assert command_line.parse(made, ["--rate", "0.5"]) == {"width": 1, "rate": 0.5}
    assert command_line.select(made[1], {"width": 3, "rate": 0.5, "other": 0}) == {"width": 3, "rate": 0.5}
    assert "how fast, in % of all" in command_line.parser(made).format_help()
    with pytest.raises(UserError, match="--rate: found 'x', expected a number"):
        command_line.parse(made, ["--rate", "x"])


def test_nothing_heavy_is_imported_to_read_the_command_line() -> None:
    heavy = ("torch", "pytorch_lightning", "numpy")
    code = f"import sys, train; from runtime import report; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=SRC, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_lightning_comes_without_what_nobody_uses() -> None:
    """If this fails, torchmetrics or lightning_utilities changed: look at imports.py, and measure what it saves."""
    code = (
        "import sys; from runtime import imports; imports.lightning(); import pytorch_lightning\n"
        "assert not {'transformers', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "import torch, torchmetrics; metric = torchmetrics.ConfusionMatrix('multiclass', num_classes=3)\n"
        "metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2])); figure, _ = metric.plot()\n"
        "metric.plot(ax=figure.axes[0]); assert type(figure).__module__ == 'matplotlib.figure'\n"
        "from torchmetrics.text.bert import BERTScore; import scipy, transformers\n"
        "import gc; assert gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "try:\n with imports.uncollected(): assert not gc.isenabled(); import no_such_module\n"
        "except ImportError: assert gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=SRC, check=True)


def test_train_py_can_be_read_in_one_sitting() -> None:
    assert len((SRC / "train.py").read_text(encoding="utf-8").splitlines()) <= 120
