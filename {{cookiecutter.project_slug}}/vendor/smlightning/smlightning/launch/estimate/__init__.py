"""Whether a job's model fits into its GPUs' memory, and how long it trains.

- `sizes`: bytes of a model and of a training step, what a rank holds of them, and what fits.
- `transformers`: the same by formula, where only a checkpoint's configuration is known.
- `counting`: the same counted, of the project's own model and data, in a process with torch.
- `known`: what was counted last, kept for `preflight`; else the formula.
- `command`: ``smlightning estimate``.
"""
