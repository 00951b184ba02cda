"""A network of any form is saved and loaded, or a run ends before step 1; no weights are lost."""

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizer

from small_training import Fit, Line, directory, newest_state, same, saved_weights
from smlightning import copies, pretrained, saving
from smlightning.checkpoints import files
from smlightning.errors import UserError


class Net(nn.Module):
    """Tensors of these names; those that are parameters."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)


def of_storage(*parts: Callable[[torch.Tensor], torch.Tensor]) -> Net:
    """Parameters that are these parts of one storage of 12 numbers."""
    storage = torch.arange(12.0)
    return Net(**{f"p{n}": nn.Parameter(part(storage)) for n, part in enumerate(parts)})


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    net[2].bias = net[0].bias
    return net


def compiled_within() -> nn.Module:
    net = tied()
    net[1] = torch.compile(net[1], backend="eager")
    return net


FORMS: dict[str, Callable[[], nn.Module]] = {
    "tied": tied,
    "compiled": lambda: torch.compile(tied(), backend="eager"),
    "a compiled layer": compiled_within,
    "a transposed tie": lambda: of_storage(
        lambda x: x.view(3, 4), lambda x: x.view(3, 4).t(), lambda x: x
    ),
    "parts of a storage": lambda: of_storage(lambda x: x[:5], lambda x: x[5:]),
    "overlapping parts": lambda: of_storage(lambda x: x[:7], lambda x: x[5:], lambda x: x),
    "every second number": lambda: of_storage(lambda x: x[::2]),
    "a part": lambda: of_storage(lambda x: x[3:4]),
    "channels last": lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
    "empty": lambda: Net(none=torch.empty(0, 3), no=torch.empty(0), one=torch.tensor(2.0)),
    "complex": lambda: Net(c=torch.randn(3, dtype=torch.complex64)),
    "conjugate": lambda: Net(c=torch.randn(3, dtype=torch.complex64).conj()),
    "short types": lambda: Net(
        a=torch.ones(2, dtype=torch.bfloat16), b=torch.ones(2, dtype=torch.uint16)
    ),
    "negative view": lambda: Net(c=torch.randn(3, dtype=torch.complex64).conj().imag),
    "extra state that is a tensor": lambda: Extra(torch.ones(2)),
}


class Extra(nn.Linear):
    def __init__(self, extra: Any) -> None:
        super().__init__(2, 2)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def weights_of(net: nn.Module) -> dict[str, Any]:
    return {name: value.resolve_conj() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("form", FORMS)
def test_a_network_of_any_form_is_saved_and_loaded(form: str, tmp_path: Path) -> None:
    net, other = FORMS[form](), FORMS[form]()
    for value in other.state_dict().values():
        value.zero_()
    pretrained.save_own(net, {"a": 1}, tmp_path)
    pretrained.load_own(other, tmp_path)
    assert same(weights_of(net), weights_of(other))
    assert pretrained.saved_config(tmp_path) == {"a": 1}


def test_a_tie_is_saved_once_and_there_after_loading(tmp_path: Path) -> None:
    pretrained.save_own(compiled_within(), {}, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == {"0.weight", "0.bias", "1.bias", "2.weight"}
    untied = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    pretrained.load_own(untied, tmp_path)
    assert untied[1].weight is untied[0].weight and untied[2].bias is untied[0].bias
    theirs = tied()
    load_model(theirs, str(tmp_path / "model.safetensors"))
    assert same(weights_of(untied), weights_of(theirs)), "safetensors' own function reads it"


REJECTED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "weight of .* on the meta device"),
    "sparse": (lambda: Net(s=torch.eye(2).to_sparse()), "s of the network, which is sparse"),
    "compressed": (lambda: Net(s=torch.eye(2).to_sparse_csr()), "which is sparse"),
    "quantised": (
        lambda: Net(q=torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)),
        "q of the network, which is quantised",
    ),
    "packed": (
        lambda: torch.ao.quantization.quantize_dynamic(tied(), {nn.Linear}),
        "_packed_params.* of the network, which is a",
    ),
    "nested": (lambda: Net(n=torch.nested.nested_tensor([torch.ones(1)])), "which is nested"),
    "wide": (lambda: Net(c=torch.ones(1, dtype=torch.complex128)), "complex128"),
    "extra": (lambda: Extra({"a": 1}), "_extra_state of the network, which is a dict"),
    "name": (lambda: Net(__metadata__=torch.ones(1)), "__metadata__ of the network"),
    "surrogate": (lambda: Net(**{"a\udc80": torch.ones(1)}), "UnicodeEncodeError"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REJECTED)
def test_what_no_file_holds_is_named(kind: str, tmp_path: Path) -> None:
    make, words = REJECTED[kind]
    with pytest.raises(UserError, match=words):
        pretrained.save_own(make(), {}, tmp_path)
    assert not [*tmp_path.iterdir()], "a part of a model"


def test_a_config_that_json_rejects_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.json: .*set is not JSON serializable"):
        pretrained.save_own(tied(), {"labels": {"a"}}, tmp_path)


@pytest.mark.parametrize("form", [*FORMS][:-2])
def test_a_copy_has_the_form_of_the_model(form: str) -> None:
    model = Line()
    model.net = FORMS[form]()
    trainer: Any = type("Trainer", (), {"datamodule": {}, "strategy": None})()
    model._trainer = trainer
    tensors = [t for t in model.state_dict().values() if t.numel()]
    copied = copies.copied(model)
    again = [t for t in copied.state_dict().values() if t.numel()]
    assert [(t.stride(), t.storage_offset()) for t in tensors] == [
        (t.stride(), t.storage_offset()) for t in again
    ]
    places, own = ([t.untyped_storage().data_ptr() for t in group] for group in (tensors, again))
    assert [*map(places.index, places)] == [*map(own.index, own)] and not {*places} & {*own}
    assert copied.trainer.datamodule is trainer.datamodule, "data may be large"
    small = copies.copied(model, one_number=True)
    assert all(tensor.numel() <= 1 for tensor in small.net.state_dict().values())


# The trial, before step 1


class Own(Line):
    """Saves with `save_own`."""

    config: ClassVar[Any] = {"width": 4}

    def save(self, directory: Path) -> None:
        pretrained.save_own(self.net, self.config, directory)


class Strided(Own):
    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        save_file({"x": torch.ones(2, 4)[:, ::2]}, directory / "model.safetensors")


class Shared(Own):
    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        save_file(self.net.state_dict() | {"x": self.net[0].weight}, directory / "x.safetensors")


class JSON(Own):
    config: ClassVar[Any] = {"labels": {"a", "b"}}


class Quantised(Own):
    def save(self, directory: Path) -> None:
        self.net = torch.ao.quantization.quantize_dynamic(self.net, {nn.Linear})
        super().save(directory)


class Named(Own):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net.register_buffer("__metadata__", torch.ones(1))


class Meta(Own):
    def save(self, directory: Path) -> None:
        self.net.append(nn.Linear(1, 1, device="meta"))
        super().save(directory)


class Expanded(Own):
    """Its best weights could not be loaded, either."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net.register_buffer("ones", torch.ones(1).expand(5))


class Missing(Own):
    def save(self, directory: Path) -> None:
        import no_such_package  # noqa: F401


class Unreadable(Own):
    """Each of its two functions works."""

    def save(self, directory: Path) -> None:
        torch.save(torch.compile(self.net, backend="eager").state_dict(), directory / "net.pt")


class Untokenized(Own):
    """Its tokenizer is made in code, and has no method that would write its vocabulary."""

    def save(self, directory: Path) -> None:
        super().save(directory)
        Letters().save_pretrained(directory)


class Letters(PreTrainedTokenizer):
    vocab_size = 3

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1, "c": 2}


def load(directory: Path) -> tuple[nn.Module]:
    """What a model's file has for predict.py."""
    net = Line().net
    if (directory / "tokenizer_config.json").exists():
        AutoTokenizer.from_pretrained(directory)
    if (directory / "net.pt").exists():
        net.load_state_dict(torch.load(directory / "net.pt", weights_only=True))
    elif (directory / "model.safetensors").exists():
        pretrained.load_own(net, directory)
    return (net.eval(),)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "model, words",
    [
        (Strided, "Strided.save fails, tried before step 1: .*save: ValueError: .*non contiguous"),
        (Shared, "Shared.save fails, tried before step 1: .*: RuntimeError: .*"),
        (JSON, "JSON.save fails, tried before step 1: config.json: .*set is not JSON"),
        (Quantised, "Quantised.save fails, .*: safetensors cannot hold .*_packed_params"),
        (Named, "Named.save fails, .*: safetensors cannot hold __metadata__"),
        (Meta, "Meta.save fails, .*: safetensors cannot hold 3.weight .*meta device"),
        (Expanded, r"Expanded.save fails, .*Error\(s\) in loading state_dict"),
        (Missing, "Missing.save fails, .*no_such_package"),
        (Untokenized, "load of what Untokenized.save wrote fails, .*backend tokenizer"),
        (Unreadable, "load of what Unreadable.save wrote fails, .*load_state_dict|loading state"),
    ],
)
def test_what_cannot_be_saved_ends_the_run_before_step_1(model: type, words: str, fit: Fit) -> None:
    with pytest.raises(UserError, match=words):
        fit(model)
    assert not files.newest_path(directory()), "it has trained"
    assert not [*Path("outputs/model").iterdir()], "the trial left a file"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a folder of main memory."""
    folder = tmp_path / "disk"

    def mount(options: str) -> Path:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if sys.platform != "linux" or subprocess.run(command, check=False).returncode:
            pytest.skip("needs Linux and root")
        return folder

    yield mount
    if folder.exists():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("options, words", [("size=8k", "the disk is full"), ("ro", "Read-only")])
@pytest.mark.parametrize("model", [Own, Line])
def test_a_folder_without_space_or_permission_ends_the_run_before_step_1(
    options: str, words: str, model: type, fit: Fit, small_disk: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Large(model):
        width = 4000

    monkeypatch.setenv("SM_MODEL_DIR", str(small_disk(options)))
    with pytest.raises(UserError, match=f"Large.save fails, tried before step 1: .*({words})"):
        fit(Large)


class Card(Own):
    """Its card has a number of the test."""

    def save(self, directory: Path) -> None:
        card = {"loss": float(self.trainer.callback_metrics["test/loss"])}
        pretrained.save_own(self.net, card, directory)


def test_a_save_that_needs_the_test_trains_and_warns(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Card)
    assert "warning: Card.save fails before step 1: test_saving.py" in capsys.readouterr().err
    assert pretrained.saved_config(Path("outputs/model"))["loss"]


class Lock(Own):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.frame = sys._getframe()


def test_a_model_that_cannot_be_copied_trains_and_warns(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Lock)
    assert "warning: Lock.save is not tried before training: " in capsys.readouterr().err


class Rough(Own):
    """Its `save` changes all that it can reach."""

    saved = 0

    def save(self, directory: Path) -> None:
        Rough.saved += 1
        torch.rand(3), random.random(), np.random.rand()
        torch.manual_seed(1)
        super().save(directory)
        self.eval()
        self.half()
        for tensor in self.state_dict().values():
            tensor.zero_()
        self.net = nn.Sequential(self.net[0])


def test_the_trial_changes_nothing(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(Rough, output_dir="tried")
    assert Rough.saved == 2
    monkeypatch.setattr(saving.SaveTrial, "on_train_start", lambda *_: None)
    fit(Rough, output_dir="alone")
    assert Rough.saved == 3
    one, other = (newest_state(folder) for folder in ("tried", "alone"))
    assert same(one["state_dict"], other["state_dict"])
    assert same(one["optimizer_states"], other["optimizer_states"])
    paths = [Path(folder, "model/model.safetensors") for folder in ("tried", "alone")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_of_a_large_model_one_number_a_tensor_is_tried(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "LARGE", 10)
    with pytest.raises(UserError, match="JSON serializable"):
        fit(JSON)
    with pytest.raises(UserError, match="_packed_params"):
        fit(Quantised)
    sizes: list[int] = []
    write = pretrained.save_own

    def measured(net: nn.Module, *arguments: Any) -> None:
        sizes.append(sum(tensor.numel() for tensor in net.state_dict().values()))
        write(net, *arguments)

    monkeypatch.setattr(pretrained, "save_own", measured)
    fit(Own)
    assert sizes == [4, 13]


# After training


class Late(Own):
    """Fails after training only, as long as it is told to."""

    fails = True

    def save(self, directory: Path) -> None:
        if self.trainer.global_step and Late.fails:
            raise RuntimeError("the tokenizer's server is gone")
        super().save(directory)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_save_that_fails_after_training_loses_nothing(
    elsewhere: bool, fit: Fit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Own, output_dir="sound")
    with pytest.raises(UserError) as caught:
        fit(Late)
    checkpoint = files.newest_path(directory())
    assert "Late.save failed: test_saving.py" in caught.value.problem
    assert f"the best weights are in {checkpoint}" in caught.value.problem
    assert "start the same command again: it only tests and saves" in caught.value.hint
    monkeypatch.setattr(Late, "fails", False)
    capsys.readouterr()
    options = {"output_dir": "other", "resume": str(checkpoint)} if elsewhere else {}
    trainer = fit(Late, **options)
    assert trainer.lightning_module.trained == [], "it trains"
    assert "test/loss" in capsys.readouterr().out
    folder = Path("other" if elsewhere else "outputs", "model/model.safetensors")
    assert folder.read_bytes() == Path("sound/model/model.safetensors").read_bytes()


@pytest.mark.parametrize("hook", ["on_test_start", "on_test_epoch_end", "on_test_end"])
@pytest.mark.parametrize("validated", [True, False])
def test_hooks_of_the_test_do_not_change_what_is_saved(
    hook: str, validated: bool, fit: Fit
) -> None:
    class Changing(Line):
        pass

    def change(self: Any, *_: Any) -> None:
        for tensor in self.net.state_dict().values():
            tensor.mul_(7)

    def infinite(self: Any, *_: Any) -> None:
        self.log("val/loss", float("inf"))

    if not validated:
        Changing.validation_step = infinite  # type: ignore[method-assign]
    for folder in ("plain", "changed"):
        with contextlib.nullcontext() if validated else pytest.raises(UserError, match="finite"):
            fit(Changing, output_dir=folder)
        setattr(Changing, hook, change)
    assert same(saved_weights("plain"), saved_weights("changed"))


@pytest.mark.parametrize("replaced", [True, False])
def test_a_buffer_that_the_test_computes_is_saved(replaced: bool, fit: Fit) -> None:
    """Lightning tests in inference mode: a tensor that is made there takes no changes later."""

    class Threshold(Line):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.net.register_buffer("threshold", torch.zeros(()))

        def on_test_epoch_end(self) -> None:
            if replaced:
                self.net.threshold = torch.tensor(0.5)
            else:
                self.net.threshold.fill_(0.5)

    fit(Threshold)
    assert saved_weights()["threshold"] == 0.5


class Fused(Line):
    """Replaces its layers in the test, as a merge of adapters does."""

    def on_test_start(self) -> None:
        self.net = nn.Sequential(self.net, nn.Identity())

    def on_test_epoch_end(self) -> None:
        pass


def test_layers_that_the_test_replaces_are_saved(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Line, output_dir="plain")
    fit(Fused)
    assert "hooks of the test replace layers" in capsys.readouterr().err
    plain = {f"0.{name}": value for name, value in saved_weights("plain").items()}
    assert same(plain, saved_weights())
