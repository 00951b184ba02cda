"""Callbacks and settings of training.

- `options`: options that every project has: ``TrainerOptions``. It needs no torch.
- `seeds`: random numbers of a step: ``StepSeed``.
- `loaders`: makes the loaders of a data module start where training is: ``Loaders``.
- `buckets`: the order of DDP's buckets: ``BucketOrder``.
- `loop`: the position of Lightning's loop, and its validations: ``ValidationSteps``.
- `hangs`: ends a job whose ranks hang: ``HangTimeout``, ``slow``.
- `checks`: mistakes found before training or while it runs: ``training_checks``,
  ``check_complete``.
- `rank_checks`: ranks that differ, or train on the same data: ``EqualRanks``, ``DividedData``,
  ``SharedMetrics``.
- `metrics`: metrics over all ranks: ``WeightedMean``, ``ConfusionMatrix``.
- `optimizers`: optimizers with their schedule: ``adamw_with_cosine``.
"""
