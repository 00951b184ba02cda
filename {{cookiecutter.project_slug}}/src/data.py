"""The data: read, encoded and stored once per node, then memory-mapped by every rank.

`Data.prepare_data` reads the rows of each split (tables.read), encodes them (text.encode,
labels.encode), stores them and splits off what is missing (labels.split). `Data.setup` opens the
store. A loader chooses the rows of each batch (batches.loader), and `BatchDataset` gathers them.

To train on something else, replace this file: docs/data_and_model.md.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from smlightning.data import batches, store, tables, text
from smlightning.data.labels import Labels
from smlightning.data.module import StoredData
from smlightning.pretrained import PretrainedTokenizer, tokenizer_files

from options import Options

VERSION = 9  # of the stored data; another number prepares all data anew
BUILTIN = "cldr"
LANGUAGES = (
    "ar", "bg", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id",
    "it", "ja", "ko", "lt", "nl", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip
TEXT_COLUMNS = ("text", "sentence", "content", "phrase", "review", "document", "input")
LABEL_COLUMNS = ("label", "labels", "language", "category", "class", "target", "intent")


class Data(StoredData):
    """Texts and their labels. Options: the fields of `options.Options`.

    A batch is a dictionary of B samples, padded to the longest of them, L tokens:
    ``input_ids`` and ``attention_mask`` (B, L) int64; ``label`` (B,) int64; ``weight`` (B,)
    float32, 0 for a filler that evens out the ranks, else 1; ``scale``: `batches.Share`.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        chosen = Options(dataset=dataset, **options)
        self.labels: list[str] = []
        self.source = None if dataset == BUILTIN else tables.find_source(dataset)
        source = self.source.facts() if self.source else [BUILTIN, version("babel")]
        tokens = tables.file_stamps(tokenizer_files(chosen.model_name))
        columns = [chosen.text_column, chosen.label_column]
        model, cut = chosen.model_name, chosen.max_length
        super().__init__(chosen, [VERSION, source, model, tokens, cut, columns, chosen.seed])

    def prepare_data(self) -> None:
        """Store all rows at ``self.path``, unless they are there. Once per node.

        Raises:
            UserError: the data is unavailable or invalid.
        """
        with store.prepare(self.path, f"texts of {self.options.dataset!r}") as folder:
            if folder is None:
                return
            tokens = tokenizer(self.options.model_name)
            labels = Labels()
            for split, pieces in self._read().items():
                encoded = text.encode(pieces, tokens, self.options.max_length)
                store.write(folder / split, labels.encode(encoded, split))
            names = labels.split(folder, self.options.seed)
            store.write_facts(folder, {"labels": names, "pad_id": tokens.pad_id})

    def _read(self) -> dict[str, tables.Pieces]:
        """Texts and labels of each split, piece by piece."""
        if self.source is None:
            columns = [pa.array(column) for column in cldr()]
            return {"train": iter([tables.Piece(columns, BUILTIN)])}
        return tables.read(
            self.source,
            [
                tables.Column("text", self.options.text_column, TEXT_COLUMNS),
                tables.Column("label", self.options.label_column, LABEL_COLUMNS),
            ],
        )

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        self.labels = self.facts["labels"]

    def dataset(self, split: str) -> "BatchDataset":
        return BatchDataset(self.splits[split], self.facts["pad_id"])


class BatchDataset(torch.utils.data.Dataset):
    """Gathers the rows of a `batches.Share` into the batch that `Data` describes."""

    def __init__(self, rows: store.Rows, pad_id: int) -> None:
        self.rows = rows
        self.pad_id = pad_id

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, share: batches.Share) -> dict[str, Any]:
        arrays = self.rows.arrays
        at = self.rows.index[share.rows]
        starts, lengths = arrays["starts"][at], arrays["lengths"][at]
        input_ids, mask = batches.pad(arrays["ids"], starts, lengths, self.pad_id)
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "label": torch.from_numpy(arrays["labels"][at].astype(np.int64)),
            "weight": share.weight(),
            "scale": share.scale,
        }


def tokenizer(model_name: str) -> text.Tokenizer:
    """Bytes for the byte CNN, else the checkpoint's own; UserError if it has none."""
    return text.ByteTokenizer() if model_name == "bytecnn" else PretrainedTokenizer(model_name)


def cldr() -> tuple[list[str], list[str]]:
    """Names of territories, languages, currencies, scripts, months and days; their languages.

    Unicode's CLDR from Babel, without names that two of the languages share.
    """
    from babel import Locale

    written_in: dict[str, set[str]] = {}
    for language in LANGUAGES:
        locale = Locale.parse(language)
        lists = [locale.territories, locale.languages, locale.currencies, locale.scripts]
        for calendar in (locale.months, locale.days):
            lists += [names for widths in calendar.values() for names in widths.values()]
        for name in {name for names in lists for name in names.values()}:
            if any(character.isalpha() for character in name):
                written_in.setdefault(name, set()).add(language)
    unique = sorted(name for name, languages in written_in.items() if len(languages) == 1)
    return unique, [written_in[name].pop() for name in unique]
