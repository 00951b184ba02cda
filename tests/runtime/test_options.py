"""Options become a command line; reading it imports nothing heavy."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest

import train
from options import Options
from smlightning.errors import UserError
from smlightning.options import (
    Ratio,
    declared_options,
    describe_type,
    nearest_option,
    option,
    option_parser,
    parse_command_line,
    read_command_line,
    values_of,
)

SRC = Path(train.__file__).parent


def parse(argv: list[str]) -> dict[str, Any]:
    return values_of(parse_command_line(Options, argv))


def options_class(**fields: tuple[Any, Any]) -> type:
    """A class of options with a `width` and these fields."""
    width = ("width", int, option(1, "how wide"))
    return make_dataclass("Mine", [width, *((n, *f) for n, f in fields.items())], frozen=True)


def test_every_declared_option_is_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "999")  # or --help divides words at their hyphens
    declared = declared_options(Options)
    defaults = parse([])
    assert defaults == {name: each.default for name, each in declared.items()}
    help_text = " ".join(option_parser(Options).format_help().split())
    own, of_every_project = help_text.index("--model_name"), help_text.index("--log_every")
    assert own < of_every_project
    for name, each in declared.items():
        assert len(each.help) > 10 and each.help in help_text, f"--{name} has no explanation"
        assert parse([f"--{name}={each.default}"])[name] == each.default
    assert json.loads(json.dumps(defaults)) == defaults, "a checkpoint holds plain values only"
    assert {type(value) for value in defaults.values()} <= {bool, int, float, str, list}


@pytest.mark.parametrize("kind", [float, Ratio])
def test_an_option_may_be_a_list(kind: Any) -> None:
    """Its values are plain lists, so that a checkpoint can store and compare them."""
    mine = options_class(shares=(list[kind], option([0.1, 0.9], "how much")))
    for argv in ([], ["--shares", "[0.1, 0.9]"]):
        shares = values_of(parse_command_line(mine, argv))["shares"]
        assert shares == [0.1, 0.9] and {type(share) for share in shares} == {float}
    with pytest.raises(UserError, match=r"--shares.*'0.2,0.5'"):
        parse_command_line(mine, ["--shares", "0.2,0.5"])


def test_a_class_of_options_without_its_decorator_is_an_error() -> None:
    mine = type("Mine", (options_class(),), {"__annotations__": {"depth": int}})
    with pytest.raises(UserError, match=r"Mine of src.options\.py is not a dataclass"):
        parse_command_line(mine, ["--depth", "2"])


def test_an_option_may_be_a_dict() -> None:
    mine = options_class(weights=(dict[str, Ratio], option({"a": 0.5}, "of each label")))
    for argv, expected in (
        ([], {"a": 0.5}),
        (["--weights", '{"a": 0.1, "b": 0.2}'], {"a": 0.1, "b": 0.2}),
        (["--weights", "{}"], {}),
    ):
        made = parse_command_line(mine, argv)
        weights = values_of(made)["weights"]
        assert made.weights == weights == expected
        assert {type(weight) for weight in weights.values()} <= {float}
    assert mine().weights is not mine().weights
    with pytest.raises(UserError, match=r"--weights.*a dict such as"):
        parse_command_line(mine, ["--weights", '{"a": 2}'])


@pytest.mark.parametrize(
    ("field", "distinctive"),
    [
        ((int, 2), "Mine.depth"),
        ((Ratio, option(2.0, "how deep")), "depth.*2.0"),
        ((int, option(2.5, "how deep")), "depth.*2.5"),
        ((str, option(3, "how deep")), "depth.*3"),
        ((set[int], option(3, "how deep")), "depth"),
        ((int, option(3, "how deep", resume="fre")), 'depth has resume="fre".*one of free'),
    ],
)
def test_a_wrong_declaration_is_an_error(field: tuple[Any, Any], distinctive: str) -> None:
    with pytest.raises(UserError, match=distinctive):
        parse_command_line(options_class(depth=field), [])


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
    ("words", "problem"),
    [
        (["--heads", "3"], "3 heads do not divide 4"),
        (["--layers", "5"], "there are more layers than numbers"),
    ],
)
def test_post_init_rejects_values_that_conflict(words: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_command_line(Shape, words)
    assert read_command_line(Shape, words)["width"] == 4
    assert parse_command_line(Shape, [*words, "--width", "6"]).width == 6


@pytest.mark.parametrize(
    ("argv", "distinctive"),
    [
        (["--rat", "1"], "--rat.*--rate?"),
        (["--zzz=1"], "--zzz.*--help"),
        (["--no_rate"], "--no_rate.*--rate"),
        (["--rate"], "--rate.*''"),
        (["--rate", "--width", "3"], "--rate.*''"),
        (["--rate", "x"], "--rate.*'x'.*a number"),
        (["--width", "1.5"], "--width.*'1.5'"),
        (["0.5"], "'0.5'.*--help"),
    ],
)
def test_a_wrong_command_line_has_the_option_and_its_value(
    argv: list[str], distinctive: str
) -> None:
    with pytest.raises(UserError, match=distinctive):
        parse_command_line(options_class(rate=(float, option(0.5, "how fast, in %"))), argv)


def test_the_nearest_option_knows_names_of_other_trainers() -> None:
    names = ["lr", "lr_scaling", "epochs"]
    assert nearest_option("learning_rate", names) == nearest_option("learning-rate", names) == "lr"
    assert nearest_option("epoch", names) == nearest_option("EPOCHS", names) == "epochs"
    assert nearest_option("learning_rate", ["epochs"]) == nearest_option("zzz", names) == ""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lr", "inf", "finite"),
        ("epochs", "0", "above 0"),
        ("epochs", "2.5", "whole number"),
        ("seed", "4294967296", "4294967295"),
        ("warmup_ratio", "1", "below 1"),
        ("compile", "maybe", "true or false"),
        ("lr_scaling", "square", "none or linear"),
    ],
)
def test_a_value_of_another_type_is_an_error(name: str, value: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse([f"--{name}={value}"])
    assert all(word in caught.value.problem for word in (f"--{name}", repr(value), expected))
    assert describe_type(declared_options(Options)[name].type) in caught.value.problem


def test_values_of_all_forms_are_read() -> None:
    """SageMaker writes booleans as True and False."""
    mine = options_class(
        low=(int, option(0, "how low")),
        on=(bool, option(False, "whether it is on")),
        text=(str, option("x", "a text")),
    )
    argv = ["--low", "-3", "--on", "True", "--text", "-x", "--width=2", "--width=4"]
    expected = {"width": 4, "low": -3, "on": True, "text": "-x"}
    assert vars(parse_command_line(mine, argv)) == expected
    assert parse_command_line(mine, ["--text="]).text == ""
    assert parse_command_line(mine, ["--text", "a=b c"]).text == "a=b c"


@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        ([str(SRC / "train.py"), "--epoch", "1"], 2, "--epochs"),
        ([str(SRC / "train.py"), "--help"], 0, "--epochs"),
        (["-c", "import smlightning_sagemaker.job.request, smlightning.options"], 0, ""),
    ],
)
def test_help_a_wrong_option_and_the_launcher_import_nothing_heavy(
    words: list[str], status: int, printed: str
) -> None:
    """Their answer would take seconds."""
    command = [sys.executable, "-X", "importtime", *words]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == status and printed in run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    imported = set(re.findall(r"\| +(\w+)$", run.stderr, re.M))
    assert "jsonargparse" in imported
    assert not imported & {"torch", "pytorch_lightning", "numpy"}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--shard_size 2", "--shard_size"),
        ("--strategy fsdp --precision 16-mixed", "--precision"),
    ],
)
def test_options_of_ddp_and_fsdp_conflict(words: str, option: str) -> None:
    with pytest.raises(UserError, match=option):
        parse(words.split())
