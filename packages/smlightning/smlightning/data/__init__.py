"""Data: rows read and stored by Hugging Face's `datasets`, and global batches of them.

The way of a row, in the order of the run:

- `folder`: each file of a folder as data, as none, or as an error: ``data_files``, ``split_of``.
- `sources`: the files of ``--dataset``, or the hub, read as text: ``find``, ``read``, ``Table``.
- `channel`: the job's folder for ``--dataset training``: ``CHANNEL``, ``channel_folder``.
- `splits`: labels as classes, rows held out for missing splits: ``class_names``, ``complete``.
- `text`: texts as tokens: ``ByteTokenizer``, ``batch`` (a checkpoint's: `smlightning.pretrained`).
- `prepared`: a folder written once per node: ``building``, ``seal``, ``load``.
- `columns`: a batch from the stored Arrow columns: ``Lists``, ``numbers``.
- `batches`: the samples of each global batch: ``GlobalBatches``, ``loader``, ``pad``.

For any loader, in training:

- `exact`: loaders that start where training is: ``RowLoader``, ``Stream``, ``exact_loader``.
- `rng`: random numbers while a batch is fetched: ``generator``, ``epoch``.
- `fingerprint`: of the files that ``--dataset`` and the channels name: ``of_files``.
- `workers`: a loader's worker that loses a batch ends the run: ``LostBatches``.

Imports go one way: `splits` on `sources`, and `sources` on `folder`; `columns` and `text` on
`batches`; `batches` on `exact`, and `exact` on `rng`.
"""
