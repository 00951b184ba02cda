"""The data: prepared once per node, memory-mapped by every rank, in an order determined by seed and epoch.

To train on something else, replace this file: README.md, "Your own task", says what train.py relies on.
"""

import itertools
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from options import DataOptions
from runtime import batches, prepared, readers

LANGUAGES = "ar bg cs da de el en es fa fi fr he hi hu id it ja ko lt nl pl pt ro ru sv th tr uk vi zh".split()  # noqa: SIM905
TEXT_COLUMNS = ("text", "sentence", "content", "phrase", "review", "document", "input")
LABEL_COLUMNS = ("label", "labels", "language", "category", "class", "target", "intent")
BUILTIN = "cldr"


class Data(pl.LightningDataModule):
    """Texts and their labels. Options are the fields of `options.DataOptions`, read as ``self.options.name``.

    Batches are dictionaries of tensors, B samples padded to the longest of them, L tokens:
    ``input_ids`` (B, L) int64; ``attention_mask`` (B, L) int64; ``label`` (B,) int64; ``weight`` (B,) float32, 1 for
    a sample and 0 for a filler that only evens out the ranks; ``scale``, a float: the weighted sum of the samples'
    losses times ``scale``, averaged over ranks as DDP does and over accumulated batches as Lightning does, is the mean
    over the global batch.

    ``start``, (epoch, global batches), is where training goes on: `checkpoints.py` sets it before the loader is made.

    Raises:
        UserError: from ``prepare_data``, where the data is unavailable or invalid.
    """

    def __init__(self, dataset: str = DataOptions.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.options = DataOptions(dataset, **options)
        self.batch_size = self.options.batch_size  # for the log: runtime/progress.py
        self.labels: list[str] = []
        self.fingerprint = ""  # of tokens, labels and their order, after setup
        self.splits: dict[str, prepared.Rows] = {}
        self.start = (0, 0)
        if dataset == BUILTIN:
            import babel

            self._source: list[Any] = [BUILTIN, babel.__version__]
        else:
            self._source = readers.find_source(dataset, [BUILTIN])
        chosen = self.options
        files = sorted(f for f in Path(chosen.model_name).glob("*") if f.suffix in (".json", ".txt", ".model"))
        columns = (chosen.text_column, chosen.label_column)
        facts = [6, self._source, chosen.model_name, readers.stamps(files), chosen.max_length, columns, chosen.seed]
        name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
        self.path = Path(chosen.data_dir) / f"{name}-{prepared.json_digest(facts)[:12]}"

    def prepare_data(self) -> None:
        """Build the data set at ``self.path``, unless a verified copy is there. Runs once per node."""
        prepared.prepare(self.path, self._build, f"texts of {self.options.dataset!r}")

    def _build(self, directory: Path) -> dict[str, Any]:
        chosen = self.options
        tokenize = tokenizer(chosen.model_name)
        columns = [
            readers.Column("text", chosen.text_column, TEXT_COLUMNS),
            readers.Column("label", chosen.label_column, LABEL_COLUMNS),
        ]
        if chosen.dataset == BUILTIN:
            splits: dict[str, readers.Pieces] = {"train": iter([[pa.array(column) for column in cldr()]])}
        else:
            splits = readers.read(chosen.dataset, self._source, columns, directory / "cache", [BUILTIN])
        labels, sizes = prepared.write_classified(
            directory, splits, lambda texts: tokenize.encode(texts, chosen.max_length), chosen.seed, ("text", "label")
        )
        shutil.rmtree(directory / "cache", ignore_errors=True)
        return {"labels": labels, "pad_id": tokenize.pad_id, "sizes": sizes}

    def setup(self, stage: str | None = None) -> None:
        """Open the prepared data, memory-mapped; a second call changes nothing."""
        if not self.splits:
            facts = prepared.read(self.path)
            self.labels, self.pad_id, self.fingerprint = facts["labels"], facts["pad_id"], facts["digest"]
            self.splits = {split: prepared.Rows(self.path, split) for split in facts["sizes"]}

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val", None)

    def test_dataloader(self) -> DataLoader:
        return self._loader("test", None)

    def _loader(self, split: str, seed: int | None) -> DataLoader:
        rows, chosen = self.splits[split], self.options
        start = self.start if split == "train" else (0, 0)
        dataset = BatchDataset(rows, self.pad_id)
        lengths = rows.column("lengths")
        return batches.loader(dataset, lengths, chosen.batch_size, self.trainer, seed, start, chosen.num_workers)


class BatchDataset(torch.utils.data.Dataset):
    """Turns what `runtime.batches.GlobalBatches` yields into the batch `Data` describes."""

    def __init__(self, rows: prepared.Rows, pad_id: int) -> None:
        self.rows, self.pad_id = rows, pad_id

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[np.ndarray, int, float]) -> dict[str, Any]:
        chosen, real, scale = key
        arrays, at = self.rows.arrays, self.rows.index[chosen]
        input_ids, mask = batches.pad(arrays["ids"], arrays["starts"][at], arrays["lengths"][at], self.pad_id)
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "label": torch.from_numpy(arrays["classes"][at].astype(np.int64)),
            "weight": torch.from_numpy((np.arange(len(at)) < real).astype(np.float32)),
            "scale": scale,
        }


class Tokenizer(NamedTuple):
    """``encode(texts, max_length)``: token ids of all texts, one after the other, and each one's length, at least 1."""

    encode: Callable[[pa.Array | list[str], int], tuple[np.ndarray, np.ndarray]]
    pad_id: int  # fills up a batch


def tokenizer(model_name: str) -> Tokenizer:
    """UTF-8 bytes plus one for the byte CNN, else the checkpoint's own tokenizer, cut at the checkpoint's own length.

    Raises:
        UserError: the checkpoint has none, or cannot be reached.
    """
    if model_name == "bytecnn":
        return Tokenizer(readers.encode_bytes, 0)
    from transformers import AutoConfig, AutoTokenizer

    with checkpoint_errors(model_name):  # without False transformers asks standard input whether to run its code
        own = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
        config = AutoConfig.from_pretrained(model_name, trust_remote_code=False)
    positions = getattr(config, "max_position_embeddings", None)
    longest = min(own.model_max_length, positions or own.model_max_length)  # past it the network has no positions
    pad_id = next((i for i in (own.pad_token_id, own.eos_token_id) if i is not None), 0)  # decoders often have no pad

    def encode(texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        given = texts if isinstance(texts, list) else texts.to_pylist()
        rows = own(given, truncation=True, max_length=min(max_length, longest))["input_ids"]  # on all cores
        rows = [ids or [pad_id] for ids in rows]
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.min_scalar_type(len(own)))
        return ids, np.array([len(row) for row in rows])

    return Tokenizer(encode, pad_id)


def pad(sequences: tuple[np.ndarray, np.ndarray], pad_id: int) -> dict[str, torch.Tensor]:
    """What ``Tokenizer.encode`` gives for B texts → ``input_ids`` and ``attention_mask``, both (B, longest)."""
    ids, lengths = sequences
    input_ids, mask = batches.pad(ids, lengths.cumsum() - lengths, lengths, pad_id)
    return {"input_ids": input_ids, "attention_mask": mask}


def checkpoint_errors(model_name: str) -> AbstractContextManager[None]:
    """Turn what transformers raises for a checkpoint that cannot be had into one sentence."""
    sentence = (
        f"--model_name {model_name!r} could not be loaded: it is not bytecnn, nor a folder that holds a Hugging Face "
        "checkpoint with its tokenizer, nor a hub name that can be reached from here"
    )
    return readers.hub_errors(sentence, local=Path(model_name).exists())


def cldr() -> tuple[list[str], list[str]]:
    """Names of territories, languages, currencies, scripts, months and days, and the language each is written in.

    Unicode's CLDR as Babel carries it. Names that two of the languages share are left out: nobody could tell.
    """
    from babel import Locale

    written_in: dict[str, set[str]] = {}
    for language in LANGUAGES:
        locale = Locale.parse(language)
        names = [locale.territories, locale.languages, locale.currencies, locale.scripts]
        names += [width for kind in (locale.months, locale.days) for form in kind.values() for width in form.values()]
        for name in {value for table in names for value in table.values()}:
            if any(c.isalpha() for c in name):
                written_in.setdefault(name, set()).add(language)
    unique = sorted((name, *languages) for name, languages in written_in.items() if len(languages) == 1)
    return [name for name, _ in unique], [language for _, language in unique]
