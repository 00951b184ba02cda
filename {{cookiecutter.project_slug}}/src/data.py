"""The data: prepared once per node, memory-mapped by every rank, in an order that numbers alone decide.

To make the project yours, replace this file. `train.py` needs a LightningDataModule named `Data` with `labels`
after `setup`, whose batches your `model.py` understands; `tests/test_train.py` says whether the seam held.
"""

import contextlib
import csv
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

import stop
from report import UserError, folder

LANGUAGES = "ar bg cs da de el en es fa fi fr he hi hu id it ja ko lt nl pl pt ro ru sv th tr uk vi zh".split()  # noqa: SIM905
TEXT_COLUMNS = ("text", "sentence", "content", "phrase", "review", "document", "input")
LABEL_COLUMNS = ("label", "labels", "language", "category", "class", "target", "intent")
READERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "val")
NOT_DATA = r"\.|cache-.*\.arrow|(state|dataset_info|dataset_dict)\.json"  # what datasets.save_to_disk adds
HOLD_OUT = 10  # one text in ten validates, another one in ten tests
POOL = 32  # global batches that are sorted by length together: enough to save padding, few enough to stay random

Rows = tuple[list[str], list[str]]  # texts, labels


class Data(pl.LightningDataModule):
    """Texts and their labels.

    Batches are dictionaries of tensors, B samples padded to the longest of them, L tokens:
    ``input_ids`` (B, L) int64; ``attention_mask`` (B, L) int64; ``label`` (B,) int64; ``weight`` (B,) float32, 1 for
    a sample and 0 for a filler that only evens out the ranks; ``scale``, a float: the weighted sum of the samples'
    losses times ``scale``, averaged over ranks as DDP does and over accumulated batches as Lightning does, is the mean
    over the global batch.

    ``start``, (epoch, global batches), is where training goes on: `checkpoints.py` sets it before the loader is made.

    Raises:
        UserError: from ``prepare_data``, where the data cannot be had or is not what was promised.
    """

    def __init__(
        self,
        dataset: str = "cldr",
        model_name: str = "bytecnn",
        batch_size: int = 64,
        max_length: int = 256,
        text_column: str = "",
        label_column: str = "",
        data_dir: str | Path = "prepared",
        num_workers: int = -1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.dataset, self.model_name, self.batch_size, self.max_length = dataset, model_name, batch_size, max_length
        self.columns = (text_column, label_column)
        self.num_workers, self.seed = num_workers, seed
        self.labels: list[str] = []
        self.fingerprint = ""  # of texts, labels and their order, after setup
        self.splits: dict[str, Any] = {}
        self.start = (0, 0)
        self._source = _source(dataset)
        facts = [4, self._source, model_name, _stamps(_tokenizer_files(model_name)), max_length, self.columns, seed]
        name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
        self.path = Path(data_dir) / f"{name}-{_json_digest(facts)[:12]}"

    def prepare_data(self) -> None:
        """Build the data set at ``self.path``, unless a verified copy is there. Runs once per node.

        It is built beside its place and renamed into it when complete, so a process that is killed leaves nothing
        that looks finished; a second process waits at the lock, which the system lets go of when its owner ends.
        """
        from filelock import FileLock

        building = folder(self.path.parent) / f".{self.path.name}"
        with FileLock(f"{self.path}.lock"):
            if _verified(self.path):
                return
            started = time.perf_counter()
            shutil.rmtree(building, ignore_errors=True)  # of one that was killed
            try:
                sizes = self._build(building)
                shutil.rmtree(self.path, ignore_errors=True)  # a copy that failed its check
                building.replace(self.path)
            except Exception as error:
                if any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in _chain(error)):
                    raise UserError(f"No space left while writing {self.path}; free some or set --data_dir.") from None
                raise
            finally:
                shutil.rmtree(building, ignore_errors=True)
            seconds = time.perf_counter() - started
            parts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
            total = f"{sum(sizes.values()):,}"
            print(
                f"prepare_data: {total} texts ({parts}) of {self.dataset!r} in {self.path}, {seconds:.1f} s", flush=True
            )

    def _build(self, directory: Path) -> dict[str, int]:
        import datasets

        datasets.disable_progress_bars()
        splits = _load(self.dataset, self._source, self.columns, directory)
        for split, (texts, labels) in list(splits.items()):
            if split != "train" and texts and all(label is None for label in labels):
                del splits[split]  # a public test set whose labels are kept secret tests nothing here
            else:
                _check(split, texts, labels)
        labels = sorted(set(splits["train"][1]))
        if len(labels) < 2:
            raise UserError(f"{self.dataset!r} has a single class, {labels[0]!r}; two or more are needed to classify.")
        for split in ("val", "test"):
            for unseen in set(splits.get(split, ((), ()))[1]) - set(labels):
                raise UserError(
                    f"Label {unseen!r} of the {split} split does not occur in training; add it or remove it."
                )
        splits = _complete(splits, self.seed)
        content = hashlib.sha256(json.dumps(labels).encode())

        tokenize, most = tokenizer(self.model_name), self.max_length  # `map` takes a digest of them, and self has none
        for split, (texts, names) in splits.items():
            if not texts:
                raise UserError(
                    f"The {split} split of {self.dataset!r} is empty: too few rows; add some, or a file for it."
                )
            for pair in zip(texts, names, strict=True):
                content.update(json.dumps(pair).encode())
            index = {name: i for i, name in enumerate(labels)}
            columns = {"text": texts, "label": [index[name] for name in names]}
            encoded = datasets.Dataset.from_dict(columns).map(
                lambda batch: _encode(tokenize.encode, batch["text"], most), batched=True, batch_size=10_000
            )
            encoded.save_to_disk(directory / split)
        shutil.rmtree(directory / "cache", ignore_errors=True)
        files = {str(p.relative_to(directory)): _digest(p) for p in sorted(directory.rglob("*")) if p.is_file()}
        meta = {"labels": labels, "pad_id": tokenize.pad_id, "content": content.hexdigest(), "files": files}
        (directory / "meta.json").write_text(json.dumps({**meta, "digest": _json_digest(meta)}))
        return {split: len(texts) for split, (texts, _) in splits.items()}

    def setup(self, stage: str | None = None) -> None:
        """Open the prepared data, memory-mapped; a second call changes nothing."""
        if not self.splits:
            import datasets

            meta = json.loads((self.path / "meta.json").read_text())
            self.labels, self.pad_id, self.fingerprint = meta["labels"], meta["pad_id"], meta["content"]
            self.splits = {s: datasets.load_from_disk(str(self.path / s)) for s in ("train", "val", "test")}

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val", None)

    def test_dataloader(self) -> DataLoader:
        return self._loader("test", None)

    def _loader(self, split: str, seed: int | None) -> DataLoader:
        rows = self.splits[split]
        rank, world_size, accumulate = 0, 1, 1
        if self.trainer:
            rank, world_size = self.trainer.global_rank, self.trainer.world_size
            accumulate = self.trainer.accumulate_grad_batches if split == "train" else 1
        cuda = torch.cuda.is_available()
        workers = self.num_workers if self.num_workers >= 0 else (2 if cuda else 0)
        lengths = rows.with_format("numpy")["length"][:]
        start = self.start if split == "train" else (0, 0)
        order = GlobalBatches(
            lengths, self.batch_size * world_size * accumulate, rank, world_size, seed, accumulate, start
        )
        return DataLoader(
            Padded(rows, self.pad_id), sampler=order, batch_size=None, num_workers=workers, pin_memory=cuda,
            persistent_workers=workers > 0, worker_init_fn=stop.leave_to_parent,
        )  # fmt: skip


class GlobalBatches(torch.utils.data.Sampler):
    """The global batches of an epoch, this rank's part of each: a function of (seed, epoch), whatever the world size.

    Samples of similar length are batched together. Every rank gets equally many rows of each batch; where a batch
    does not divide, fillers of weight 0 complete it, so that no sample is counted twice or left out.

    Args:
        lengths: tokens of each sample, (N,).
        global_batch: samples per optimizer step, over all ranks and all batches that are accumulated.
        seed: None keeps batches in order of length, for evaluation.
        accumulate: batches that each rank makes of its part of a global batch.
        start: (epoch, global batches): of this epoch, the first so many are left out, for they are done.

    Yields:
        ``(rows, real, scale)``: row numbers, of which the first ``real`` count, and the factor `Data` describes.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        accumulate: int = 1,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        self.lengths = np.asarray(lengths)
        self.global_batch, self.rank, self.world_size = global_batch, rank, world_size
        self.seed, self.accumulate, self.start = seed, accumulate, start
        self.epoch = start[0]  # loader workers fetch before Lightning says which epoch it is

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches per rank of a whole epoch, also of one that is gone on with: Lightning counts from its beginning."""
        return -(-len(self.lengths) // self.global_batch) * self.accumulate

    def batches(self) -> list[np.ndarray]:
        """Row numbers of each global batch of this epoch, in order."""
        size = self.global_batch
        if self.seed is None:
            order = np.argsort(self.lengths, kind="stable")
            return [order[i : i + size] for i in range(0, len(order), size)]
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))
        pools = [order[i : i + size * POOL] for i in range(0, len(order), size * POOL)]
        order = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        return [batches[i] for i in random.permutation(len(batches))]

    def __iter__(self) -> Iterator[tuple[list[int], int, float]]:
        parts = self.world_size * self.accumulate
        done = self.start[1] if self.epoch == self.start[0] else 0
        for batch in self.batches()[done:]:
            each = -(-len(batch) // parts)
            for part in range(self.rank, parts, self.world_size):
                mine = batch[part::parts].tolist()
                yield [*mine, *batch[: each - len(mine)].tolist()], len(mine), parts / len(batch)


class Padded(torch.utils.data.Dataset):
    """Turns what `GlobalBatches` yields into the batch `Data` describes."""

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
            lambda texts, most: [[b + 1 for b in (t.encode("utf-8", "replace") or b" ")[:most]] for t in texts], 0
        )
    from transformers import AutoConfig, AutoTokenizer

    with checkpoint_errors(model_name):  # without False transformers asks standard input whether to run its code
        own = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
        config = AutoConfig.from_pretrained(model_name, trust_remote_code=False)
    positions = getattr(config, "max_position_embeddings", None)
    longest = min(own.model_max_length, positions or own.model_max_length)  # past it the network has no positions
    pad_id = next((i for i in (own.pad_token_id, own.eos_token_id) if i is not None), 0)  # decoders often have no pad
    return Tokenizer(
        lambda texts, most: [
            ids or [pad_id] for ids in own(texts, truncation=True, max_length=min(most, longest))["input_ids"]
        ],
        pad_id,
    )


@contextlib.contextmanager
def checkpoint_errors(model_name: str) -> Iterator[None]:
    """Turn what transformers raises for a checkpoint that cannot be had into one sentence."""
    here = Path(model_name).exists()
    if not here:
        offline_if_unreachable()
    try:
        yield
    except Exception as error:  # the hub, the network and each kind of model have exceptions of their own
        reason = _cause(error) if here else _reason(error)
        raise UserError(
            f"--model_name {model_name!r} could not be loaded: it is not bytecnn, nor a folder that holds a Hugging "
            f"Face checkpoint with its tokenizer, nor a hub name that can be reached from here ({reason})."
        ) from error


def split_rows(labels: Sequence[str], seed: int) -> np.ndarray:
    """Which split each row goes to, (N,): 0 train, 1 validation, 2 test; stratified, a function of labels and seed.

    Rows are shuffled, put in order of label, and every tenth is taken. The first of each label stays in training, so
    that no label is unseen there. (`datasets` refuses to stratify where a label occurs once, and real data has those.)
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    values = np.unique(np.asarray(labels), return_inverse=True)[1][shuffled]
    order = shuffled[np.argsort(values, kind="stable")]
    sorted_values = np.sort(values)
    rest = order[np.flatnonzero(np.r_[False, sorted_values[1:] == sorted_values[:-1]])]
    parts = np.zeros(len(labels), dtype=np.int64)
    parts[rest[0::HOLD_OUT]] = 1
    parts[rest[1::HOLD_OUT]] = 2
    return parts


def _complete(splits: dict[str, Rows], seed: int) -> dict[str, Rows]:
    """Take from the training rows whichever of validation and test is missing."""
    missing = [(part, name) for part, name in ((1, "val"), (2, "test")) if name not in splits]
    if not missing:
        return splits
    texts, labels = splits["train"]
    parts = split_rows(labels, seed)
    for part in {1, 2} - {p for p, _ in missing}:
        parts[parts == part] = 0
    for part, name in [(0, "train"), *missing]:
        rows = np.flatnonzero(parts == part)
        splits[name] = ([texts[i] for i in rows], [labels[i] for i in rows])
    return splits


def _source(dataset: str) -> Any:
    """What is read, as JSON: files with size and time of change, or a name. Raises UserError where there is none."""
    if dataset == "cldr":
        import babel

        return ["cldr", babel.__version__]
    path = Path(dataset).expanduser()
    if dataset == "training":
        channel = os.environ.get("SM_CHANNEL_TRAINING", "")
        if not channel:
            raise UserError(
                "--dataset training reads the job's channel, but SM_CHANNEL_TRAINING is not set; give a path."
            )
        path = Path(channel)
    elif not dataset.strip() or not path.exists():
        if path.suffix in READERS or not re.match(r"[\w-]", dataset) or dataset.count("/") > 1:
            raise UserError(
                f"--dataset {dataset!r}: no such file or folder; give a path, a hub name, training or cldr."
            )
        return ["hub", dataset]
    path = path.absolute()  # not resolved: a link's own name tells what its target holds
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [f for f in files if f.suffix in READERS and f.is_file() and not re.match(NOT_DATA, f.name)]
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
    if not files:
        raise UserError(f"--dataset {dataset!r}: no data file in {path}; expected one of {', '.join(READERS)}.")
    return [str(path), _stamps(files)]


def _stamps(files: Sequence[Path]) -> list[list[Any]]:
    """What changes when one of the files does."""
    return [[str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def _tokenizer_files(model_name: str) -> list[Path]:
    found = Path(model_name).glob("*") if Path(model_name).is_dir() else ()
    return sorted(f for f in found if f.suffix in (".json", ".txt", ".model"))


def _load(dataset: str, source: Any, columns: tuple[str, str], scratch: Path) -> dict[str, Rows]:
    """Texts and labels of each split that the source has."""
    import datasets

    if dataset == "cldr":
        return {"train": cldr()}
    if source[0] == "hub":
        offline_if_unreachable()
        try:
            loaded = datasets.load_dataset(dataset)
        except Exception as error:  # the hub, the network and the builder each have exceptions of their own
            raise UserError(
                f"--dataset {dataset!r} is neither cldr, nor training, nor a path, and could not be loaded from the "
                f"Hugging Face hub ({_reason(error)}); check the name and the network."
            ) from error
        parts = {SPLITS[name]: rows for name, rows in loaded.items() if name in SPLITS}
        if "train" not in parts:
            raise UserError(f"--dataset {dataset!r} has splits {', '.join(loaded)}; expected one named train.")
        return {name: _columns(rows, columns, dataset) for name, rows in parts.items()}

    root, stamps = source
    files: dict[str, list[Path]] = {}
    for path in (Path(f) for f, *_ in stamps):
        below = str(path.relative_to(root).with_suffix("")) if path != Path(root) else ""
        words = [word for word in re.findall("[a-z]+", below.lower()) if word in SPLITS]
        files.setdefault(SPLITS[words[-1]] if words else "train", []).append(path)
    if "train" not in files:
        raise UserError(f"--dataset {dataset!r} has files for {', '.join(files)} only; expected one for training too.")
    splits: dict[str, Rows] = {}
    for split, paths in files.items():
        texts, labels = [], []
        for path in paths:
            reader = READERS[path.suffix]
            try:
                options = _csv_options(path) if reader == "csv" else {}
                rows = datasets.load_dataset(
                    reader, data_files=str(path), split="train", cache_dir=str(scratch / "cache"), **options
                )
            except Exception as error:  # each reader has exceptions of its own, wrapped by datasets
                raise UserError(f"{path} could not be read as {reader}: {_cause(error)}; check the file.") from error
            more = _columns(rows, columns, str(path))
            texts += more[0]
            labels += more[1]
        splits[split] = (texts, labels)
    return splits


def _csv_options(path: Path) -> dict[str, Any]:
    """Every column of a csv file is text: pandas would make 7 of 007, and nothing of NA, which is Namibia."""
    import datasets

    separator = "\t" if path.suffix == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file, delimiter=separator), [])
    features = datasets.Features({name: datasets.Value("string") for name in names})
    return {"sep": separator, "keep_default_na": False, "features": features, "encoding": "utf-8-sig"}


def _columns(rows: Any, wanted: tuple[str, str], where: str) -> Rows:
    """The text and the label column of ``rows``, named or found; class numbers become their names."""
    names = list(rows.column_names)
    found: list[str] = []
    for option, name, known in zip(("text", "label"), wanted, (TEXT_COLUMNS, LABEL_COLUMNS), strict=True):
        candidates = [name] if name else [c for c in names if c.lower() in known]
        if not name and not candidates and len(names) == 2 and len(found) == 1:
            candidates = [c for c in names if c not in found]
        if len(candidates) != 1 or candidates[0] not in names:
            problem = f"several could be the {option}" if len(candidates) > 1 else f"none is the {option}"
            raise UserError(f"{where} has columns {', '.join(names)}: {problem}; name it with --{option}_column.")
        found.append(candidates[0])
    text, label = found
    feature = rows.features[label]
    labels = rows[label][:]
    if hasattr(feature, "int2str"):
        labels = [None if v is None or v < 0 else feature.int2str(v) for v in labels]
    return rows[text][:], labels


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


def _encode(tokenize: Callable, texts: list[str], most: int) -> dict[str, list]:
    ids = tokenize(texts, most)
    return {"input_ids": ids, "length": [len(i) for i in ids]}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json_digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _verified(path: Path) -> bool:
    """Whether a complete copy is at ``path``, to the byte."""
    try:
        meta = json.loads((path / "meta.json").read_text())
        files = meta["files"]
        return meta.pop("digest") == _json_digest(meta) and all(
            _digest(path / name) == digest for name, digest in files.items()
        )
    except (OSError, ValueError, KeyError):
        return False


def offline_if_unreachable() -> None:
    """Where there is no network, let the hub's client look in its cache at once: it would retry for half a minute."""
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    try:
        if not getproxies():
            socket.getaddrinfo(urlsplit(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        import datasets

        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True


def _reason(error: BaseException) -> str:
    """Why the hub gave nothing, in one line."""
    import huggingface_hub

    return "no network, no copy in the cache" if huggingface_hub.constants.HF_HUB_OFFLINE else _cause(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, the innermost last."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _cause(error: BaseException) -> str:
    """The innermost cause, in one line: libraries wrap it in layers that say less."""
    *_, error = _chain(error)
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
