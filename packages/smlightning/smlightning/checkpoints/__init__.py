"""Checkpoints: a training's position, the files of its state, and when they are written.

To the disk:

1. `callback.BeforeHooks` comes first among the callbacks: when a step, validation or epoch begins,
   all hooks of the one before are done, and `callback.Checkpoints` takes a checkpoint if one is due
   (`agreement`): Lightning's state, the `position.Position`, and what hooks and steps have changed
   in the objects of the run (`attributes`, as plain data: `values`);
2. `writer.CheckpointWriter.hold` copies the state (`cluster.shards`);
3. `writer.CheckpointWriter.write`: a thread writes it while training goes on, if the weights are
   finite: with FSDP each rank its shard, then rank 0 the checkpoint;
4. `files` writes a temporary file, its SHA-256, fsync, then the name that makes it valid.

Back:

1. `restore`: rank 0 chooses for all (`resume.decide`), under a lock (`lock`), and every host
   verifies that it has the same files;
2. `plugin.CheckpointPlugin.load_checkpoint` reads them on each rank (`files.read`);
3. `callback.Checkpoints.on_load_checkpoint` restores position, best weights (`best`, `validated`)
   and the counts of Lightning's loops, at which the data start (`data.exact.start_of`).

`unsupported` rejects what cannot be resumed exactly.

`run.Run.train_test_save` calls `resume`, and passes its path to `Trainer.fit`, which does the rest.

Public:

- `callback`: ``Checkpoints``.
"""
