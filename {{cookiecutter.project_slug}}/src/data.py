"""The data: read, encoded and stored once per node by `datasets`, then memory-mapped by every rank.

`Data.prepare_data` reads the rows of each split as text (sources.read), splits off what is missing
(splits.complete), and encodes them in batches. `Data.setup` opens the files that it wrote. A loader
chooses the rows of each batch (batches.loader), and `BatchDataset` gathers them.

To train on something else, replace this file: docs/data.md.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytorch_lightning as pl
import torch
from smlightning.data import batches, columns, prepared, sources, splits, text
from smlightning.pretrained import PretrainedTokenizer, tokenizer_files

from options import Options

VERSION = 11  # of the stored data; another number prepares all data anew
BUILTIN = "cldr"
BATCH = 10_000  # rows that are encoded at a time
LANGUAGES = (
    "ar", "bg", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id",
    "it", "ja", "ko", "lt", "nl", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip
TEXT_COLUMNS = ("text", "sentence", "content", "phrase", "review", "document", "input")
LABEL_COLUMNS = ("label", "labels", "language", "category", "class", "target", "intent")


class Data(pl.LightningDataModule):
    """Texts and their labels. Options: the fields of `options.Options`.

    A batch is a dictionary of B samples, padded to the longest of them, L tokens:
    ``input_ids`` and ``attention_mask`` (B, L) int64; ``label`` (B,) int64; ``weight`` (B,)
    float32, 0 for a filler that evens out the ranks, else 1; ``scale``: `batches.RankBatch`.

    Attributes:
        labels: names of the labels, after `setup`.
        splits: rows of train, validation and test, after `setup`.
        fingerprint: a digest of all rows, after `setup`; a run resumes only with it.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.options = chosen = Options(dataset=dataset, **options)
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.batch_size = chosen.batch_size  # for the log
        self.labels: list[str] = []
        self.splits: dict[str, datasets.Dataset] = {}
        self.fingerprint = ""
        self.source = None if dataset == BUILTIN else sources.find(dataset)
        source = self.source.facts() if self.source else [BUILTIN, version("babel")]
        tokens = [chosen.model_name, sources.file_stamps(tokenizer_files(chosen.model_name))]
        names = [chosen.text_column, chosen.label_column]
        facts = [VERSION, source, tokens, chosen.max_length, names, chosen.seed]
        self.path = prepared.path_for(chosen.data_dir, dataset, facts)

    def prepare_data(self) -> None:
        """Write the encoded rows to ``self.path``, unless they are there. Once per node.

        Raises:
            UserError: the data is unavailable or invalid.
        """
        with prepared.building(self.path) as folder:
            if folder:
                self._write(folder)

    def _write(self, folder: Path) -> None:
        tokens = tokenizer(self.options.model_name)
        tables = splits.labelled(self._read(folder / prepared.CACHE))
        names = splits.class_names(tables)
        token_type = tokens.encode(["a"], 1)[0].dtype
        features = datasets.Features(
            input_ids=datasets.List(datasets.Value(str(token_type))),
            label=datasets.ClassLabel(names=names),
        )

        def encode(rows: pa.Table, numbers: list[int], part: splits.Part) -> pa.Table:
            rows = rows.filter(part.has(numbers))
            texts, labels = (rows[name].combine_chunks() for name in ("text", "label"))
            ids, lengths = tokens.encode(texts, self.options.max_length)
            codes = splits.codes(labels, names)
            return pa.table({"input_ids": columns.lists(ids, lengths), "label": codes})

        parts = splits.complete(tables, self.options.seed)
        for split, part in parts.items():
            part.rows.with_format("arrow").map(
                encode,
                with_indices=True,
                batched=True,
                batch_size=BATCH,
                writer_batch_size=BATCH,
                fn_kwargs={"part": part},
                remove_columns=["text"],
                features=features,
                cache_file_name=str(folder / f"{split}.arrow"),
                new_fingerprint=split,  # `datasets` would hash this object
            )
        prepared.seal(folder, {"pad_id": tokens.pad_id})
        sizes = ", ".join(f"{split} {part.size():,}" for split, part in parts.items())
        print(f"prepare_data: {sizes}; {len(names):,} labels; in {self.path}", flush=True)

    def _read(self, cache: Path) -> list[sources.Table]:
        """Texts and labels, by file or split of the hub."""
        if self.source is None:
            texts, languages = cldr()
            rows = datasets.Dataset.from_dict({"text": texts, "label": languages})
            return [sources.Table("train", BUILTIN, rows)]
        wanted = [
            sources.Column("text", self.options.text_column, TEXT_COLUMNS),
            sources.Column("label", self.options.label_column, LABEL_COLUMNS, optional=True),
        ]
        tables = sources.read(self.source, wanted, cache)
        for table in tables:
            sources.check_filled(table, "text")
        return tables

    def setup(self, stage: str | None = None) -> None:
        """Open the stored rows, memory-mapped; a second call changes nothing."""
        if not self.splits:
            self.splits, facts = prepared.load(self.path)
            self.fingerprint, self.pad_id = facts["fingerprint"], facts["pad_id"]
            self.labels = self.splits["train"].features["label"].names

    def train_dataloader(self) -> batches.RowLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> batches.RowLoader:
        return self._loader("validation")

    def test_dataloader(self) -> batches.RowLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> batches.RowLoader:
        rows = BatchDataset(self.splits[split], self.pad_id)
        lengths, chosen = rows.tokens.lengths, self.options
        return batches.loader(
            rows, lengths, chosen.batch_size, self.trainer, seed, chosen.num_workers
        )


class BatchDataset(torch.utils.data.Dataset):
    """Gathers the rows of a `batches.RankBatch` into the batch that `Data` describes."""

    def __init__(self, rows: datasets.Dataset, pad_id: int) -> None:
        self.tokens = columns.Lists(rows, "input_ids")
        self.labels = columns.numbers(rows, "label")
        self.pad_id = pad_id

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, batch: batches.RankBatch) -> dict[str, Any]:
        input_ids, mask = self.tokens.pad(batch.rows, self.pad_id)
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "label": torch.from_numpy(self.labels[batch.rows]),
            "weight": batch.weight(),
            "scale": batch.scale,
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
