"""The model: a byte-level CNN with n-grams, or any Hugging Face sequence classifier; AdamW.

To train something else, replace this file: docs/model.md.
"""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from smlightning import pretrained
from smlightning.data import text
from smlightning.reports import curves
from smlightning.training.metrics import ConfusionMatrix, WeightedMean, accuracy, macro_f1
from smlightning.training.optimizers import adamw_with_cosine
from torch import nn
from torch.nn import functional as F

from options import Options


class ByteCNN(nn.Module):
    """Kim, *Convolutional Neural Networks for Sentence Classification* (2014), over bytes.

    Embed, convolve with several kernel sizes, keep each filter's largest value, drop out. Add, as
    in fastText, the mean embedding of a text's n-grams, hashed into buckets (Bojanowski et al.
    2017; Joulin et al. 2017); then classify. Embeddings of n-grams start at zero: an n-gram that
    is not in the training data adds nothing.
    """

    def __init__(
        self,
        classes: int,
        embedding: int = 64,
        filters: int = 128,
        kernel_sizes: Sequence[int] = (2, 3, 4, 5),
        dropout: float = 0.3,
        buckets: int = 32749,  # a prime
        grams: int = 32,
        longest_gram: int = 4,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = dict(
            classes=classes, embedding=embedding, filters=filters, kernel_sizes=[*kernel_sizes],
            dropout=dropout, buckets=buckets, grams=grams, longest_gram=longest_gram,
        )  # fmt: skip
        self.embed = nn.Embedding(257, embedding, padding_idx=0)
        convolutions = [nn.Conv1d(embedding, filters, size) for size in kernel_sizes]
        self.convolutions = nn.ModuleList(convolutions)
        self.grams = nn.EmbeddingBag(buckets + 1, grams, mode="mean", padding_idx=0)
        nn.init.zeros_(self.grams.weight)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(filters * len(kernel_sizes) + grams, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and mask → (B, classes) logits, the same however far the batch is padded."""
        # Mark the beginning of a text: 256 is byte 255 plus one, which UTF-8 does not have.
        input_ids = F.pad(input_ids, (1, 0), value=256)
        padding = F.pad(attention_mask == 0, (1, 0))[:, None]
        x = self.embed(input_ids).transpose(1, 2)
        pooled = []
        for convolution, size in zip(self.convolutions, self.config["kernel_sizes"], strict=True):
            # A window may reach past the end of a text into zeros, never start there.
            y = convolution(F.pad(x, (0, size - 1)))
            pooled.append(y.masked_fill(padding, -math.inf).amax(2))
        codes = [input_ids]  # of the n-grams that begin at each byte, for n = 1, 2, …
        for size in range(1, self.config["longest_gram"]):
            following = F.pad(input_ids, (0, size))[:, size:]
            codes.append((codes[-1] * 257 + following) % self.config["buckets"])
        grams = self.grams((torch.stack(codes, 1) + 1).masked_fill(padding, 0).flatten(1))
        return self.classify(torch.cat([self.dropout(F.relu(torch.cat(pooled, 1))), grams], 1))


class Model(pl.LightningModule):
    """Cross-entropy; accuracy and macro-F1 over every sample exactly once.

    Options: the fields of `options.Options`. ``lr_scaling="linear"``: Goyal et al. 2017, a
    heuristic; DDP averages gradients, so what grows with every rank is the global batch.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        self.labels: list[str] = []

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node, before every rank loads it."""
        if self.options.model_name != "bytecnn":
            pretrained.fetch(self.options.model_name)

    def configure_model(self) -> None:
        """Build the network: the labels are known only now, after `Data.setup`."""
        if self.labels:
            return
        self.labels = self.trainer.datamodule.labels  # type: ignore[attr-defined]
        chosen = self.options
        self.net = build(chosen.model_name, self.labels)
        if chosen.gradient_checkpointing:
            self.net.gradient_checkpointing_enable()
        if chosen.compile:
            # The network, not this module: self.log breaks under torch.compile (Lightning#21836).
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
        """Write the files that :func:`load` reads, without code."""
        chosen = self.options
        if isinstance(self.net, ByteCNN):
            config = {"labels": self.labels, "max_length": chosen.max_length}
            config |= {"model_type": "bytecnn", "net": self.net.config}
            pretrained.save_own(self.net, config, directory)
        else:
            pretrained.save(self.net, chosen.model_name, chosen.max_length, directory)

    def draw(self, directory: Path) -> None:
        """Write ``confusion.png``: each row is divided by its sum, which shows rare labels too."""
        matrix = self.test_confusion.cpu()
        shares = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
        curves.save_matrix(shares, self.labels, directory / "confusion.png")


def build(model_name: str, labels: list[str]) -> Any:
    """A network for ``labels``: a fresh byte CNN, or a checkpoint with a head for them."""
    if model_name == "bytecnn":
        return ByteCNN(len(labels))
    from transformers import AutoModelForSequenceClassification

    with pretrained.loading(model_name):
        net = AutoModelForSequenceClassification.from_pretrained(
            model_name,
            ignore_mismatched_sizes=True,  # a head trained for other labels is replaced
            **pretrained.label_names(labels),
            **pretrained.SAFE,
        )
    if net.config.pad_token_id is None:  # decoders classify the last token before the padding
        net.config.pad_token_id = pretrained.PretrainedTokenizer(model_name).pad_id
    return net.train()  # from_pretrained returns evaluation mode, and Lightning keeps it


def load(directory: Path) -> tuple[nn.Module, Callable[[list[str]], dict[str, Any]], list[str]]:
    """A saved model: the network in evaluation mode, a function from texts to a batch, the labels.

    Raises:
        UserError: there is no model, or :meth:`Model.save` did not write it.
    """
    with pretrained.model_errors(directory):
        config = pretrained.saved_config(directory)
        if config["model_type"] == "bytecnn":
            net: Any = ByteCNN(**config["net"])
            pretrained.load_own(net, directory)
            labels, max_length = config["labels"], config["max_length"]
            tokens: Any = text.ByteTokenizer()
        else:
            from transformers import AutoModelForSequenceClassification

            with pretrained.loading(str(directory)):
                net = AutoModelForSequenceClassification.from_pretrained(
                    directory, local_files_only=True, **pretrained.SAFE
                )
            labels = [net.config.id2label[number] for number in range(net.config.num_labels)]
            tokens = pretrained.PretrainedTokenizer(str(directory))
            max_length = tokens.longest
    batch = functools.partial(text.batch, tokens=tokens, max_length=max_length)
    return net.eval(), batch, labels


def logits(net: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, L) ids and mask → (B, classes)."""
    out = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return out if isinstance(out, torch.Tensor) else out.logits
