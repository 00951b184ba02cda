"""The model: a byte-level CNN with n-grams, or any Hugging Face sequence classifier, trained with AdamW.

To train something else, replace this file: README.md, "Your own task", says what train.py relies on.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

import data
from options import ModelOptions
from runtime import ranks, report
from runtime.metrics import WeightedMean
from runtime.report import UserError, atomic_write


class ByteCNN(nn.Module):
    """Kim, *Convolutional Neural Networks for Sentence Classification* (2014), over bytes, with fastText's n-grams.

    Embed, convolve with several kernel sizes, keep each filter's largest answer, drop out. Beside it the mean embedding
    of a text's n-grams, hashed into buckets (Bojanowski et al. 2017; Joulin et al. 2017); then classify. Embeddings of
    n-grams start at zero: one that training never met adds nothing.
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
            classes=classes, embedding=embedding, filters=filters, kernel_sizes=[*kernel_sizes], dropout=dropout,
            buckets=buckets, grams=grams, longest_gram=longest_gram,
        )  # fmt: skip
        self.embed = nn.Embedding(257, embedding, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, size) for size in kernel_sizes)
        self.grams = nn.EmbeddingBag(buckets + 1, grams, mode="mean", padding_idx=0)
        nn.init.zeros_(self.grams.weight)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(filters * len(kernel_sizes) + grams, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and mask → (B, classes) logits, the same however far the batch is padded."""
        input_ids = F.pad(input_ids, (1, 0), value=256)  # where a text begins: 255 is no byte of UTF-8
        padding = F.pad(attention_mask == 0, (1, 0))[:, None]
        x = self.embed(input_ids).transpose(1, 2)
        pooled = []
        for convolution, size in zip(self.convolutions, self.config["kernel_sizes"], strict=True):
            # A window may reach past the end of a text into zeros, never start there.
            y = convolution(F.pad(x, (0, size - 1)))
            pooled.append(y.masked_fill(padding, -math.inf).amax(2))
        codes = [input_ids]
        for size in range(1, self.config["longest_gram"]):
            codes.append((codes[-1] * 257 + F.pad(input_ids, (0, size))[:, size:]) % self.config["buckets"])
        grams = self.grams((torch.stack(codes, 1) + 1).masked_fill(padding, 0).flatten(1))
        return self.classify(torch.cat([self.dropout(F.relu(torch.cat(pooled, 1))), grams], 1))


class Model(pl.LightningModule):
    """Cross-entropy, AdamW, warm-up and cosine decay; accuracy and macro-F1 over every sample exactly once.

    Options are the fields of `options.ModelOptions`, read as ``self.options.name``. The learning rate rises from 0 in
    ``warmup_ratio`` of all steps, then falls to 0 along a half cosine. ``lr_scaling="linear"`` multiplies it by the
    world size (Goyal et al. 2017, a heuristic): DDP averages gradients, so what grows with every rank is the global
    batch.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = ModelOptions(**options)
        self.labels: list[str] = []

    def prepare_data(self) -> None:
        """Fetch a checkpoint from the hub once per node, before every rank loads it."""
        name = self.options.model_name
        if name != "bytecnn" and not Path(name).exists():
            from huggingface_hub import snapshot_download

            with data.checkpoint_errors(name):
                snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"])

    def configure_model(self) -> None:
        """Build the network: only now, with the data open, are the labels known."""
        if self.labels:
            return
        self.labels = self.trainer.datamodule.labels  # type: ignore[attr-defined]
        self.net = build(self.options.model_name, self.labels)
        if self.options.gradient_checkpointing:
            if not hasattr(self.net, "gradient_checkpointing_enable"):
                raise UserError("--gradient_checkpointing is for Hugging Face models; bytecnn has none.")
            self.net.gradient_checkpointing_enable()  # type: ignore[operator]
        if self.options.compile:  # the network, not this module: self.log breaks under torch.compile (Lightning#21836)
            self.net.compile(dynamic=True)
        self.mean_loss = WeightedMean()
        options: Any = dict(num_classes=len(self.labels), ignore_index=-100, dist_sync_fn=ranks.sum_over_ranks)
        options["validate_args"] = False  # which would make a GPU wait at each batch
        accuracy, f1 = MulticlassAccuracy(average="micro", **options), MulticlassF1Score(average="macro", **options)
        self.scores = torchmetrics.MetricCollection({"accuracy": accuracy, "macro_f1": f1})
        self.confusion = MulticlassConfusionMatrix(normalize="true", **options)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """A batch as `Data` makes them → (B, classes) logits."""
        return logits(self.net, batch)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        losses = F.cross_entropy(self(batch).float(), batch["label"], reduction="none")
        return (losses * batch["weight"]).sum() * batch["scale"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(batch)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        predicted, target = self._evaluate(batch)
        self.confusion.update(predicted, target)

    def _evaluate(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        answers = self(batch).float()
        target = batch["label"].masked_fill(batch["weight"] == 0, -100)
        self.mean_loss.update(F.cross_entropy(answers, batch["label"], reduction="none"), batch["weight"])
        self.scores.update(answers, target)
        return answers, target

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")
        self.test_confusion = self.confusion.compute()  # a collective: every rank takes part

    def _log(self, split: str) -> None:
        values = {"loss": self.mean_loss.compute().float(), **self.scores.compute()}  # the same on every rank
        self.log_dict({f"{split}/{name}": value for name, value in values.items()})
        self.mean_loss.reset()
        self.scores.reset()

    def configure_optimizers(self) -> Any:
        # The fused kernels unscale gradients by themselves, too late for clipping under a gradient scaler.
        fused = self.trainer.precision != "16-mixed"
        decay = [p for p in self.net.parameters() if p.ndim > 1]
        rest = [p for p in self.net.parameters() if p.ndim <= 1]  # biases and norms: decay only harms them
        lr = self.options.lr * (self.trainer.world_size if self.options.lr_scaling == "linear" else 1)
        groups = [{"params": decay, "weight_decay": self.options.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=lr, fused=fused)
        total = max(int(self.trainer.estimated_stepping_batches), 1)
        rising = max(round(total * self.options.warmup_ratio), 1)

        def lr_lambda(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            return 0.5 * (1 + math.cos(math.pi * min((step - rising) / max(total - rising, 1), 1.0)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by global norm. Lightning's own refuses fused AdamW under bf16, where nothing is scaled (#21435)."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), gradient_clip_val)

    def save(self, directory: Path) -> None:
        """Write what :func:`load` reads: weights as safetensors and a config.json; nothing in it is code."""
        directory.mkdir(parents=True, exist_ok=True)
        max_length = self.options.max_length
        if isinstance(self.net, ByteCNN):
            from safetensors.torch import save_file

            config = {"model_type": "bytecnn", "labels": self.labels, "max_length": max_length, "net": self.net.config}
            with atomic_write(directory / "model.safetensors") as path:
                save_file(self.net.state_dict(), path)
            with atomic_write(directory / "config.json") as path:
                path.write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self.options.model_name, model_max_length=max_length)
            tokenizer.save_pretrained(directory)
            self.net.save_pretrained(directory)  # type: ignore[operator]

    def draw(self, directory: Path) -> None:
        """Write ``confusion.png``: each true class's row as shares of that class, so that rare classes are seen."""
        figure, _ = self.confusion.plot(self.test_confusion.cpu(), add_text=False, labels=self.labels, cmap="Blues")
        report.save_matrix(figure, directory / "confusion.png")


def build(model_name: str, labels: list[str]) -> nn.Module:
    """A network that tells ``labels`` apart: a fresh byte CNN, or a Hugging Face checkpoint with a head for them."""
    if model_name == "bytecnn":
        return ByteCNN(len(labels))
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with data.checkpoint_errors(model_name), torch.device("cpu"):  # on another one it would ask for accelerate
        net = transformers.AutoModelForSequenceClassification.from_pretrained(
            model_name,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)},
            ignore_mismatched_sizes=True,  # a head trained for other labels is replaced
            dtype=torch.float32,
            trust_remote_code=False,  # else standard input is asked whether to run the checkpoint's own code
        )
    if net.config.pad_token_id is None:  # decoders look for the last token that is not padding
        net.config.pad_token_id = data.tokenizer(model_name).pad_id
    return net.train()  # from_pretrained gives it without dropout, and Lightning leaves that as it is


def load(directory: Path) -> tuple[nn.Module, Callable[[list[str]], dict[str, torch.Tensor]], list[str]]:
    """A saved model: its network in evaluation mode, what makes a batch of texts for it, and its labels.

    Raises:
        UserError: no model is there, or it is not one that :meth:`Model.save` wrote.
    """
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        if config["model_type"] == "bytecnn":
            from safetensors.torch import load_file

            net: nn.Module = ByteCNN(**config["net"])
            net.load_state_dict(load_file(directory / "model.safetensors"))
            labels, max_length = config["labels"], config["max_length"]
            tokenize = data.tokenizer("bytecnn")
        else:
            from transformers import AutoConfig, AutoTokenizer

            id2label = AutoConfig.from_pretrained(directory, trust_remote_code=False).id2label
            labels = [id2label[i] for i in range(len(id2label))]
            net = build(str(directory), labels)
            max_length = AutoTokenizer.from_pretrained(directory, trust_remote_code=False).model_max_length
            tokenize = data.tokenizer(str(directory))
    except Exception as error:  # safetensors, transformers and json each have exceptions of their own
        raise UserError(
            f"{directory} holds no trained model ({type(error).__name__}: {report.root_cause(error)}); "
            "expected config.json and model.safetensors as training writes them: train first, or name the folder."
        ) from error
    encode, pad_id = tokenize
    return net.eval(), lambda texts: data.pad(encode(texts, max_length), pad_id), labels


def logits(net: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, L) ids and mask → (B, classes)."""
    out = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return out if isinstance(out, torch.Tensor) else out.logits
