"""Computes whether a job fits into the memory of its GPUs and hosts, and how many steps it trains.

- `sizes`: bytes of a model and of a training step, on a rank and on a host.
- `counting`: counts them on the project's own model and data, in a process with torch.
- `known`: starts that process.
- `fit`: compares them with an instance, and lists changes with which the job fits.
- `command`: ``smlightning estimate``.
"""
