"""Whether a job fits into the memory of its GPUs and hosts, and how many steps it trains.

- `sizes`: bytes of a model and of a training step; what a rank and a host hold of them.
- `counting`: counts them on the project's own model and data, in a process with torch.
- `known`: starts that process.
- `fit`: compares them with an instance, and lists what makes the job fit.
- `command`: ``smlightning estimate``.
"""
