"""The libraries of the page "Libraries": what is installed, what their models log, what to know."""

from dataclasses import dataclass

TORCHVISION = "torchvision==0.28.0"  # of torch 2.13.0: pip would take the newest, and its torch
LIGHTNING = "lightning==2.6.6"


@dataclass(frozen=True)
class Library:
    """One row of the table; parts/NAME.py has its model and data.

    Attributes:
        packages: what pip installs next to a project's environment, whose versions stay.
        monitor: the metric of validation that chooses the best weights.
        logged: all that validation and test log.
        know: what its user needs to know, in a sentence.
        alone: its own pins do not allow the project's versions: installed without dependencies.
        unused: its steps leave parameters out, which DDP has to be told.
    """

    name: str
    packages: tuple[str, ...]
    monitor: str
    logged: tuple[str, ...]
    know: str
    alone: bool = False
    unused: bool = False

    @property
    def package(self) -> str:
        return self.packages[0].partition("==")[0]


LOSS = ("val_loss", "test_loss")
FORECAST = ("loss", "SMAPE", "MAE", "RMSE", "MAPE", "MASE")  # what pytorch-forecasting logs
SCORES = ("loss", "OverallAccuracy", "AverageAccuracy", "JaccardIndex", "F1Score")  # torchgeo
CELLS_OF = ("elbo", "reconstruction_loss", "kl_local", "kl_global")  # scvi-tools


def of_both(*names: str) -> tuple[str, ...]:
    return tuple(f"{split}_{name}" for split in ("val", "test") for name in names)


LIBRARIES = (
    Library(
        "chemprop", ("chemprop==2.3.1",), "val/rmse", ("val_loss", "val/rmse", "test/rmse"), ""
    ),
    Library("lightly", ("lightly==1.6.0", TORCHVISION), "val_loss", LOSS, ""),
    Library(
        "pytorch_forecasting", ("pytorch-forecasting==1.8.0",), "val_loss", of_both(*FORECAST), ""
    ),
    Library("gluonts", ("gluonts[torch]==0.17.0", LIGHTNING), "val_loss", LOSS, ""),
    Library("torch_geometric", ("torch_geometric==2.8.1",), "val_loss", LOSS, ""),
    Library("timm", ("timm==1.0.31", LIGHTNING, TORCHVISION), "val_loss", LOSS, ""),
    Library("torchgeo", ("torchgeo==0.8.1", TORCHVISION), "val_loss", of_both(*SCORES), ""),
    Library(
        "scvi",
        ("scvi-tools==1.4.2",),
        "elbo_validation",
        (*(f"{name}_validation" for name in CELLS_OF), "validation_loss", "elbo_test"),
        "",
        unused=True,
    ),
    Library(
        "neuralforecast", ("neuralforecast==3.3.0",), "valid_loss", ("valid_loss", "test_loss"), ""
    ),
    Library("monai", ("monai==1.6.1", LIGHTNING), "val_loss", LOSS, ""),
    Library("matgl", ("matgl==4.1.2",), "val_Total_Loss", of_both("Total_Loss", "MAE", "RMSE"), ""),
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
        ),
        "valid_loss",
        ("valid_loss", "valid_mean_squared_error", "test_loss", "test_mean_squared_error"),
        "",
        alone=True,
    ),
)
