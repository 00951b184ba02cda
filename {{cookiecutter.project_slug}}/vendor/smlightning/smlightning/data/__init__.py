"""Data: tables read as columns, a store built once per node, global batches.

- `tables`: what ``--dataset`` names, read piece by piece: ``find_source``, ``read``, ``Column``.
- `text`: a column of text checked and encoded: ``encode``, ``batch``, ``Tokenizer``
  (a checkpoint's: `smlightning.pretrained`).
- `store`: arrays written once per node and memory-mapped: ``prepare``, ``write``, ``Rows``.
- `documents`: text of documents packed into windows: ``encode``, ``packed``, ``write_windows``,
  ``Tokens``.
- `batches`: which samples make up each global batch: ``loader``, ``pad``, ``leaves``.
- `draws`: what is drawn at random while a batch is fetched: ``generator``, ``epoch``.
- `division`: the check that ranks are not given the same data: ``DataDividedCheck``; by an
  epoch's rows, `sharing`.

They do not need each other, but for `batches`, which pads for `text`, takes batches apart for
`division`, and orders them for `draws`.
"""
