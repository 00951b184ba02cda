"""Data: tables read as columns, a store built once per node, global batches.

The way of a row, in the order of the run:

- `tables`: what ``--dataset`` names, read piece by piece: ``find_source``, ``read``, ``Column``.
- `text`: a column of text checked and encoded: ``encode``, ``batch``, ``Tokenizer``
  (a checkpoint's: `smlightning.pretrained`).
- `documents`: text of documents packed into windows: ``encode``, ``packed``, ``write_windows``,
  ``Tokens``.
- `store`: arrays written once per node and memory-mapped: ``prepare``, ``write``, ``Rows``.
- `batches`: which samples make up each global batch: ``loader``, ``pad``, ``leaves``.

What any loader has, in training:

- `draws`: what is drawn at random while a batch is fetched: ``generator``, ``epoch``.
- `stateful`: loaders that keep a state of their own, for the checkpoint: ``StatefulLoader``,
  ``resumes_exactly``.
- `workers`: a loader's worker that loses a batch ends the run: ``LostBatches``.

Imports go one way: `documents` on `tables`, `text` and `store`; `text` on `batches`; `stateful` on
`draws`, that on `batches`.
"""
