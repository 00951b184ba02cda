"""Names that the command lines show; light, so that `--help` need not wait for pydantic."""

from typing import Literal, get_args

Distribution = Literal["auto", "smddp", "torch_distributed", "pytorchddp", "none"]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)
