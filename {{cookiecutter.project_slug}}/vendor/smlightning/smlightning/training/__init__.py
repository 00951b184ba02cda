"""Callbacks and settings of training.

- `imports`: Lightning without what nobody uses: ``lightning``. It needs no torch.
- `allocator`: torch's memory settings: ``allocator_settings``. It needs no torch.
- `options`: options that every task has: ``TrainerOptions``. It needs no torch.
- `seeds`: what is random in a step: ``StepSeed``.
- `buckets`: the order of DDP's buckets: ``BucketOrder``.
- `loop`: where Lightning's loop is, and when it validates: ``ValidationSteps``.
- `watchdog`: the end of a job whose ranks hang: ``HangWatchdog``, ``pause_watchdog``.
- `checks`: mistakes found before training or in its first epoch: ``training_checks``,
  ``refuse_incomplete``.
- `rank_checks`: ranks that differ, or train on the same data: ``EqualRanks``, ``DividedData``,
  ``SharedMetrics``, ``equal_on_ranks``.
- `metrics`: metrics over all ranks: ``WeightedMean``, ``ConfusionMatrix``.
- `losses`: the loss of each token: ``token_losses``.
- `optimizers`: optimizers with their schedule: ``adamw_with_cosine``.
- `precision`: the Trainer's precision: ``trainer_precision``.
"""
