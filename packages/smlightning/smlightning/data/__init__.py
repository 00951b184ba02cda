"""Data: tables read as columns, a store built once per node, global batches.

The way of a row, in the order of the run:

- `tables`: the files of ``--dataset``, read piece by piece: ``find_source``, ``read``, ``Piece``.
- `text`: a column of text checked and encoded: ``encode``, ``batch``, ``Tokenizer``
  (a checkpoint's: `smlightning.pretrained`).
- `labels`: labels encoded, rows held out for missing splits: ``Labels``.
- `store`: arrays written once per node and memory-mapped: ``prepare``, ``write``, ``Rows``.
- `module`: a data module on a store: ``StoredData``.
- `batches`: the samples of each global batch: ``loader``, ``pad``, ``leaves``.

For any loader, in training:

- `rng`: random numbers while a batch is fetched: ``generator``, ``epoch``.
- `stateful`: loaders with a state of their own, for the checkpoint: ``StatefulLoader``,
  ``resumes_exactly``.
- `workers`: a loader's worker that loses a batch ends the run: ``LostBatches``.

Imports go one way: `labels` on `text` and `store`; `text` on `tables` and
`batches`; `module` on `store` and `batches`; `stateful` on `rng`, and `rng`
on `batches`.
"""
