"""The machinery of a run: one guarantee per file. It imports nothing of the files beside it and knows no task."""
