"""Precision and TF32 as an option asks for them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from smlightning.run import Run


def precision(wanted: str, accelerator: str, strategy: str = "ddp") -> Any:
    run: Any = SimpleNamespace(options=SimpleNamespace(precision=wanted, strategy=strategy))
    return Run.precision(run, accelerator)


@pytest.mark.parametrize(("bf16", "chosen"), [(True, "bf16-mixed"), (False, "16-mixed")])
def test_precision_follows_the_gpu(
    bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert precision("auto", "gpu") == chosen
    assert precision("auto", "gpu", "fsdp") == ("bf16-mixed" if bf16 else "32-true")
    assert [precision(p, "cpu") for p in ("auto", "tf32", "32-true")] == ["32-true"] * 3
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
