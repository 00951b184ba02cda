"""Precision and TF32 as an option asks for them."""

import pytest
import torch

from smlightning.training.precision import trainer_precision


@pytest.mark.parametrize(("bf16", "chosen"), [(True, "bf16-mixed"), (False, "16-mixed")])
def test_precision_follows_the_gpu(
    bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert trainer_precision("auto", "gpu") == chosen
    sharded = "bf16-mixed" if bf16 else "32-true"
    assert trainer_precision("auto", "gpu", "fsdp") == sharded
    assert [trainer_precision(p, "cpu") for p in ("auto", "tf32", "32-true")] == ["32-true"] * 3
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
