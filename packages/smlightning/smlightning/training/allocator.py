"""Defaults of torch's environment variable for GPU memory and pinned host memory."""

import re
import sys
from collections.abc import Mapping

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXACT_ABOVE_MB = 256  # tensors whose pinned copy is as large as they are
EXACT_SINCE = (2, 13)  # the first torch that pins so


def allocator_settings(torch_version: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables to set before torch is imported; none if the user has set one.

    - ``expandable_segments``: batches of varying length fragment a GPU's memory less, and it is
      torchtitan's default. Not below torch 2.10: the image with that torch is SMDDP's, which may
      share GPU memory between processes, and such segments cannot be shared.
    - ``pinned_max_cached_size_mb``: torch pins a power of two, up to twice as much as a tensor has
      (CachingHostAllocator.h). Above this size it pins just the tensor's bytes, and returns them to
      the system when they are free. Blocks of loaders are smaller and are used again. Below torch
      2.13 the option is an error. ``pinned_max_round_threshold_mb`` is no substitute: with it
      2.13 may give out a block that is too small (pytorch#192722).
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch_version)
    version = tuple(map(int, numbers.groups())) if numbers else (0, 0)
    if sys.platform != "linux" or version < (2, 10) or any(name in env for name in VARIABLES):
        return {}
    options = ["expandable_segments:True"]
    if version >= EXACT_SINCE:
        options.append(f"pinned_max_cached_size_mb:{EXACT_ABOVE_MB}")
    return {VARIABLES[0]: ",".join(options)}
