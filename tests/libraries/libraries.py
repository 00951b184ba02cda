"""The libraries of the page "Libraries": what is installed, what their models log, what to know."""

from dataclasses import dataclass, field
from typing import Any

TORCHVISION = "torchvision==0.28.0"  # of torch 2.13.0: pip would take the newest, and its torch
LIGHTNING = "lightning==2.6.6"


@dataclass(frozen=True)
class Library:
    """One row of the table; parts/NAME.py has its model and data.

    Attributes:
        packages: what pip installs next to a project's environment, whose versions stay.
        monitor: the metric of validation that chooses the best weights.
        logged: all that validation and test log.
        alone: its own pins do not allow the project's versions: installed without dependencies.
        unused: its steps leave parameters out, which DDP has to be told.
        options: of its runs, next to those of all.
    """

    name: str
    packages: tuple[str, ...]
    monitor: str
    logged: tuple[str, ...]
    alone: bool = False
    unused: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def know(self) -> str:
        """What its user needs to know."""
        return KNOW[self.name]

    @property
    def package(self) -> str:
        return self.packages[0].partition("==")[0]


LOSS = ("val_loss", "test_loss")
FORKED = ("train_loss_step", "train_loss_epoch")  # Lightning's names for on_step and on_epoch
TABULAR = ("loss", "mean_squared_error")  # pytorch-tabular
FORECAST = ("loss", "SMAPE", "MAE", "RMSE", "MAPE", "MASE")  # what pytorch-forecasting logs
SCORES = ("loss", "OverallAccuracy", "AverageAccuracy", "JaccardIndex", "F1Score")  # torchgeo
CELLS_OF = ("elbo", "reconstruction_loss", "kl_local", "kl_global")  # scvi-tools


def of_both(*names: str) -> tuple[str, ...]:
    return tuple(f"{split}_{name}" for split in ("val", "test") for name in names)


def of_all(*names: str) -> tuple[str, ...]:
    return (*(f"train_{name}" for name in names), *of_both(*names))


KNOW = {
    "chemprop": (
        "Make its loaders in `setup`: it passes `shuffle` and `sampler` by position, which "
        "Lightning cannot exchange in a hook. Its guard against a last batch of one counts all "
        "ranks' molecules: with `batch_norm`, choose a batch size that leaves none on each rank. "
        "Its import fixes fork as the way in which processes start: pass `multiprocessing_context` "
        "to a DataLoader."
    ),
    "lightly": (
        "Its memory bank is not in `state_dict`, so checkpoints of a plain Trainer lack it; those"
        " of a project have it."
        " With FSDP its `update_momentum` raises: it adds ordinary and sharded weights."
    ),
    "pytorch_forecasting": (
        "The loss and metrics among its hyperparameters are objects: checkpoints leave them out. "
        "Without `sync_dist` it logs one rank's values. Its synchronized batch sampler raises "
        "under DDP."
    ),
    "gluonts": (
        "Its loaders have no length: pass `--max_steps`. It gives all ranks the same windows: "
        "give each rank its series, by `self.trainer.global_rank`. Windows are drawn at random, "
        "so the contract test that counts the samples of several ranks fails. Its module has no "
        "`test_step`."
    ),
    "torch_geometric": (
        '`loader="full"` counts the devices of one host, so several hosts train on the same graph.'
    ),
    "timm": (
        "Its schedulers need `lr_scheduler_step` in the module. Pin torchvision: pip takes the "
        "newest, and with it another torch."
    ),
    "torchgeo": (
        "`torchgeo.datasets` imports requests, which only its extra `datasets` requires: list "
        "requests too. It logs without `sync_dist`. Pin torchvision, as for timm. 0.10 needs "
        "Python 3.12."
    ),
    "scvi": (
        "Set `scvi.settings.seed`: otherwise each process splits the cells in another way. Its "
        "steps leave parameters out: `find_unused_parameters` is True in `src/dist.py`, and a "
        'plain Trainer takes `"ddp_find_unused_parameters_true"`. It has no `test_step`. '
        "Its import turns `torch.backends.cudnn.benchmark` on, so two runs on a GPU differ: "
        "`Trainer(benchmark=False)`."
    ),
    "neuralforecast": (
        "Its models have no `test_step`, and set torch's seed when training begins. Its loss is "
        "an object: checkpoints leave it out. Its import puts a function of ray into "
        "`sys.excepthook`, which a run does not use: set your own after it."
    ),
    "monai": (
        "Losses of its batches are `MetaTensor`: checkpoints hold them as plain tensors. Its "
        "random transforms draw from generators of their own."
    ),
    "matgl": (
        "`MGLDataset` stores graphs in the working directory: `save_cache=False`, or write them "
        "in `prepare_data`."
    ),
    "pytorch_tabular": (
        "Its pins exclude this Lightning and torchmetrics: installed with `--no-deps`, next to "
        "what it imports, requests among it."
    ),
}


LIBRARIES = (
    Library(
        "chemprop",
        ("chemprop==2.3.1",),
        "val/rmse",
        (*FORKED, "val_loss", "val/rmse", "test/rmse"),
    ),
    Library("lightly", ("lightly==1.6.0", TORCHVISION), "val_loss", LOSS),
    Library(
        "pytorch_forecasting",
        ("pytorch-forecasting==1.8.0",),
        "val_loss",
        (*FORKED, *of_both(*FORECAST)),
    ),
    Library(
        "gluonts",
        ("gluonts[torch]==0.17.0", LIGHTNING),
        "val_loss",
        ("train_loss", *LOSS),
        options={"max_steps": 18},
    ),
    Library("torch_geometric", ("torch_geometric==2.8.1",), "val_loss", LOSS),
    Library("timm", ("timm==1.0.31", LIGHTNING, TORCHVISION), "val_loss", LOSS),
    Library("torchgeo", ("torchgeo==0.8.1", TORCHVISION, "requests"), "val_loss", of_all(*SCORES)),
    Library(
        "scvi",
        ("scvi-tools==1.4.2",),
        "elbo_validation",
        (
            *(f"{name}_{split}" for name in CELLS_OF for split in ("train", "validation")),
            "train_loss",
            "validation_loss",
            "kl_weight",
            "elbo_test",
        ),
        unused=True,
    ),
    Library(
        "neuralforecast",
        ("neuralforecast==3.3.0",),
        "valid_loss",
        (*FORKED, "valid_loss", "ptl/val_loss", "test_loss"),
    ),
    Library("monai", ("monai==1.6.1", LIGHTNING), "val_loss", LOSS),
    Library("matgl", ("matgl==4.1.2",), "val_Total_Loss", of_all("Total_Loss", "MAE", "RMSE")),
    Library(
        "pytorch_tabular",
        (
            "pytorch-tabular==1.1.1",
            "pytorch-tabnet==4.1.0",
            "einops",
            "ipywidgets",
            "scikit-learn",
            "joblib",
            "threadpoolctl",
            "narwhals",
            "category-encoders",
            "requests",
        ),
        "valid_loss",
        tuple(f"{split}_{name}" for split in ("train", "valid", "test") for name in TABULAR),
        alone=True,
    ),
)
