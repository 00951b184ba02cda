"""Hugging Face checkpoints: fetch once per node, load tokenizer and network; save and load models.

No code of a checkpoint runs: by default transformers would ask standard input whether to run it.
"""

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from smlightning import hub
from smlightning.errors import UserError, is_disk_full, root_cause
from smlightning.files import replace_model

# Arguments of ``from_pretrained``: never code or a pickle of a checkpoint.
SAFE: dict[str, Any] = {
    "dtype": torch.float32,
    "trust_remote_code": False,
    "use_safetensors": True,
}
# Files of a checkpoint to download, without code. transformers renders a chat template in Jinja's
# sandbox (utils/chat_template_utils.py, ``ImmutableSandboxedEnvironment``).
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def fetch(name: str) -> None:
    """Download a checkpoint before every rank of the node loads it."""
    if Path(name).exists():
        return
    from huggingface_hub import snapshot_download

    with checkpoint_errors(name):
        snapshot_download(name, allow_patterns=list(FILES))


class PretrainedTokenizer:
    """A checkpoint's own tokenizer; it cuts a text at the checkpoint's last position.

    Attributes:
        pad_id: the token that pads shorter texts. Decoders often have none: then the token that
            ends a text, or 0, since padding is masked.
        positions: positions of its network; 0 if unknown.
        longest: the checkpoint's maximum number of tokens.

    Raises:
        UserError: there is no such checkpoint, or it has no tokenizer that works without its code.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoConfig, AutoTokenizer

        _check_tokenizer(name)
        with checkpoint_errors(name):
            self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        self.positions: int = getattr(config, "max_position_embeddings", None) or 0
        limit = self.tokenizer.model_max_length
        self.longest: int = min(limit, self.positions or limit)
        self.pad_id = 0
        for token in (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id):
            if token is not None:
                self.pad_id = token

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts in one array, and the number for each text, at least one."""
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        most = min(max_length, self.longest)
        rows = self.tokenizer(strings, truncation=True, max_length=most)["input_ids"]  # all cores
        rows = [row or [self.pad_id] for row in rows]
        dtype = np.min_scalar_type(len(self.tokenizer))
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        return ids, np.array([len(row) for row in rows])


def tokenizer_files(name: str) -> list[Path]:
    """The files on which a tokenizer depends, if ``name`` is a folder."""
    files = sorted(Path(name).glob("*"))
    return [file for file in files if file.suffix in (".json", ".txt", ".model", ".jinja")]


def _check_tokenizer(name: str) -> None:
    """Reject a folder without a tokenizer: transformers would build one with five tokens."""
    files = " ".join(file.name for file in tokenizer_files(name))
    if Path(name, "config.json").exists() and not re.search("token|vocab|merges|[.]model", files):
        raise UserError(
            f"--model_name {name!r} is a checkpoint without a tokenizer",
            "copy its tokenizer's files (tokenizer.json, tokenizer_config.json, …) into the folder",
        )


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """Around ``from_pretrained`` of the checkpoint ``name``: quietly, into main memory.

    In ``configure_model``, Lightning makes the GPU the default device. transformers would take that
    for a device map, which requires accelerate.

    Raises:
        UserError: there is no such checkpoint, it needs its own code, or it has an adapter.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with checkpoint_errors(name), torch.device("cpu"):
        check_no_adapter(name)
        yield


def check_no_adapter(name: str) -> None:
    """Reject a checkpoint with a peft adapter, which transformers loads if peft is installed.

    An adapter's configuration may have peft import a module (0.21.2: ``megatron_core``).
    """
    from huggingface_hub import try_to_load_from_cache

    config = "adapter_config.json"
    if Path(name).exists():
        has_one = Path(name, config).exists()
    else:
        has_one = isinstance(try_to_load_from_cache(name, config), str)
    if has_one:
        raise UserError(
            f"--model_name {name!r} is an adapter of peft, or has one",
            "merge it into its base with peft, and use the merged model",
        )


def label_names(labels: list[str]) -> dict[str, Any]:
    """The members of a classifier's configuration for these labels."""
    numbers = {label: number for number, label in enumerate(labels)}
    return {"num_labels": len(labels), "id2label": dict(enumerate(labels)), "label2id": numbers}


def saved_config(directory: Path) -> dict[str, Any]:
    """A saved model's config.json.

    Raises:
        OSError, ValueError: it is missing, or not JSON.
    """
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return config


def save(net: Any, name: str, max_length: int, directory: Path) -> None:
    """Write the network and the tokenizer of the checkpoint ``name``, cut at ``max_length``."""
    from transformers import AutoTokenizer

    weights = net.state_dict()
    names = {plain_name(name): name for name in weights}
    compiled = (
        {} if {*names} == {*weights} else {"state_dict": {n: weights[names[n]] for n in names}}
    )
    with replace_model(directory) as new:
        try:
            _check_tokenizer(name)
            with hub.reachable_or_cached(local=Path(name).exists()):
                tokenizer = AutoTokenizer.from_pretrained(
                    name, model_max_length=max_length, trust_remote_code=False
                )
            tokenizer.save_pretrained(new)
        except Exception as error:  # save the weights even without the tokenizer's files
            if is_disk_full(error):
                raise
            reason = f"the tokenizer of {name!r} cannot be saved ({root_cause(error)})"
            print(f"warning: {reason}; copy its files next to the model's", file=sys.stderr)
        net.save_pretrained(new, **compiled)


def checkpoint_errors(name: str) -> AbstractContextManager[Any]:
    """Turn an error of transformers with the checkpoint ``name`` into a UserError."""
    problem = (
        f"--model_name {name!r} could not be loaded: expected a built-in model, a folder with a "
        "Hugging Face checkpoint and its tokenizer, or the name of a checkpoint on the hub"
    )
    return hub.errors(problem, local=Path(name).exists())


def save_own(net: Any, config: dict[str, Any], directory: Path) -> None:
    """Write the project's own network: weights as safetensors, and config.json; no code.

    Tensors may share memory, or have any strides. One that has several names is written once, and
    the file's metadata has its other names, as ``safetensors.torch.save_model`` writes them (0.8.0
    rejects parts of a storage, and writes conjugate views wrongly). A name lacks what torch.compile
    adds to it.

    Args:
        config: plain values, which JSON has.

    Raises:
        UserError: a tensor or a value of ``config`` has a form that the files do not have.
    """
    from safetensors.torch import save_file

    try:
        content = json.dumps(config, ensure_ascii=False, indent=1)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"config.json: {root_cause(error)}; save_own takes texts, numbers, booleans, None, "
            "lists and dictionaries",
            "convert the value where Model.save builds the dictionary",
        ) from error
    weights, names = _stored(net.state_dict())
    with replace_model(directory) as new:
        try:
            save_file(weights, new / "model.safetensors", metadata=names)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise _unstorable(f"the network ({type(error).__name__}: {error})") from error
        (new / "config.json").write_text(content, encoding="utf-8")


def _stored(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors to write, each memory once; and for each further name of one, its first name."""
    weights: dict[str, torch.Tensor] = {}
    names: dict[str, str] = {}
    first: dict[Any, str] = {}  # names by place in memory
    storages: set[int] = set()
    for compiled, tensor in state.items():
        name = plain_name(compiled)
        _check_storable(name, tensor)
        value = tensor.detach().resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        place = (storage.data_ptr(), value.storage_offset(), value.dtype, value.shape)
        kept = first.setdefault((*place, value.stride()), name) if value.numel() else name
        if kept != name:
            names[name] = kept
            continue
        whole = value.contiguous()
        own = whole.untyped_storage()
        if own.data_ptr() in storages or own.nbytes() != whole.nbytes:
            whole = whole.clone()
        storages.add(own.data_ptr())
        weights[name] = whole
    return weights, names


def _check_storable(name: str, value: Any) -> None:
    """Raise a UserError for what safetensors does not hold, or cannot read back."""
    kinds = {
        f"is a {type(value).__name__}": not isinstance(value, torch.Tensor),
        "is on the meta device, without values": getattr(value, "is_meta", False),
        "is quantised": getattr(value, "is_quantized", False),
        "is sparse": getattr(value, "layout", torch.strided) != torch.strided,
        "is nested": getattr(value, "is_nested", False),
        "has a name of its own": name == "__metadata__",
    }
    for kind, found in kinds.items():
        if found:
            raise _unstorable(f"{name} of the network, which {kind}")


def _unstorable(what: str) -> UserError:
    return UserError(
        f"safetensors cannot hold {what}; expected plain tensors with values",
        "save the network as it was before it was converted, leave the entry out of the state_dict "
        "(register_buffer(..., persistent=False)), or use torch.save in Model.save",
    )


def plain_name(name: str) -> str:
    """A parameter's name without the prefix of modules that torch.compile has wrapped."""
    return re.sub(r"(^|\.)_orig_mod\.", r"\1", name)


def load_own(net: Any, directory: Path) -> None:
    """Load the weights that :func:`save_own` wrote into the project's own network.

    Parameters that were one when they were saved are one afterwards.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    path = directory / "model.safetensors"
    with safe_open(path, "pt") as file:
        names = file.metadata() or {}
    weights = {plain_name(name): value for name, value in load_file(path).items()}
    names = {name: first for name, first in names.items() if first in weights}
    weights |= {name: weights[first] for name, first in names.items()}
    own = {plain_name(name): name for name in net.state_dict()}
    net.load_state_dict({own.get(name, name): value for name, value in weights.items()})
    parameters = dict(net.named_parameters(remove_duplicate=False))
    for name, first in names.items():
        parent, _, last = own[name].rpartition(".")
        if own[name] in parameters and own[first] in parameters:
            setattr(net.get_submodule(parent), last, parameters[own[first]])


@contextlib.contextmanager
def model_errors(directory: Path) -> Iterator[None]:
    """Turn errors of reading a saved model into a UserError."""
    try:
        yield
    except Exception as error:  # safetensors, transformers and json have exceptions of their own
        reason = f"{type(error).__name__}: {root_cause(error)}"
        inside = directory / "model"  # of an output folder
        hint = "train first, or use the folder of a trained model"
        raise UserError(
            f"{directory} has no trained model ({reason}); expected config.json and "
            "model.safetensors as training writes them",
            f"use {inside}, which has one" if (inside / "config.json").is_file() else hint,
        ) from error
