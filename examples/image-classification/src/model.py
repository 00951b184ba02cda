"""The model: a small ResNet, or any Hugging Face image classifier; AdamW."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy
from transformers import AutoModelForImageClassification, ResNetConfig

from options import Options
from smlightning import pretrained
from smlightning.cluster.collectives import sum_over_ranks
from smlightning.training.optimizers import adamw_with_cosine


class Model(pl.LightningModule):
    """Cross-entropy and accuracy."""

    saved_attributes = ("labels",)

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        self.labels: list[str] = []

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node."""
        if self.options.model_name != "resnet":
            pretrained.fetch(self.options.model_name)

    def configure_model(self) -> None:
        if self.labels:
            return
        self.labels = self.trainer.datamodule.labels  # type: ignore[attr-defined]
        self.net = build(self.options.model_name, self.labels)
        self.net.config.input_size = self.options.image_size  # predict.py reads it
        self.accuracy = MulticlassAccuracy(
            len(self.labels), average="micro", dist_sync_fn=sum_over_ranks
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images).logits, labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        logits = self.net(images).logits
        self.accuracy.update(logits, labels)
        self.log(f"{split}/loss", F.cross_entropy(logits, labels), sync_dist=True)
        self.log(f"{split}/accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        return adamw_with_cosine(
            self.trainer, self.net, self.options.lr, self.options.weight_decay, warmup_ratio=0.1
        )

    def save(self, directory: Path) -> None:
        self.net.save_pretrained(directory)


def build(name: str, labels: list[str]) -> Any:
    """A network in training mode: a new ResNet, or a checkpoint with a new last layer."""
    if name == "resnet":
        sizes: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [32, 64, 128]}
        sizes |= pretrained.label_names(labels)
        config = ResNetConfig(depths=[1, 1, 1], layer_type="basic", **sizes)
        return AutoModelForImageClassification.from_config(config)
    with pretrained.loading(name):
        net = AutoModelForImageClassification.from_pretrained(
            name,
            ignore_mismatched_sizes=True,  # a head trained for other labels is replaced
            **pretrained.label_names(labels),
            **pretrained.SAFE,
        )
    return net.train()  # from_pretrained returns evaluation mode, and Lightning keeps it


def load(directory: Path) -> tuple[Any, list[str], int]:
    """A saved model: the network in evaluation mode, its labels, the size of its images."""
    with pretrained.model_errors(directory), pretrained.loading(str(directory)):
        net: Any = AutoModelForImageClassification.from_pretrained(
            directory, local_files_only=True, **pretrained.SAFE
        )
        labels = [net.config.id2label[number] for number in range(net.config.num_labels)]
        return net.eval(), labels, net.config.input_size
