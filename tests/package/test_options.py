"""Options become a command line, whatever they are; reading it imports nothing heavy."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

import train
from options import OPTIONS
from smlightning.errors import UserError
from smlightning.options import (
    Option,
    OptionError,
    Ratio,
    arguments_for,
    declared_options,
    describe_type,
    nearest_option,
    option,
    option_parser,
    parse_command_line,
    read_command_line,
    shared,
    with_defaults,
)
from smlightning.training.options import TrainerOptions

SRC = Path(train.__file__).parent


def parse(argv: list[str]) -> dict[str, Any]:
    return parse_command_line(OPTIONS, argv)


def classes(**fields: tuple[Any, Any]) -> tuple[type, type]:
    """Two classes of options: one has a `width`, the other has `fields`."""
    width = ("width", int, option(1, "how wide"))
    others = [(name, *field) for name, field in fields.items()]
    first = make_dataclass("First", [width], frozen=True)
    return first, make_dataclass("Second", others, frozen=True)


def test_what_is_declared_is_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "999")  # or --help divides words at their hyphens
    declared = declared_options(OPTIONS)
    defaults = parse([])
    assert defaults == {name: each.default for name, each in declared.items()}
    help_text = " ".join(option_parser(OPTIONS).format_help().split())
    for name, each in declared.items():
        assert len(each.help) > 10 and each.help in help_text, f"--{name} is without a word of help"
        assert parse([f"--{name}={each.default}"])[name] == each.default
    assert all(f"{cls.__name__}:" in help_text for cls in OPTIONS)
    assert json.loads(json.dumps(defaults)) == defaults, "a checkpoint holds plain values only"
    assert {type(value) for value in defaults.values()} <= {bool, int, float, str, list}


def test_a_derived_class_replaces_an_option_and_adds_its_own() -> None:
    """In the place of the one replaced; what a resume may change is as in the class above."""
    fields = [("log_every", int, option(7, "steps")), ("tried", int, option(1, "what is tried"))]
    derived = make_dataclass("Derived", fields, bases=(TrainerOptions,), frozen=True)
    above = declared_options([TrainerOptions])
    expected = {name: replace(each, group="Derived") for name, each in above.items()}
    expected["log_every"] = Option(int, 7, "steps", "free", "Derived")
    expected["tried"] = Option(int, 1, "what is tried", "free", "Derived")
    assert list(declared_options([derived]).items()) == list(expected.items())


@pytest.mark.parametrize("kind", [float, Ratio])
def test_an_option_may_be_a_list(kind: Any) -> None:
    """Its default and a value alike are plain, as a checkpoint holds and compares them."""
    both = classes(shares=(list[kind], option([0.1, 0.9], "how much")))
    for argv in ([], ["--shares", "[0.1, 0.9]"]):
        shares = parse_command_line(both, argv)["shares"]
        assert shares == [0.1, 0.9] and type(shares) is list
        assert {type(share) for share in shares} == {float}
    assert parse_command_line(both, ["--shares", "[0.2]"])["shares"] == [0.2]
    with pytest.raises(UserError) as refusal:
        parse_command_line(both, ["--shares", "0.2,0.5"])
    assert "--shares" in refusal.value.problem and "'0.2,0.5'" in refusal.value.problem


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"width": (int, option(2, "how wide"))}, ["width", "First", "Second"]),
        ({"depth": (int, shared(2))}, ["Second.depth", "shared"]),
        ({"depth": (int, 2)}, ["Second.depth"]),
        ({"depth": (int, option(2))}, ["Second.depth"]),
        ({"depth": (int, option(1, "how deep", resume="x"))}, ["Second.depth", "'x'"]),
        ({"depth": (Ratio, option(2.0, "how deep"))}, ["Second.depth", "2.0", "below 1"]),
        ({"depth": (int, option(2.5, "how deep"))}, ["Second.depth", "2.5", "whole"]),
        ({"depth": (bool, option("no", "how deep"))}, ["Second.depth", "'no'", "true"]),
        ({"depth": (str, option(3, "how deep"))}, ["Second.depth", "3", "text"]),
        ({"depth": (Literal["a", "b"], option("c", "how"))}, ["Second.depth", "'c'", "a or b"]),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(fields: dict, named: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        parse_command_line(classes(**fields), [])
    assert all(word in refusal.value.problem for word in named), refusal.value
    assert refusal.value.cure


@dataclass(frozen=True)
class Shape:
    width: int = option(4, "numbers of a token")
    heads: int = option(2, "of attention")
    layers: int = option(1, "of the network")

    def __post_init__(self) -> None:
        if self.layers > self.width:
            raise ValueError("there are more layers than numbers")
        if self.width % self.heads:
            raise UserError(f"{self.heads} heads do not divide {self.width}", "choose others")


@pytest.mark.parametrize(
    ("words", "problem", "cure"),
    [
        (["--heads", "3"], "3 heads do not divide 4", "choose others"),
        (["--layers", "5"], "there are more layers than numbers", "see Shape in src/options.py"),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    words: list[str], problem: str, cure: str
) -> None:
    with pytest.raises(UserError) as refusal:
        parse_command_line([Shape], words)
    assert (refusal.value.problem, refusal.value.cure) == (problem, cure)
    assert read_command_line([Shape], words)["width"] == 4, "each of them is a value of its option"
    assert parse_command_line([Shape], [*words, "--width", "6"])["width"] == 6


def test_options_of_plain_types() -> None:
    """A default of 1 does not make a whole number of what is declared as float."""
    both = classes(rate=(float, option(1, "how fast, in % of all")), width=(int, shared(1)))
    assert parse_command_line(both, ["--rate", "0.5"]) == {"width": 1, "rate": 0.5}
    values = {"width": 3, "rate": 0.5, "other": 0}
    assert arguments_for(both[1], values) == {"width": 3, "rate": 0.5}
    assert "how fast, in % of all" in option_parser(both).format_help()
    with pytest.raises(UserError) as refusal:
        parse_command_line(both, ["--rate", "x"])
    assert "--rate" in refusal.value.problem and describe_type(float) in refusal.value.problem


def test_defaults_fill_what_is_not_given() -> None:
    both = classes(rate=(float, option(0.5, "how fast")))
    assert with_defaults(both, {"width": 3}) == {"width": 3, "rate": 0.5}
    with pytest.raises(UserError) as refusal:
        with_defaults(both, {"rat": 1})
    assert "--rat" in refusal.value.problem and "--rate" in refusal.value.cure
    with pytest.raises(OptionError) as refusal:
        with_defaults(both, {"width": "two"})


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--rat", "1"], ["--rat", "--rate?"]),
        (["--zzz=1"], ["--zzz", "--help"]),
        (["--rate"], ["--rate", "''"]),
        (["--rate", "--width", "3"], ["--rate", "''"]),
        (["--width", "3", "--width", "1.5", "--width", "2"], ["--width", "'1.5'"]),
        (["0.5"], ["'0.5'", "--help"]),
    ],
)
def test_a_mistake_names_the_option_and_the_value(argv: list[str], named: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        parse_command_line(classes(rate=(float, option(0.5, "how fast"))), argv)
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_an_option_is_known_by_its_name_in_other_trainers() -> None:
    names = ["lr", "lr_scaling", "epochs"]
    assert nearest_option("learning_rate", names) == nearest_option("learning-rate", names) == "lr"
    assert nearest_option("epoch", names) == "epochs"
    assert nearest_option("learning_rate", ["epochs"]) == nearest_option("zzz", names) == ""
    with pytest.raises(UserError) as refusal:
        parse_command_line(OPTIONS, ["--learning_rate", "1"])
    assert "--lr?" in refusal.value.cure


@pytest.mark.parametrize(
    ("argv", "value", "expected"),
    [
        (["--lr", "abc"], "abc", "above 0"),
        (["--lr", "inf"], "inf", "finite"),
        (["--epochs=0"], "0", "above 0"),
        (["--epochs", "2.5"], "2.5", "whole number"),
        (["--seed", "4294967296"], "4294967296", "4294967295"),
        (["--warmup_ratio", "1"], "1", "below 1"),
        (["--compile", "maybe"], "maybe", "true or false"),
        (["--lr_scaling", "square"], "square", "none or linear"),
    ],
)
def test_a_value_of_another_type_is_refused(argv: list[str], value: str, expected: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(argv)
    name = argv[0].partition("=")[0]
    assert all(word in refusal.value.problem for word in (name, repr(value), expected))
    assert describe_type(declared_options(OPTIONS)[name[2:]].type) in refusal.value.problem


@pytest.mark.parametrize("text", ["True", "true", "False", "false"])
def test_booleans_as_sagemaker_writes_them(text: str) -> None:
    assert parse(["--compile", text])["compile"] is (text.lower() == "true")


def test_values_of_all_forms_are_read() -> None:
    both = classes(
        low=(int, option(0, "how low")),
        on=(bool, option(False, "whether it is on")),
        text=(str, option("x", "what it says")),
    )
    argv = ["--low", "-3", "--on", "true", "--text", "-x", "--width=2", "--width=4"]
    expected = {"width": 4, "low": -3, "on": True, "text": "-x"}
    assert parse_command_line(both, argv) == expected
    assert parse_command_line(both, ["--text="])["text"] == ""
    assert parse_command_line(both, ["--text", "a=b c"])["text"] == "a=b c"


def test_a_wrong_option_and_help_are_answered_at_once() -> None:
    """In processor seconds, which other work on the machine hardly changes."""
    command = [sys.executable, str(SRC / "train.py")]
    before = os.times()
    run = subprocess.run([*command, "--epoch", "1"], capture_output=True, text=True)
    after = os.times()
    assert run.returncode == 2 and "--epochs" in run.stderr and "Traceback" not in run.stderr
    used = after.children_user + after.children_system
    assert used - before.children_user - before.children_system < 1
    run = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "--epochs" in run.stdout


def test_nothing_heavy_is_imported_to_read_the_command_line() -> None:
    code = (
        "import sys, options, smlightning.project, smlightning.reports.log\n"
        "from smlightning.cluster import signals\n"
        "from smlightning.options import parse_command_line\n"
        "parse_command_line(options.OPTIONS, [])\n"
        "print([m for m in ('torch', 'pytorch_lightning', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=SRC, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_lightning_comes_without_what_nobody_uses() -> None:
    """If this fails, torchmetrics or lightning_utilities changed: see training/imports.py."""
    code = """
import gc, sys
from smlightning.training import imports

imports.lightning()
import pytorch_lightning
assert not {"transformers", "scipy", "matplotlib"} & set(sys.modules)

import torch, torchmetrics
metric = torchmetrics.ConfusionMatrix("multiclass", num_classes=3)
metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]))
figure, _ = metric.plot()
metric.plot(ax=figure.axes[0])
assert type(figure).__module__ == "matplotlib.figure"

from torchmetrics.text.bert import BERTScore
import scipy, transformers
assert gc.isenabled() and gc.get_freeze_count() > 100_000
try:
    with imports.uncollected():
        assert not gc.isenabled()
        import no_such_module
except ImportError:
    assert gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", code], cwd=SRC, check=True)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--shard_size 2", "--shard_size"),
        ("--strategy fsdp --compression fp16", "--compression"),
        ("--strategy fsdp --precision 16-mixed", "--precision"),
    ],
)
def test_options_of_ddp_and_fsdp_do_not_mix(words: str, option: str) -> None:
    with pytest.raises(UserError, match=option):
        parse(words.split())
