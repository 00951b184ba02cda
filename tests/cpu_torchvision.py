"""torchvision for CUDA next to a torch for CPUs, where no index has another.

Its operators cannot be loaded. Models and transforms need none of them; the import needs their
names.
"""

from pathlib import Path

DECLARED = """
if not _has_ops():
    for _name in ("nms", "qnms"):
        _types = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{_name}", _types)
"""


def declare_operators(packages: Path) -> None:
    """Let the torchvision in this folder of packages be imported."""
    with (packages / "torchvision" / "extension.py").open("a") as file:
        file.write(DECLARED)
