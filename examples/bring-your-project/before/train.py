"""Train a VAE on normal vibrations: python train.py --data windows.npz --epochs 20"""

import argparse
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from vae.callbacks import EMA, KLWarmup, Reconstructions
from vae.data import WindowData
from vae.model import VAE


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="windows.npz")
    parser.add_argument("--out", default="runs/vae")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 128])
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--beta", type=float, default=0.05)
    parser.add_argument("--ema", type=float, default=0.99)
    parser.add_argument("--warmup-steps", type=int, default=100)
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--no-augment", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", help="a checkpoint")
    return parser.parse_args()


def main() -> None:
    args = parse()
    L.seed_everything(args.seed, workers=True)
    out = Path(args.out)
    data = WindowData(args.data, args.batch_size, args.workers, not args.no_augment)
    model = VAE(hidden=tuple(args.hidden), latent=args.latent, beta=args.beta, lr=args.lr)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="auto",
        devices="auto",
        gradient_clip_val=0.5,
        log_every_n_steps=10,
        callbacks=[
            ModelCheckpoint(out / "checkpoints", monitor="val_loss", save_top_k=2, save_last=True),
            EarlyStopping("val_loss", patience=args.patience),
            LearningRateMonitor("step"),
            EMA(args.ema),
            KLWarmup(args.warmup_steps),
            Reconstructions(out / "reconstructions"),
        ],
        logger=CSVLogger(out, name="", version=""),
    )
    trainer.fit(model, data, ckpt_path=args.resume)
    (metrics,) = trainer.test(ckpt_path="best", datamodule=data)
    torch.save(model.state_dict(), out / "vae.pt")
    print(metrics)


if __name__ == "__main__":
    main()
