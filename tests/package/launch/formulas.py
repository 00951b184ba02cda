"""Sizes of a Hugging Face model by formula, which check what `smlightning estimate` counts.

Parameters are the sums of the layers' shapes. Activations are counted as Korthikanti et al. 2022
(*Reducing Activation Recomputation in Large Transformer Models*, section 4.1) count them: what
each operation keeps for its backward pass. Theirs are fused GPT layers in 16 bits, 34 bytes per
token and width plus 5 · heads · length; here it is what torch keeps of transformers' own layers,
whose GELU and RMSNorm are several operations. Attention is a fused kernel's, which keeps query,
key, value and output (Dao et al. 2022, *FlashAttention*), unless ``fused`` is False.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smlightning.launch.estimate.sizes import BYTES, STATES, Linear, Sizes, pinned_share


@dataclass(frozen=True)
class Shape:
    """A transformer's shape, as its configuration tells it."""

    family: str  # gpt2, bert or llama
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int  # of the feed-forward network
    positions: int  # learned ones
    kinds: int  # of tokens, as BERT has them
    tied: bool  # the output layer is the embedding
    qkv_bias: bool
    dropout: float  # after embeddings, attention and feed-forward network
    attention_dropout: float

    @property
    def queries(self) -> int:
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_width


FAMILIES = {
    "gpt2": "gpt2",
    "bert": "bert",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
}


def shape(config: Mapping[str, Any]) -> Shape | None:
    """The shape in a checkpoint's config.json; None for a family without formulas here.

    Where a member is missing, it is transformers' default of that family.
    """
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    try:
        return _shape(family, config)
    except (KeyError, TypeError, ValueError):
        return None


def _shape(family: str, config: Mapping[str, Any]) -> Shape:
    if family == "gpt2":
        width, heads = int(config["n_embd"]), int(config["n_head"])
        return Shape(
            family=family,
            vocabulary=int(config["vocab_size"]),
            width=width,
            layers=int(config["n_layer"]),
            heads=heads,
            kv_heads=heads,
            head_width=width // heads,
            inner=int(config.get("n_inner") or 4 * width),
            positions=int(config.get("n_positions", 1024)),
            kinds=0,
            tied=bool(config.get("tie_word_embeddings", True)),
            qkv_bias=True,
            dropout=float(config.get("resid_pdrop", 0.1)),
            attention_dropout=float(config.get("attn_pdrop", 0.1)),
        )
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    is_bert = family == "bert"
    return Shape(
        family=family,
        vocabulary=int(config["vocab_size"]),
        width=width,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=heads if is_bert else int(config.get("num_key_value_heads") or heads),
        head_width=int(config.get("head_dim") or width // heads),
        inner=int(config["intermediate_size"]),
        positions=int(config.get("max_position_embeddings", 512)) if is_bert else 0,
        kinds=int(config.get("type_vocab_size", 2)) if is_bert else 0,
        tied=bool(config.get("tie_word_embeddings", is_bert)),
        qkv_bias=is_bert or config.get("model_type") == "qwen2",
        dropout=float(config.get("hidden_dropout_prob", 0.1)) if is_bert else 0.0,
        attention_dropout=float(
            config.get("attention_probs_dropout_prob", 0.1)
            if is_bert
            else config.get("attention_dropout", 0.0)
        ),
    )


@dataclass(frozen=True)
class Use:
    """How the model is trained, as far as a sample's bytes depend on it."""

    length: int  # tokens of a sample
    labels: int = 0  # of a classifier; 0: the next token is predicted
    mixed: bool = False  # autocast to 16 bits
    checkpointing: bool = False  # each layer's activations are computed again
    lora_rank: int = 0  # adapters of this rank in all of the layers' matrices; 0: none
    fused: bool = True  # attention by a fused kernel, as on a GPU
    mask_bytes: int = 1  # of dropout's mask, per number; torch's on a CPU has 4


def sizes(shape: Shape, use: Use) -> Sizes:
    """A whole model, and one of its training steps."""
    layer = layer_parameters(shape)
    root = root_parameters(shape, use.labels)
    whole = root + shape.layers * layer
    adapters = shape.layers * adapter_parameters(shape, use.lora_rank)
    if shape.family == "bert":
        adapters += use.lora_rank * 2 * shape.width  # of the pooler
    biases = use.labels if shape.family == "bert" else 0
    head = shape.width * use.labels + biases if use.lora_rank else 0  # a new head is trained, too
    trainable = adapters + head if use.lora_rank else whole
    parameters = whole + adapters
    state = STATES * BYTES * trainable
    # A checkpoint holds a weight that has two names twice.
    twice = 0 if use.labels or not shape.tied else shape.vocabulary * shape.width
    saved = trainable if use.lora_rank else parameters + twice
    return Sizes(
        parameters=parameters,
        trainable=trainable,
        parameter_bytes=BYTES * parameters,
        gradient_bytes=BYTES * trainable,
        optimizer_bytes=state,
        buffer_bytes=0,
        checkpoint_bytes=BYTES * saved + state,
        root_bytes=BYTES * root,
        block_bytes=BYTES * (layer + adapter_parameters(shape, use.lora_rank)),
        activations=activations(shape, use),
        temporary=temporary(shape, use),
        pinned=pinned_share(saved_matrices(shape, use)),
        pinned_below_2_13=pinned_share(saved_matrices(shape, use), math.inf),
    )


def saved_matrices(shape: Shape, use: Use) -> list[int]:
    """Bytes of each matrix in a checkpoint; vectors are few."""
    if use.lora_rank:
        of_layer = [use.lora_rank * side for both in matrices(shape) for side in both]
        return [BYTES * numbers for numbers in of_layer] * shape.layers
    of_layer = [inputs * outputs for inputs, outputs in matrices(shape)]
    rows = [shape.vocabulary, shape.positions, shape.kinds]
    if not use.labels:
        rows.append(shape.vocabulary)  # the output layer, by its own name where it is tied, too
    of_root = [number * shape.width for number in rows if number]
    return [BYTES * numbers for numbers in of_layer * shape.layers + of_root]


def matrices(shape: Shape) -> list[tuple[int, int]]:
    """Inputs and outputs of a layer's matrices."""
    width, inner = shape.width, shape.inner
    shapes = [(width, shape.queries), (width, shape.keys), (width, shape.keys)]
    shapes += [(shape.queries, width), (width, inner), (inner, width)]
    if shape.family == "llama":
        shapes.append((width, inner))  # the gate
    return shapes


def layer_parameters(shape: Shape) -> int:
    """Numbers in one layer."""
    weights = sum(inputs * outputs for inputs, outputs in matrices(shape))
    if shape.family == "llama":
        biases = (shape.queries + 2 * shape.keys) if shape.qkv_bias else 0
        return weights + biases + 2 * shape.width
    biases = sum(outputs for _, outputs in matrices(shape))
    return weights + biases + 4 * shape.width


def root_parameters(shape: Shape, labels: int = 0) -> int:
    """Numbers outside of the layers: embeddings, their norm, the output layer."""
    width = shape.width
    embeddings = (shape.vocabulary + shape.positions + shape.kinds) * width
    if shape.family == "bert":
        embeddings += 2 * width
        if labels:
            return embeddings + width * width + width + labels * width + labels
        return embeddings + width * width + 3 * width + shape.vocabulary
    norm = width if shape.family == "llama" else 2 * width
    if labels:
        return embeddings + norm + labels * width
    return embeddings + norm + (0 if shape.tied else shape.vocabulary * width)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Numbers of a layer's LoRA adapters: rank · (inputs + outputs) for each matrix (Hu et al.
    2021, section 4.1). GPT-2 has queries, keys and values in one.
    """
    together = 2 * shape.width if shape.family == "gpt2" else 0
    return rank * (sum(inputs + outputs for inputs, outputs in matrices(shape)) - together)


def layer_activations(shape: Shape, use: Use) -> int:
    """Bytes that one layer keeps per token.

    The stream of residuals is float32; inputs of matrices are 16 bits under autocast, which casts
    them.
    """
    narrow = 2 if use.mixed else BYTES
    width, inner, queries = shape.width, shape.inner, shape.queries
    stream = 2 * width * BYTES  # the input of each norm
    normed = 2 * width * narrow  # its output, the input of the next matrices
    if shape.family == "llama":
        stream += 2 * width * BYTES  # RMSNorm keeps the normed numbers before their scale, too
        forward = 4 * inner * narrow  # gate, SiLU of it, the other half, their product
    elif shape.family == "gpt2":
        forward = 5 * inner * narrow  # its GELU is made of several operations
    else:
        forward = 2 * inner * narrow
    # Heads of keys and values are repeated for each head of queries.
    attention = 4 * queries * narrow
    dropout = 2 * width * use.mask_bytes if shape.dropout else 0
    kept = stream + normed + forward + attention + dropout + attention_scores(shape, use)
    if use.lora_rank:
        # Inputs of matrices are kept all the same, for gradients of the adapters; what is between
        # the two matrices of an adapter is added.
        kept += use.lora_rank * len(matrices(shape)) * narrow
    return kept


def attention_scores(shape: Shape, use: Use) -> int:
    """Bytes per token and layer of the attention's own: a number per head in a fused kernel, else
    the scores after their softmax, and with dropout mask and product.
    """
    if use.fused:
        return shape.heads * BYTES
    narrow = 2 if use.mixed else BYTES
    copies = 3 if shape.attention_dropout else 1
    return copies * shape.heads * use.length * narrow


def activations(shape: Shape, use: Use) -> Linear:
    """Bytes that the forward pass keeps."""
    narrow = 2 if use.mixed else BYTES
    layer = layer_activations(shape, use)
    if use.checkpointing:
        layer = shape.width * BYTES  # its input alone
    token = shape.layers * layer
    token += shape.width * use.mask_bytes if shape.dropout else 0
    token += 8  # its number, for the embedding
    if shape.family == "bert":
        token += shape.width * BYTES  # the norm of the embeddings
    else:
        token += shape.width * (BYTES + narrow)  # the last norm
    sample = token * use.length
    if not use.labels:
        sample += shape.vocabulary * BYTES * use.length  # the loss keeps log-probabilities
    copies = 0
    if use.mixed:
        # Lightning's autocast keeps no copy of its own (cache_enabled=False in its MixedPrecision),
        # so that those of layers which are computed again are not there.
        layers = 0 if use.checkpointing else shape.layers
        weights = layers * sum(a * b for a, b in matrices(shape))
        head = 0 if use.labels else shape.vocabulary * shape.width
        copies = 2 * (weights + head)
    return Linear(copies, sample)


def temporary(shape: Shape, use: Use) -> Linear:
    """Bytes beside the activations at the step's peak, which is where the backward pass begins: the
    gradients of loss and logits, or of a layer's widest matrix; with checkpointing a layer's
    activations, too.
    """
    narrow = 2 if use.mixed else BYTES
    widest = 2 * max(shape.inner, shape.width) * narrow
    logits = 0 if use.labels else shape.vocabulary * (2 * BYTES + (narrow if use.mixed else 0))
    again = layer_activations(shape, use) + widest if use.checkpointing else 0
    return Linear(0, max(widest, logits, again) * use.length)
