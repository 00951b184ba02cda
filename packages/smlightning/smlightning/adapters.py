"""LoRA: small matrices next to a checkpoint's own; only they are trained (Hu et al. 2021).

`peft` adds them. This file adds that a run's checkpoints hold only them; that a saved adapter is a
few files of numbers and names, and loading one imports and executes nothing; and that a loaded
adapter is merged into its base, so that it is a network like any other.

An adapter's folder holds the files of `peft` and transformers, ADAPTER_CONFIG and ADAPTER_WEIGHTS,
and in ADAPTER_BASE the configuration of the network. (Next to them transformers would take it for a
whole network's: transformers 5.17, integrations/peft.py, ``maybe_load_adapters``.)
"""

import copy
import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from smlightning import hub
from smlightning.errors import UserError, root_cause
from smlightning.files import ADAPTER_BASE, ADAPTER_CONFIG, ADAPTER_WEIGHTS, NETWORK_CONFIG
from smlightning.outline import builds_outline
from smlightning.tensors import checksum

ADAPTER = "default"  # peft's name for the only one
SCALE = 2  # what the matrices' product is multiplied by: lora_alpha / rank
TASKS = {  # peft's names for what transformers' classes do
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
}
HEADS = {"classifier", "score"}  # that peft trains of a SEQ_CLS network without being told
BASE_CHECKSUM = "base_checksum"  # in a state_dict: of the weights that are not in it
# Members of an adapter's configuration that are used; some of the others have peft import a module
# (0.21.2: ``megatron_core``, ``auto_mapping``), or change what its weights mean.
MEMBERS = ("r", "lora_alpha", "target_modules", "fan_in_fan_out", "task_type")
IGNORED = {
    "base_model_name_or_path", "inference_mode", "lora_dropout", "modules_to_save", "peft_type",
    "peft_version",
}  # fmt: skip


MERGE = "use an adapter that this package saved, or merge yours into its base with peft"


class AdapterError(UserError):
    """A saved adapter cannot be loaded."""


def add(net: Any, rank: int, auto_class: str, name: str) -> Any:
    """The network with matrices of this rank in its linear layers, and a trained head.

    The layers are those of QLoRA (Dettmers et al. 2023): all but a language model's last. A head
    of another class is trained whole. ``state_dict`` holds only the trained weights;
    ``load_state_dict`` takes such a one, and raises a UserError if the base's weights are others.
    Within `outline` all of it has only shapes.

    Args:
        net: of transformers.
        auto_class: the class of transformers that it was loaded by.
        name: the path or name that it was loaded from; a saved adapter holds it.

    Raises:
        UserError: there is no peft, or no linear layer.
    """
    peft = _peft()
    base = Path(name)
    net.name_or_path = str(base.resolve()) if base.exists() else name
    task = TASKS.get(auto_class)
    heads = [] if task == "CAUSAL_LM" else list(_heads(net))
    targets = list(_linear_layers(net, heads))
    if not targets:
        raise UserError(
            f"--lora_rank: {name!r} has no linear layers",
            "omit --lora_rank, or choose another --model_name",
        )
    turned = any(type(net.get_submodule(target)).__name__ == "Conv1D" for target in targets)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=SCALE * rank,
        target_modules=targets,
        modules_to_save=_heads_to_name(heads, task),
        fan_in_fan_out=turned,  # of a Conv1D, as GPT-2's
        task_type=task,
    )
    net = _with_adapter(peft, net, config)
    frozen = [] if builds_outline() else _frozen(net, duplicates=False)
    net.base_checksum = _checksum_of(parameter for _, parameter in frozen)
    net.register_state_dict_post_hook(_leave_out_base)
    net.register_load_state_dict_pre_hook(_check_base_of_checkpoint)
    net.register_load_state_dict_post_hook(_miss_no_base)
    return net


def has(net: Any) -> bool:
    """Whether :func:`add` has given this network an adapter."""
    return hasattr(net, BASE_CHECKSUM)


def shrink_base(net: Any, trainer: Any) -> None:
    """Keep an adapter's frozen linear layers in bfloat16 if training computes in bf16-mixed.

    Autocast would make bfloat16 copies of their weights: this takes half the memory and gives the
    same bits. Frozen norms and embeddings compute in float32. FSDP needs one type in a block, and
    sends bfloat16 itself.
    """
    from pytorch_lightning.strategies import ModelParallelStrategy

    if not has(net) or trainer.precision != "bf16-mixed":
        return
    if not isinstance(trainer.strategy, ModelParallelStrategy):
        for _, parameter in _of_linear_layers(net):
            parameter.data = parameter.data.bfloat16()


def _of_linear_layers(net: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and values of frozen parameters that only linear layers use."""
    from transformers.pytorch_utils import Conv1D

    of_others = {
        parameter
        for module in net.modules()
        if not isinstance(module, torch.nn.Linear | Conv1D)
        for parameter in module.parameters(recurse=False)
    }
    for name, parameter in _frozen(net, duplicates=False):
        if parameter not in of_others:
            yield name, parameter


def save(net: Any, directory: Path) -> None:
    """Write the adapter and the configuration of its network into an empty folder."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # save_embedding_layers: else peft asks the hub for the base's configuration.
    weights = get_peft_model_state_dict(net, save_embedding_layers=False)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    config = copy.copy(net.peft_config[ADAPTER])
    config.inference_mode = True
    content = json.dumps(config.to_dict(), indent=1, sort_keys=True, default=sorted)  # of sets
    net.config.save_pretrained(directory / ADAPTER_BASE)
    metadata = {"format": "pt"}
    if net.base_checksum:
        metadata[BASE_CHECKSUM] = str(net.base_checksum)
    save_file(weights, directory / ADAPTER_WEIGHTS, metadata=metadata)
    (directory / ADAPTER_CONFIG).write_text(content, encoding="utf-8")


def merge(net: Any) -> Any:
    """The base with the adapter added to its weights: the network that transformers made.

    Weights that `shrink_base` has rounded are read again.

    Raises:
        AdapterError: the base cannot be read again, or has other weights by now.
    """
    rounded = {name: p for name, p in _of_linear_layers(net) if p.dtype == torch.bfloat16}
    if rounded:
        exact = _read_again(net, rounded)
        base = (exact.get(name, p) for name, p in _frozen(net, duplicates=False))
        if net.base_checksum and _checksum_of(base) != net.base_checksum:
            problem = f"the weights of {net.name_or_path!r} have changed since training began"
            raise AdapterError(problem, "restore the old weights")
        for name, parameter in rounded.items():
            parameter.data = exact[name].to(parameter.device)
    return net.merge_and_unload()


def _read_again(net: Any, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """These parameters in float32, from where the base was loaded.

    Raises:
        AdapterError: it cannot be read.
    """
    kind = type(net.get_base_model())
    try:
        local = Path(net.name_or_path).exists()
        with hub.reachable_or_cached(local), torch.device("cpu"):
            base = kind.from_pretrained(
                net.name_or_path,
                config=net.config,
                ignore_mismatched_sizes=True,  # the head, which is trained
                dtype=torch.float32,
                trust_remote_code=False,
                use_safetensors=True,
            )
        return {
            name: base.get_parameter(
                name.removeprefix("base_model.model.").replace(".base_layer.", ".")
            ).data
            for name in names
        }
    except Exception as error:  # of transformers, of the hub, or of a damaged file
        problem = f"{net.name_or_path!r} cannot be read again ({root_cause(error)})"
        raise AdapterError(problem, "restore it") from None


# Loading


def folder_of(name: str) -> Path | None:
    """The folder of the adapter ``name``, a path or a fetched name; None if it is no adapter.

    Raises:
        AdapterError: it holds a whole network as well: transformers would add the adapter to that
            without a check of its configuration.
    """
    folder = Path(name)
    if not folder.exists():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(name, ADAPTER_CONFIG)
        except HFValidationError:
            return None
        if not isinstance(cached, str):
            return None
        folder = Path(cached).parent
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    if (folder / NETWORK_CONFIG).exists():
        raise AdapterError(
            f"{folder} holds both a whole network ({NETWORK_CONFIG}) and an adapter "
            f"({ADAPTER_CONFIG})",
            "move one of them to another folder",
        )
    return folder


def network_folder(folder: Path) -> str:
    """The folder with the configuration of an adapter's network: its own, else its base's."""
    own = folder / ADAPTER_BASE
    return str(own) if own.is_dir() else base_of(folder)


def base_of(folder: Path) -> str:
    """The checkpoint that an adapter was trained on: a folder, or a name on the hub.

    Raises:
        AdapterError: it is neither, or is an adapter itself.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name: str = _read_config(folder)["base_model_name_or_path"]
    cure = "restore the folder, or train with --merge true, which saves the whole model"
    if not Path(name).is_dir():
        try:
            validate_repo_id(name)
        except HFValidationError:
            problem = f"The base of the adapter in {folder}, {name!r}, is not on this machine"
            raise AdapterError(problem, cure) from None
    if folder_of(name):
        raise AdapterError(f"The base of the adapter in {folder}, {name!r}, is an adapter", cure)
    return name


def merged(net: Any, folder: Path) -> Any:
    """The base ``net`` with the adapter in ``folder`` merged into it.

    Raises:
        AdapterError: its configuration is not of plain LoRA, its weights do not fit this base, or
            the base has changed since.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    peft = _peft()
    net = _with_adapter(peft, net, _lora_config(peft, folder))
    weights = load_file(folder / ADAPTER_WEIGHTS)
    expected = get_peft_model_state_dict(net, save_embedding_layers=False)
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if differing:
        raise AdapterError(
            f"The adapter in {folder} does not fit this base and number of labels ({differing[0]}: "
            f"{there.get(differing[0], 'absent')} in the adapter, "
            f"{here.get(differing[0], 'absent')} in the base)",
            "restore the base and the data that it was trained on, or train another adapter with "
            f"--model_name {base_of(folder)}",
        )
    _check_base(net, folder)
    set_peft_model_state_dict(net, weights)
    return merge(net)


def _check_base(net: Any, folder: Path) -> None:
    """Compare the base's weights with those that the adapter was trained on, if it says so."""
    from safetensors import safe_open

    with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
        trained_on = (file.metadata() or {}).get(BASE_CHECKSUM)
    if trained_on is None or builds_outline():
        return
    base = [
        parameter
        for name, parameter in net.named_parameters()
        if not any(part in name for part in (".lora_", ".modules_to_save.", ".original_module."))
    ]
    if trained_on != str(_checksum_of(base)):
        raise AdapterError(
            f"The weights in {base_of(folder)!r} have changed since the adapter in {folder} was "
            "trained",
            "restore the old weights, or train the adapter again",
        )


def _read_config(folder: Path) -> dict[str, Any]:
    """An adapter's configuration, of LoRA for a list of layers.

    Raises:
        AdapterError: it is of another kind, or cannot be read.
    """
    path = folder / ADAPTER_CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        is_lora = config["peft_type"] == "LORA" and isinstance(config["target_modules"], list)
        is_usable = is_lora and isinstance(config["base_model_name_or_path"], str)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{path} could not be read ({root_cause(error)})"
        raise AdapterError(problem, "copy the adapter's folder again") from None
    if not is_usable:  # a text would be a pattern
        raise AdapterError(f"{path} is not LoRA for a list of layers, or has no base", MERGE)
    return config


def _lora_config(peft: Any, folder: Path) -> Any:
    """The adapter's configuration as peft's; its other members must have peft's defaults."""
    config = _read_config(folder)
    heads = config.get("modules_to_save") or []
    readable = peft.LoraConfig(
        **{name: config[name] for name in MEMBERS if name in config},
        modules_to_save=_heads_to_name(heads, config.get("task_type")),
        inference_mode=True,
    )
    defaults = json.loads(json.dumps(readable.to_dict(), default=sorted))
    unknown = [
        name for name in config.keys() - IGNORED if config[name] not in (None, defaults.get(name))
    ]
    if unknown:
        raise AdapterError(
            f"{folder / ADAPTER_CONFIG} sets {', '.join(sorted(unknown))}, which this package does "
            "not support",
            MERGE,
        )
    return readable


def _with_adapter(peft: Any, net: Any, config: Any) -> Any:
    with warnings.catch_warnings():
        # peft warns that it corrects fan_in_fan_out, which it does for each kind of layer.
        warnings.filterwarnings("ignore", module="peft")
        return peft.get_peft_model(net, config)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise UserError(
            f"LoRA needs peft, which is not installed ({error})",
            "run make setup",
        ) from None
    return peft


# Its layers


def _heads(net: Any) -> Iterator[str]:
    """The modules that a task adds to the body of a transformers network."""
    for name, child in net.named_children():
        if child is not net.base_model and any(True for _ in child.parameters()):
            yield name


def _heads_to_name(heads: list[str], task: str | None) -> list[str] | None:
    """Heads that peft trains whole only if they are listed."""
    known = HEADS if task == "SEQ_CLS" else set()
    return sorted(set(heads) - known) or None


def _linear_layers(net: Any, heads: list[str]) -> Iterator[str]:
    """Names of the layers that get matrices."""
    from transformers.pytorch_utils import Conv1D

    last = net.get_output_embeddings()
    for name, module in net.named_modules():
        in_head = name.partition(".")[0] in heads
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not last and not in_head:
            yield name


def _frozen(net: Any, duplicates: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """The base's weights, without the head that a trained copy replaces."""
    for name, parameter in net.named_parameters(remove_duplicate=not duplicates):
        if not parameter.requires_grad and (duplicates or ".original_module." not in name):
            yield name, parameter


def _checksum_of(parameters: Iterable[torch.Tensor]) -> int:
    return sum(checksum(parameter) for parameter in parameters) % 2**61


# Hooks of the network's state_dict. They are functions of this module, so that a copy of the
# network has them, too.


def _leave_out_base(net: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name, _parameter in _frozen(net):
        state.pop(prefix + name, None)
    state[prefix + BASE_CHECKSUM] = torch.tensor(net.base_checksum)


def _check_base_of_checkpoint(net: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    saved = state.pop(prefix + BASE_CHECKSUM, None)
    known = net.base_checksum  # 0 of an outline: rank 0 has the weights, and compares
    if saved is not None and known and int(saved) != known:
        raise UserError(
            f"The weights of {net.name_or_path!r} have changed since the checkpoint was written",
            "restore the old weights, or train from the start with --resume never",
        )


def _miss_no_base(net: Any, keys: Any) -> None:
    frozen = tuple(f".{name}" for name, _parameter in _frozen(net))
    # A missing key may have a prefix, which ends with a dot.
    keys.missing_keys[:] = [key for key in keys.missing_keys if not f".{key}".endswith(frozen)]
