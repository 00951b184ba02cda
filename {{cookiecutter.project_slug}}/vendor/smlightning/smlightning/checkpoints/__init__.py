"""Checkpoints: a training's position, the files of its state, and when they are written.

The way to the disk, in the order of the run:

1. `callback.Checkpoints.on_train_batch_end`: counts the batch into a `position.Position` and asks
   Lightning for the state when a checkpoint is due;
2. `plugin.CheckpointPlugin.save_checkpoint`: what Lightning then calls on rank 0, with that state
   and position;
3. `writer.CheckpointWriter.write`: a copy of the state (`snapshot`), which a thread writes while
   training goes on;
4. `files.write`: a temporary file, its SHA-256, fsync, then the name that makes it a checkpoint.

The way back:

1. `callback.Checkpoints.resume`: rank 0 chooses for all (`resume.decide`), under a lock (`lock`);
2. `plugin.CheckpointPlugin.load_checkpoint`: what Lightning then calls on each rank; one without
   the file gets rank 0's (`reader.read`);
3. `callback.Checkpoints.on_load_checkpoint`: position, best weights, the data's start, and the
   counts of Lightning's loops.

Where the strategy divides the weights, both ways are every rank's: `writer.ShardWriter` writes each
rank's part, then rank 0 the file that names all parts; `reader.ShardFiles` knows which host has
which.

`agreement` has the ranks agree on when to save and to stop, `best` knows which weights are best.
Public is:

- `callback`: when to write, what to resume from, the best weights: ``Checkpoints``.
"""
