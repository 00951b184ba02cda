"""A Hugging Face checkpoint: fetched once per node, its tokenizer and its network loaded.

No code that a checkpoint brings is run: with nothing said, transformers would ask standard input
whether to run it.
"""

import itertools
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smlightning import hub
from smlightning.errors import UserError

FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # of a checkpoint, none of them code


def fetch(name: str) -> None:
    """Have the checkpoint in the hub's cache, before every rank of the node loads it."""
    if Path(name).exists():
        return
    from huggingface_hub import snapshot_download

    with checkpoint_errors(name):
        snapshot_download(name, allow_patterns=list(FILES))


class PretrainedTokenizer:
    """A checkpoint's own tokenizer, which cuts a text where the checkpoint has no more positions.

    Attributes:
        pad_id: the token that fills up a batch. Decoders often have none; then it is the token
            that ends a text, else 0, for padding is masked.
        longest: the most tokens that the checkpoint takes.

    Raises:
        UserError: there is no such checkpoint, it has no tokenizer, or only one with its own code.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoConfig, AutoTokenizer

        _refuse_without_tokenizer(name)
        with checkpoint_errors(name):
            self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        positions = getattr(config, "max_position_embeddings", None)
        limit = self.tokenizer.model_max_length
        self.longest: int = min(limit, positions or limit)
        self.pad_id = 0
        for token in (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id):
            if token is not None:
                self.pad_id = token

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts, one after the other, and how many each has, at least one."""
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        most = min(max_length, self.longest)
        rows = self.tokenizer(strings, truncation=True, max_length=most)["input_ids"]  # all cores
        rows = [row or [self.pad_id] for row in rows]
        dtype = np.min_scalar_type(len(self.tokenizer))
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        return ids, np.array([len(row) for row in rows])


def tokenizer_files(name: str) -> list[Path]:
    """The files on which a tokenizer depends, where ``name`` is a folder; else none."""
    files = sorted(Path(name).glob("*"))
    return [file for file in files if file.suffix in (".json", ".txt", ".model")]


def _refuse_without_tokenizer(name: str) -> None:
    """transformers would make a tokenizer of five tokens, and all texts of the unknown one."""
    files = " ".join(file.name for file in tokenizer_files(name))
    if Path(name, "config.json").exists() and not re.search("token|vocab|merges|[.]model", files):
        raise UserError(
            f"--model_name {name!r} is a checkpoint without a tokenizer",
            "copy its tokenizer's files (tokenizer.json, tokenizer_config.json, …) into the folder",
        )


def network(auto_class: str, name: str, **config: Any) -> Any:
    """A checkpoint's network in training mode, on the CPU, in float32.

    Within `outline` it has shapes alone: no weights are read.

    Args:
        auto_class: of transformers, e.g. AutoModelForSequenceClassification.
        config: members of its configuration to replace.
    """
    import torch
    import transformers

    from smlightning.outline import builds_outline

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # In configure_model Lightning makes the GPU the default device, which transformers takes for
    # a device map and asks for accelerate.
    with checkpoint_errors(name), torch.device("cpu"):
        kind = getattr(transformers, auto_class)
        if builds_outline():  # rank 0 reads the weights
            shapes = transformers.AutoConfig.from_pretrained(
                name, trust_remote_code=False, **config
            )
            net = kind.from_config(shapes, dtype=torch.float32, trust_remote_code=False)
        else:
            net = kind.from_pretrained(
                name,
                ignore_mismatched_sizes=True,  # a head trained for another task is replaced
                dtype=torch.float32,
                trust_remote_code=False,
                **config,
            )
    if net.config.pad_token_id is None:  # decoders look for the last token that is not padding
        net.config.pad_token_id = PretrainedTokenizer(name).pad_id
    return net.train()  # from_pretrained gives it without dropout, and Lightning leaves that


def save(net: Any, name: str, max_length: int, directory: Path) -> None:
    """Write the network and the tokenizer of the checkpoint ``name``, cut at ``max_length``."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        name, model_max_length=max_length, trust_remote_code=False
    )
    tokenizer.save_pretrained(directory)
    net.save_pretrained(directory)


def checkpoint_errors(name: str) -> AbstractContextManager[Any]:
    """Turn what transformers raises in here for the checkpoint ``name`` into a UserError."""
    problem = (
        f"--model_name {name!r} could not be loaded: it is neither a built-in model, nor a folder "
        "with a Hugging Face checkpoint and its tokenizer, nor the name of one on the hub"
    )
    return hub.errors(problem, local=Path(name).exists())
