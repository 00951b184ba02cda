"""The model: a Hugging Face sequence classifier, fine-tuned by LoRA; AdamW.

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models* (2021).
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from options import Options
from smlightning import pretrained
from smlightning.data import text
from smlightning.errors import UserError
from smlightning.reports import curves
from smlightning.training.metrics import ConfusionMatrix, WeightedMean, accuracy, macro_f1
from smlightning.training.optimizers import adamw_with_cosine

# As in QLoRA (Dettmers et al. 2023): all linear layers. peft trains the head whole.
LORA: Any = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}


class Model(pl.LightningModule):
    """Cross-entropy; accuracy and macro-F1 over every sample exactly once."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        self.labels: list[str] = []

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node, before every rank loads it."""
        if self.options.model_name == "bytecnn":
            raise UserError("LoRA needs a Hugging Face model", "give its --model_name")
        pretrained.fetch(self.options.model_name)

    def configure_model(self) -> None:
        """Build the network: the labels are known only now, after `Data.setup`."""
        if self.labels:
            return
        self.labels = self.trainer.datamodule.labels  # type: ignore[attr-defined]
        self.net = build(self.options.model_name, self.labels)
        if self.options.gradient_checkpointing:
            self.net.enable_input_require_grads()
            self.net.gradient_checkpointing_enable()
        if self.options.compile:
            self.net.compile(dynamic=True)
        self.mean_loss = WeightedMean()
        self.confusion = ConfusionMatrix(len(self.labels))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """A batch as `data.Data` describes it → (B, classes) logits."""
        return logits(self.net, batch)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        losses = F.cross_entropy(self(batch).float(), batch["label"], reduction="none")
        return (losses * batch["weight"]).sum() * batch["scale"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        predicted = self(batch).float()
        losses = F.cross_entropy(predicted, batch["label"], reduction="none")
        self.mean_loss.update(losses, batch["weight"])
        self.confusion.update(predicted, batch["label"], batch["weight"])

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self.test_confusion = self._log("test")

    def _log(self, split: str) -> torch.Tensor:
        """Log the metrics of all batches, equal on every rank; returns the confusion matrix."""
        loss, confusion = self.mean_loss.compute(), self.confusion.compute()
        values = {"loss": loss, "accuracy": accuracy(confusion), "macro_f1": macro_f1(confusion)}
        self.log_dict({f"{split}/{name}": value.float() for name, value in values.items()})
        self.mean_loss.reset()
        self.confusion.reset()
        return confusion

    def configure_optimizers(self) -> Any:
        scale = self.trainer.world_size if self.options.lr_scaling == "linear" else 1
        lr, decay, warmup = self.options.lr, self.options.weight_decay, self.options.warmup_ratio
        return adamw_with_cosine(self.trainer, self.net, lr * scale, decay, warmup)

    def save(self, directory: Path) -> None:
        """Write the adapter, then the network with the adapter merged into it, without code."""
        self.net.save_pretrained(directory / "adapter", save_embedding_layers=False)
        merged = self.net.merge_and_unload()
        pretrained.save(merged, self.options.model_name, self.options.max_length, directory)

    def draw(self, directory: Path) -> None:
        """Write ``confusion.png``: each row is divided by its sum, which shows rare labels too."""
        matrix = self.test_confusion.cpu()
        shares = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
        curves.save_matrix(shares, self.labels, directory / "confusion.png")


def build(model_name: str, labels: list[str]) -> Any:
    """A checkpoint with a head for ``labels`` and matrices next to its linear layers."""
    with pretrained.loading(model_name):
        net = AutoModelForSequenceClassification.from_pretrained(
            model_name,
            ignore_mismatched_sizes=True,  # a head trained for other labels is replaced
            **pretrained.label_names(labels),
            **pretrained.SAFE,
        )
        lora = get_peft_model(net, LoraConfig(task_type=TaskType.SEQ_CLS, **LORA))
    if net.config.pad_token_id is None:  # decoders classify the last token before the padding
        net.config.pad_token_id = pretrained.PretrainedTokenizer(model_name).pad_id
    return lora.train()


def load(directory: Path) -> tuple[Any, Callable[[list[str]], dict[str, Any]], list[str]]:
    """A saved model: the network in evaluation mode, a function from texts to a batch, the labels.

    Raises:
        UserError: there is no model, or :meth:`Model.save` did not write it.
    """
    with pretrained.model_errors(directory):
        with pretrained.loading(str(directory)):
            net = AutoModelForSequenceClassification.from_pretrained(
                directory, local_files_only=True, **pretrained.SAFE
            )
        labels = [net.config.id2label[number] for number in range(net.config.num_labels)]
        tokens = pretrained.PretrainedTokenizer(str(directory))
    batch = functools.partial(text.batch, tokens=tokens, max_length=tokens.longest)
    return net.eval(), batch, labels


def logits(net: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, L) ids and mask → (B, classes)."""
    out = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return out.logits
