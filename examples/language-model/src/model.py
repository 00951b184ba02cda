"""The model: a causal language model of transformers, new and tiny or a checkpoint; AdamW."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from options import Options
from smlightning import pretrained
from smlightning.training.metrics import WeightedMean
from smlightning.training.optimizers import adamw_with_cosine
from text_tokens import mark, tokenizer


class Model(pl.LightningModule):
    """Cross-entropy of the next token, over every window exactly once."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node."""
        if self.options.model_name != "tiny":
            pretrained.fetch(self.options.model_name)

    def configure_model(self) -> None:
        if hasattr(self, "net"):
            return
        self.net = build(self.options)
        if self.options.gradient_checkpointing:
            self.net.gradient_checkpointing_enable()
        if self.options.compile:
            self.net.compile()  # not this module: self.log breaks then (Lightning#21836)
        self.mean_loss = WeightedMean()

    def _losses(self, batch: dict[str, Any]) -> torch.Tensor:
        """(B, L): the loss of each next token."""
        logits = self.net(input_ids=batch["input_ids"], use_cache=False).logits
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), batch["labels"].flatten(), reduction="none"
        )
        return losses.view_as(batch["labels"])

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return (self._losses(batch).mean(1) * batch["weight"]).sum() * batch["scale"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: dict[str, Any]) -> None:
        self.mean_loss.update(self._losses(batch).mean(1), batch["weight"])
        self.log(f"{split}/loss", self.mean_loss)

    def configure_optimizers(self) -> Any:
        return adamw_with_cosine(
            self.trainer, self.net, self.options.lr, self.options.weight_decay, warmup_ratio=0.05
        )

    def save(self, directory: Path) -> None:
        self.net.save_pretrained(directory)
        tokenizer(self.options.model_name).save_pretrained(directory)


def build(options: Options) -> Any:
    """A network in training mode: a new tiny Llama of bytes, or a checkpoint."""
    if options.model_name != "tiny":
        with pretrained.loading(options.model_name):
            return AutoModelForCausalLM.from_pretrained(
                options.model_name, **pretrained.SAFE
            ).train()
    tokens = tokenizer("tiny")
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        max_position_embeddings=options.max_length,
        bos_token_id=mark(tokens),
        eos_token_id=mark(tokens),
        pad_token_id=mark(tokens),
    )
    return AutoModelForCausalLM.from_config(config)


def load(directory: Path) -> tuple[Any, Any]:
    """A saved model: the network in evaluation mode, and its tokenizer."""
    with pretrained.model_errors(directory), pretrained.loading(str(directory)):
        net: Any = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, **pretrained.SAFE
        )
        tokens = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        return net.eval(), tokens
