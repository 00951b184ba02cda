"""Checkpoints: a training's position, the files of its state, and when they are written.

- `callback`: when to write, what to resume from, the best weights: ``Checkpoints``.
"""
