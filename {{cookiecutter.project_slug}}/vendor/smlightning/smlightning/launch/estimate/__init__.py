"""Whether a job fits into the memory of its GPUs and its hosts, and how long it trains.

- `sizes`: bytes of a model and of a training step, what a rank holds of them, and what fits.
- `host`: bytes of a host's main memory.
- `transformers`: the sizes by formula, where only a checkpoint's configuration is known.
- `counting`: the same counted, of the project's own model and data, in a process with torch.
- `known`: what was counted last, kept for `preflight`; else the formula.
- `fit`: whether that fits an instance, and what would make it fit.
- `command`: ``smlightning estimate``.
"""
