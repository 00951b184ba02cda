"""The data: prepared once per node, memory-mapped by every rank, in an order determined by seed and epoch.

To make the project yours, replace this file. `train.py` needs a LightningDataModule named `Data` that takes the options
of `options.DataOptions` and has `labels` after `setup`, whose batches your `model.py` understands;
`tests/test_train.py` says whether the seam held.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from options import DataOptions
from runtime import batches, prepared, readers
from runtime.report import UserError, root_cause

LANGUAGES = "ar bg cs da de el en es fa fi fr he hi hu id it ja ko lt nl pl pt ro ru sv th tr uk vi zh".split()  # noqa: SIM905
TEXT_COLUMNS = ("text", "sentence", "content", "phrase", "review", "document", "input")
LABEL_COLUMNS = ("label", "labels", "language", "category", "class", "target", "intent")
BUILTIN = "cldr"

Rows = tuple[list[str], list[str]]  # texts, labels


class Data(pl.LightningDataModule):
    """Texts and their labels. Options are the fields of `options.DataOptions`, read as ``self.options.name``.

    Batches are dictionaries of tensors, B samples padded to the longest of them, L tokens:
    ``input_ids`` (B, L) int64; ``attention_mask`` (B, L) int64; ``label`` (B,) int64; ``weight`` (B,) float32, 1 for
    a sample and 0 for a filler that only evens out the ranks; ``scale``, a float: the weighted sum of the samples'
    losses times ``scale``, averaged over ranks as DDP does and over accumulated batches as Lightning does, is the mean
    over the global batch.

    ``start``, (epoch, global batches), is where training goes on: `checkpoints.py` sets it before the loader is made.

    Raises:
        UserError: from ``prepare_data``, where the data cannot be had or is not what was promised.
    """

    def __init__(self, dataset: str = DataOptions.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.options = DataOptions(dataset, **options)
        self.batch_size = self.options.batch_size  # for the log: runtime/progress.py
        self.labels: list[str] = []
        self.fingerprint = ""  # of texts, labels and their order, after setup
        self.splits: dict[str, Any] = {}
        self.start = (0, 0)
        if dataset == BUILTIN:
            import babel

            self._source: list[Any] = [BUILTIN, babel.__version__]
        else:
            self._source = readers.find_source(dataset, [BUILTIN])
        chosen = self.options
        tokenizer_files = readers.stamps(_tokenizer_files(chosen.model_name))
        columns = (chosen.text_column, chosen.label_column)
        facts = [4, self._source, chosen.model_name, tokenizer_files, chosen.max_length, columns, chosen.seed]
        name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
        self.path = Path(chosen.data_dir) / f"{name}-{prepared.json_digest(facts)[:12]}"

    def prepare_data(self) -> None:
        """Build the data set at ``self.path``, unless a verified copy is there. Runs once per node."""
        seconds = prepared.prepare(self.path, self._build)
        if seconds is not None:
            sizes = prepared.read(self.path)["sizes"]
            parts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
            what = f"{sum(sizes.values()):,} texts ({parts}) of {self.options.dataset!r}"
            print(f"prepare_data: {what} in {self.path}, {seconds:.1f} s", flush=True)

    def _build(self, directory: Path) -> dict[str, Any]:
        import datasets

        datasets.disable_progress_bars()
        chosen = self.options
        splits = self._read(directory / "cache")
        labels = sorted(set(splits["train"][1]))
        if len(labels) < 2:
            raise UserError(
                f"{chosen.dataset!r} has a single class, {labels[0]!r}; two or more are needed to classify."
            )
        for split in ("val", "test"):
            for unseen in set(splits.get(split, ((), ()))[1]) - set(labels):
                raise UserError(
                    f"Label {unseen!r} of the {split} split does not occur in training; add it or remove it."
                )
        splits = readers.complete_splits(splits, stratify_by=1, seed=chosen.seed)
        content = hashlib.sha256(json.dumps(labels).encode())

        # `map` takes a digest of what its function refers to, and self has none
        tokenize, max_length = tokenizer(chosen.model_name), chosen.max_length
        for split, (texts, names) in splits.items():
            if not texts:
                raise UserError(
                    f"The {split} split of {chosen.dataset!r} is empty: too few rows; add some, or a file for it."
                )
            for pair in zip(texts, names, strict=True):
                content.update(json.dumps(pair).encode())
            index = {name: i for i, name in enumerate(labels)}
            columns = {"text": texts, "label": [index[name] for name in names]}
            encoded = datasets.Dataset.from_dict(columns).map(
                lambda batch: _encode(tokenize.encode, batch["text"], max_length), batched=True, batch_size=10_000
            )
            encoded.save_to_disk(directory / split)
        shutil.rmtree(directory / "cache", ignore_errors=True)
        sizes = {split: len(texts) for split, (texts, _) in splits.items()}
        return {"labels": labels, "pad_id": tokenize.pad_id, "content": content.hexdigest(), "sizes": sizes}

    def _read(self, scratch: Path) -> dict[str, readers.Table]:
        """Texts and labels of each split, checked."""
        chosen = self.options
        if chosen.dataset == BUILTIN:
            splits: dict[str, readers.Table] = {"train": [*cldr()]}
        else:
            columns = [
                readers.Column("text", chosen.text_column, TEXT_COLUMNS),
                readers.Column("label", chosen.label_column, LABEL_COLUMNS),
            ]
            splits = readers.read(chosen.dataset, self._source, columns, scratch, [BUILTIN])
        for split, (texts, labels) in list(splits.items()):
            if split != "train" and texts and all(label is None for label in labels):
                del splits[split]  # a public test set whose labels are kept secret tests nothing here
            else:
                _check(split, texts, labels)
        return splits

    def setup(self, stage: str | None = None) -> None:
        """Open the prepared data, memory-mapped; a second call changes nothing."""
        if not self.splits:
            import datasets

            meta = prepared.read(self.path)
            self.labels, self.pad_id, self.fingerprint = meta["labels"], meta["pad_id"], meta["content"]
            self.splits = {s: datasets.load_from_disk(str(self.path / s)) for s in ("train", "val", "test")}

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val", None)

    def test_dataloader(self) -> DataLoader:
        return self._loader("test", None)

    def _loader(self, split: str, seed: int | None) -> DataLoader:
        rows = self.splits[split]
        lengths = rows.with_format("numpy")["length"][:]
        start = self.start if split == "train" else (0, 0)
        dataset = BatchDataset(rows, self.pad_id)
        chosen = self.options
        return batches.loader(dataset, lengths, chosen.batch_size, self.trainer, seed, start, chosen.num_workers)


class BatchDataset(torch.utils.data.Dataset):
    """Turns what `runtime.batches.GlobalBatches` yields into the batch `Data` describes."""

    def __init__(self, rows: Any, pad_id: int) -> None:
        self.rows, self.pad_id = rows.select_columns(["input_ids", "label"]), pad_id

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[list[int], int, float]) -> dict[str, Any]:
        rows, real, scale = key
        columns = self.rows[rows]
        return {
            **pad(columns["input_ids"], self.pad_id),
            "label": torch.tensor(columns["label"]),
            "weight": (torch.arange(len(rows)) < real).float(),
            "scale": scale,
        }


def pad(ids: Sequence[Sequence[int]], pad_id: int) -> dict[str, torch.Tensor]:
    """Token ids of B texts → ``input_ids`` and ``attention_mask``, both (B, longest), padded on the right."""
    lengths = torch.tensor([len(i) for i in ids])
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    input_ids = torch.full(mask.shape, pad_id)
    input_ids[mask] = torch.from_numpy(np.concatenate([np.asarray(i, dtype=np.int64) for i in ids]))
    return {"input_ids": input_ids, "attention_mask": mask.long()}


class Tokenizer(NamedTuple):
    """``encode(texts, max_length)`` gives the token ids of each text, at least one; ``pad_id`` fills up a batch."""

    encode: Callable[[list[str], int], list[list[int]]]
    pad_id: int


def tokenizer(model_name: str) -> Tokenizer:
    """UTF-8 bytes plus one for the byte CNN, else the checkpoint's own tokenizer.

    A checkpoint's own greatest length holds where ``max_length`` is longer.

    Raises:
        UserError: the checkpoint has none, or cannot be reached.
    """
    if model_name == "bytecnn":
        return Tokenizer(
            lambda texts, length: [[b + 1 for b in (t.encode("utf-8", "replace") or b" ")[:length]] for t in texts], 0
        )
    from transformers import AutoConfig, AutoTokenizer

    with checkpoint_errors(model_name):  # without False transformers asks standard input whether to run its code
        own = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
        config = AutoConfig.from_pretrained(model_name, trust_remote_code=False)
    positions = getattr(config, "max_position_embeddings", None)
    longest = min(own.model_max_length, positions or own.model_max_length)  # past it the network has no positions
    pad_id = next((i for i in (own.pad_token_id, own.eos_token_id) if i is not None), 0)  # decoders often have no pad
    return Tokenizer(
        lambda texts, length: [
            ids or [pad_id] for ids in own(texts, truncation=True, max_length=min(length, longest))["input_ids"]
        ],
        pad_id,
    )


@contextlib.contextmanager
def checkpoint_errors(model_name: str) -> Iterator[None]:
    """Turn what transformers raises for a checkpoint that cannot be had into one sentence."""
    local = Path(model_name).exists()
    if not local:
        readers.offline_if_unreachable()
    try:
        yield
    except Exception as error:  # the hub, the network and each kind of model have exceptions of their own
        reason = root_cause(error) if local else readers.hub_reason(error)
        raise UserError(
            f"--model_name {model_name!r} could not be loaded: it is not bytecnn, nor a folder that holds a Hugging "
            f"Face checkpoint with its tokenizer, nor a hub name that can be reached from here ({reason})."
        ) from error


def _tokenizer_files(model_name: str) -> list[Path]:
    found = Path(model_name).glob("*") if Path(model_name).is_dir() else ()
    return sorted(f for f in found if f.suffix in (".json", ".txt", ".model"))


def _check(split: str, texts: list[Any], labels: list[Any]) -> None:
    for i, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str) or not text:
            found = "null" if text is None else "empty" if text == "" else f"{text!r}, a {type(text).__name__}"
            raise UserError(f"Row {i + 1} of the {split} split: the text is {found}; expected text; mend or remove it.")
        if label is None or label == "":
            raise UserError(f"Row {i + 1} of the {split} split has no label; expected one; mend or remove it.")
        labels[i] = str(label)
    if not texts:
        raise UserError(f"The {split} split is empty; give at least one row.")


def cldr() -> Rows:
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


def _encode(tokenize: Callable, texts: list[str], max_length: int) -> dict[str, list]:
    ids = tokenize(texts, max_length)
    return {"input_ids": ids, "length": [len(i) for i in ids]}
