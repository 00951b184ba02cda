"""The model: a byte-level transformer, or any Hugging Face causal language model; AdamW.

To train something else, replace this file: docs/data_and_model.md.
"""

import math
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from smlightning import pretrained
from smlightning.adapters import shrink_base
from smlightning.attention import document_mask
from smlightning.training.compiling import compile_network
from smlightning.training.losses import token_losses
from smlightning.training.metrics import WeightedMean
from smlightning.training.optimizers import adamw_with_cosine
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from data import NO_LABEL, tokens_of
from options import Options

CAUSAL = "AutoModelForCausalLM"  # of transformers
BYTES = 257  # UTF-8 bytes plus one, and the start of a document


class Block(nn.Module):
    """Attention and a feed-forward network, each after a LayerNorm (Xiong et al. 2020)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleDict({"attend": nn.LayerNorm(width), "widen": nn.LayerNorm(width)})
        # Without biases: a key's bias has no effect, and training would only move it by rounding.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, cache: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """(B, L, width) and which token sees which, as of `document_mask` → (B, L, width).

        ``cache`` holds the keys and values of the tokens before ``x``; those of ``x`` are added.
        """
        heads = self.qkv(self.norms["attend"](x)).unflatten(2, (3, self.heads, -1))
        heads = heads.permute(2, 0, 3, 1, 4)
        query, known = heads[0], heads[1:]
        if cache is not None:
            known = torch.cat([*cache, known], 3)
            cache[:] = [known]
        seen = F.scaled_dot_product_attention(query, known[0], known[1], mask)
        x = x + self._drop(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self._drop(self.narrow(F.gelu(self.widen(self.norms["widen"](x)))))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training)


class ByteTransformer(nn.Module):
    """A transformer over bytes (Vaswani et al. 2017; Radford et al. 2019).

    Adds to each byte's embedding those of the n-grams that end at it, hashed into buckets
    (Bojanowski et al. 2017): they learn much of what a larger network learns. A byte sees only its
    own document.
    """

    def __init__(
        self,
        width: int = 96,
        layers: int = 3,
        heads: int = 4,
        dropout: float = 0.0,
        max_length: int = 256,
        buckets: int = 65521,  # a prime
        longest_gram: int = 6,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = dict(
            width=width, layers=layers, heads=heads, dropout=dropout, max_length=max_length,
            buckets=buckets, longest_gram=longest_gram,
        )  # fmt: skip
        self.checkpointing = False
        self.embed = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(max_length, width)
        self.grams = nn.EmbeddingBag(buckets + 1, width, mode="sum", padding_idx=0)
        for embedding in (self.embed, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        nn.init.zeros_(self.grams.weight)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.predict = nn.Linear(width, BYTES, bias=False)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and their numbers in their document → (B, L, 257) logits of what follows."""
        x = self._embedded(input_ids, position_ids)
        mask = document_mask(position_ids, x)
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.predict(self.norm(x))

    def following(self, ids: list[int], cache: list[list[torch.Tensor]]) -> torch.Tensor:
        """(257,) logits of what follows ``ids``, the last `max_length` of a document.

        ``cache`` is an empty list at first; later calls pass it again. Once the window moves, all
        places change, and everything is computed again.
        """
        seen = cache[0][0].shape[3] if cache else 0
        if len(ids) > self.config["max_length"]:
            ids, seen = ids[-self.config["max_length"] :], 0
        if not seen:
            cache[:] = [[] for _ in self.blocks]
        window = torch.tensor([ids], device=self.embed.weight.device)
        places = torch.arange(len(ids), device=window.device)[None]
        start = max(0, seen - self.config["longest_gram"] + 1)  # of the first new token's n-grams
        x = self._embedded(window[:, start:], places[:, start:])[:, seen - start :]
        mask = document_mask(places, x)[:, :, seen:]
        for block, known in zip(self.blocks, cache, strict=True):
            x = block(x, mask, known)
        return self.predict(self.norm(x[0, -1]))

    def _embedded(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """(B, L, width): each byte, its place and its n-grams."""
        x = self.embed(input_ids) + self.places(position_ids)
        return x + self.grams(self._grams(input_ids, position_ids).flatten(0, 1)).view_as(x)

    def _grams(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """(B, L, sizes): the bucket of each n-gram, n = 2, 3, …, that ends there, from 1; 0 where
        the document has too few bytes before.
        """
        code, codes = input_ids, []
        for size in range(1, self.config["longest_gram"]):
            before = F.pad(input_ids, (size, 0))[:, : input_ids.shape[1]]
            code = (code * BYTES + before) % self.config["buckets"]
            codes.append((code + 1).masked_fill(position_ids < size, 0))
        return torch.stack(codes, 2)


class Model(pl.LightningModule):
    """Cross-entropy of the next token; bits per byte over every window exactly once.

    Options: the fields of `options.Options`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node, before every rank loads it."""
        if self.options.model_name != "bytelm":
            pretrained.fetch(self.options.model_name)

    def configure_model(self) -> None:
        if hasattr(self, "net"):
            return
        chosen = self.options
        if chosen.model_name == "bytelm":
            sizes = {name: getattr(chosen, name) for name in ("width", "layers", "heads")}
            net = ByteTransformer(**sizes, dropout=chosen.dropout, max_length=chosen.max_length)
            net.checkpointing = chosen.gradient_checkpointing
            self.net: Any = net
        else:
            self.net = pretrained.network(CAUSAL, chosen.model_name, chosen.lora_rank)
            shrink_base(self.net, self.trainer)
            self.net.config.prompted = bool(chosen.prompt_column)  # read by :func:`load`
            if chosen.gradient_checkpointing:
                self.net.gradient_checkpointing_enable()
        if chosen.compile:
            # The network, not this module: self.log breaks under torch.compile (Lightning#21836).
            compile_network(self.net, self.trainer.strategy)
        self.mean_loss = WeightedMean()

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """A batch as `data.Data` describes it → (B, L, tokens) logits."""
        return logits(self.net, batch["input_ids"], batch["position_ids"])

    def _losses(self, batch: dict[str, Any]) -> torch.Tensor:
        """(B, L): the loss of each next token, 0 without a label."""
        return token_losses(self(batch), batch["labels"], NO_LABEL)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return (self._losses(batch).mean(1) * batch["weight"]).sum() * batch["scale"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        weights = (batch["labels"] != NO_LABEL) * batch["weight"][:, None]
        self.mean_loss.update(self._losses(batch), weights)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")

    def _log(self, split: str) -> None:
        """Log the metrics of all batches, equal on every rank."""
        loss = self.mean_loss.compute()
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        bits = loss * data.tokens_per_byte[split] / math.log(2)
        values = {f"{split}/loss": loss.float(), f"{split}/bits_per_byte": bits.float()}
        self.log_dict(values)
        self.mean_loss.reset()

    def configure_optimizers(self) -> Any:
        chosen = self.options
        return adamw_with_cosine(
            self.trainer, self.net, chosen.lr, chosen.weight_decay, chosen.warmup_ratio
        )

    def save(self, directory: Path) -> None:
        """Write the files that :func:`load` reads, without code."""
        chosen = self.options
        if isinstance(self.net, ByteTransformer):
            prompted = bool(chosen.prompt_column)
            config = {"model_type": "bytelm", "prompted": prompted, "net": self.net.config}
            pretrained.save_own(self.net, config, directory)
        else:
            name, length = chosen.model_name, chosen.max_length
            pretrained.save(self.net, name, length, directory, chosen.merge)


def load(directory: Path) -> tuple[nn.Module, Any]:
    """A saved model: the network in evaluation mode, and its tokens (`data.Tokens`).

    Raises:
        UserError: there is no model, or :meth:`Model.save` did not write it.
    """
    with pretrained.model_errors(directory):
        config = pretrained.saved_config(directory)
        name = config["model_type"]
        if name == "bytelm":
            net: Any = ByteTransformer(**config["net"])
            pretrained.load_own(net, directory)
        else:
            name = str(directory)
            net = pretrained.network(CAUSAL, name)
        return net.eval(), tokens_of(name, config.get("prompted", False))


def logits(net: nn.Module, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """(B, L) ids and their numbers in their document → (B, L, tokens).

    Without a mask of their own, transformers' models keep documents apart by their positions
    (masking_utils.py, ``find_packed_sequence_indices``).
    """
    if isinstance(net, ByteTransformer):
        return net(input_ids, position_ids)
    return net(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
