"""The model: a vision encoder and a text decoder as in Donut, new and tiny or a checkpoint; AdamW.

Kim et al., *OCR-free Document Understanding Transformer* (2022).
"""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.nn import functional as F
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    MBartConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

import data
from options import Options
from smlightning import pretrained
from smlightning.training.metrics import WeightedMean
from smlightning.training.optimizers import adamw_with_cosine
from tags import tokenizer


class Model(pl.LightningModule):
    """Cross-entropy of the next token; the share of documents that `generate` reads without error.

    Both metrics count each document once, on any number of ranks.
    """

    saved_attributes = ("tags",)

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        self.sharded = self.options.strategy == "fsdp"

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node."""
        if self.options.model_name != "tiny":
            pretrained.fetch(self.options.model_name)

    def configure_model(self) -> None:
        if hasattr(self, "net"):
            return
        self.tags = self.trainer.datamodule.tags  # type: ignore[attr-defined]
        self.tokens = tokenizer(self.options.model_name, self.tags)
        self.net = build(self.options, self.tokens)
        self.mean_loss, self.exact_match = WeightedMean(), WeightedMean()

    def _losses(self, batch: dict[str, Any]) -> torch.Tensor:
        """(B, L): the loss of each token, 0 without a label."""
        logits = self.net(pixel_values=batch["pixel_values"], labels=batch["labels"]).logits
        labels = batch["labels"]
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=data.NO_LABEL,
            reduction="none",
        )
        return losses.view_as(labels)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        counts = (batch["labels"] != data.NO_LABEL).sum(1)
        losses = self._losses(batch).sum(1) / counts
        return (losses * batch["weight"]).sum() * batch["scale"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: dict[str, Any]) -> None:
        labels = batch["labels"]
        weights = (labels != data.NO_LABEL) * batch["weight"][:, None]
        self.mean_loss.update(self._losses(batch), weights)
        read = generate(self.net, batch["pixel_values"], labels.shape[1], self.sharded)
        right = (read == labels) | (labels == data.NO_LABEL)
        is_whole = (labels == self.tokens.eos_token_id).any(1)  # a text that was cut has no end
        self.exact_match.update(right.all(1) & is_whole, batch["weight"])
        self.log(f"{split}/loss", self.mean_loss)
        self.log(f"{split}/exact_match", self.exact_match)

    def configure_optimizers(self) -> Any:
        return adamw_with_cosine(
            self.trainer, self.net, self.options.lr, self.options.weight_decay, warmup_ratio=0.1
        )

    def save(self, directory: Path) -> None:
        self.net.save_pretrained(directory)
        self.tokens.save_pretrained(directory)


def build(options: Options, tokens: Any) -> Any:
    """A network in training mode: a new tiny one, or a checkpoint, with a row for each tag."""
    if options.model_name == "tiny":
        encoder = ViTConfig(
            image_size=[options.height, options.width], patch_size=8, hidden_size=96,
            num_hidden_layers=3, num_attention_heads=4, intermediate_size=384,
        )  # fmt: skip
        decoder = MBartConfig(
            vocab_size=len(tokens), d_model=96, decoder_layers=2, decoder_attention_heads=4,
            decoder_ffn_dim=384, max_position_embeddings=options.max_length + 2,
        )  # fmt: skip
        config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        net: Any = VisionEncoderDecoderModel(config)
    else:
        with pretrained.loading(options.model_name):
            net = VisionEncoderDecoderModel.from_pretrained(
                options.model_name, **pretrained.SAFE
            ).train()
            net.decoder.resize_token_embeddings(len(tokens))
    for name, parameter in net.encoder.named_parameters():
        if "pooler" in name:  # the decoder does not use it, and DDP wants every gradient
            parameter.requires_grad = False
    start = tokens.eos_token_id if tokens.bos_token_id is None else tokens.bos_token_id
    marks = {"decoder_start_token_id": start, "eos_token_id": tokens.eos_token_id}
    marks["pad_token_id"] = tokens.pad_token_id
    net.config.update(marks)  # of the loss, and below of `generate`: MBart has others
    net.generation_config = GenerationConfig(num_beams=1, do_sample=False, **marks)
    net.config.input_size = [options.height, options.width]  # predict.py reads both
    net.config.max_length_of_text = options.max_length
    return net


def generate(net: Any, images: torch.Tensor, length: int, sharded: bool = False) -> torch.Tensor:
    """(B, length): the likeliest tokens one after the other, then padding.

    The ranks of a sharded network gather it for each token, so all go on until the last is done.
    """
    read = net.generate(pixel_values=images, max_new_tokens=length, synced_gpus=sharded)
    return F.pad(read[:, 1:], (0, length + 1 - read.shape[1]), value=net.config.pad_token_id)


def load(directory: Path) -> tuple[Any, Any]:
    """A saved model: the network in evaluation mode, and its tokenizer."""
    with pretrained.model_errors(directory), pretrained.loading(str(directory)):
        net: Any = VisionEncoderDecoderModel.from_pretrained(
            directory, local_files_only=True, **pretrained.SAFE
        )
        tokens = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        return net.eval(), tokens
