"""A variational autoencoder; windows that it reconstructs badly are faulty."""

import itertools
from typing import Any

import lightning as L
import torch
from torch import nn
from torchmetrics.classification import BinaryAUROC


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class VAE(L.LightningModule):
    """Kingma and Welling, *Auto-Encoding Variational Bayes* (2014), over windows.

    Args:
        length: samples of a window.
        hidden: widths of the encoder's layers; the decoder has them in reverse.
        latent: numbers of a code.
        beta: weight of the Kullback-Leibler divergence, once KLWarmup is over.
    """

    def __init__(
        self,
        length: int = 128,
        hidden: tuple[int, ...] = (256, 128),
        latent: int = 8,
        beta: float = 0.05,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        dropout: float = 0.05,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.beta = 0.0  # KLWarmup raises it
        self.drop = nn.Dropout(dropout)
        self.encoder = mlp([length, *hidden, 2 * latent])
        self.decoder = mlp([latent, *hidden[::-1], length])
        self.auroc = BinaryAUROC()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, length) windows → (B,) errors of their reconstruction."""
        mean, _ = self.encoder(x).chunk(2, -1)
        return (self.decoder(mean) - x).square().mean(-1)

    def losses(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means over the batch: error of the reconstruction, divergence of the codes."""
        mean, log_variance = self.encoder(self.drop(x)).chunk(2, -1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        code = mean + noise * (0.5 * log_variance).exp()
        error = (self.decoder(code) - x).square().mean()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return error, divergence.mean()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        error, divergence = self.losses(batch[0])
        self.log_dict({"train/kl": divergence, "beta": self.beta})
        return error + self.beta * divergence

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        error, divergence = self.losses(batch[0])
        loss = error + self.hparams.beta * divergence
        self.log("val/loss", loss, prog_bar=True, sync_dist=True)

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, faulty = batch
        self.auroc.update(self(x), faulty.int())
        error, divergence = self.losses(x[faulty == 0])
        if (faulty == 0).any():
            self.log("test/loss", error + self.hparams.beta * divergence, sync_dist=True)
        self.log("test/auroc", self.auroc)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay
        )
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.lr, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
