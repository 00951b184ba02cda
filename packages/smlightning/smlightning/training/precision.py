"""The Trainer's ``precision`` for an option's value; TF32 only on request."""

from typing import Any

import torch


def trainer_precision(wanted: str, accelerator: str, strategy: str = "ddp") -> Any:
    """Trainer's ``precision`` for an option's value; sets TF32 for this process.

    Args:
        wanted: ``auto`` is bf16-mixed if the GPU computes in it, on older GPUs 16-mixed or, with
            ``fsdp``, 32-true, and 32-true on a CPU; ``tf32`` is 32-true with matrix products in
            TF32; the others are Lightning's.
        accelerator: ``cpu`` or ``gpu``.
        strategy: ``ddp`` or ``fsdp``, which does not scale losses as 16-mixed needs.
    """
    tf32 = wanted == "tf32"
    torch.backends.cudnn.allow_tf32 = tf32  # torch's default is True for convolutions
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if wanted == "auto" and accelerator == "gpu":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed"
        return "32-true" if strategy == "fsdp" else "16-mixed"
    return "32-true" if wanted in ("auto", "tf32") else wanted
