"""The model: chemprop's message passing network, whole, with its own loss and schedule."""

from pathlib import Path
from typing import Any

from chemprop.models import MPNN
from chemprop.nn import BondMessagePassing, MeanAggregation, RegressionFFN
from chemprop.nn.metrics import MAE, RMSE
from chemprop.nn.transforms import UnscaleTransform

from options import Options
from smlightning import pretrained


class Model(MPNN):
    """chemprop's loss, metrics and schedule; nothing of them is written anew."""

    def __init__(self, **options: Any) -> None:
        chosen = Options(**options)
        lr = chosen.lr
        super().__init__(
            **parts(chosen.hidden, chosen.depth),
            metrics=[RMSE(), MAE()],
            init_lr=lr / 10,
            max_lr=lr,
            final_lr=lr / 10,
        )
        self.options = chosen

    def configure_model(self) -> None:
        """Let answers be in the data's unit: its mean and deviation are known only now."""
        scaler = self.trainer.datamodule.scaler  # type: ignore[attr-defined]
        self.predictor.output_transform = UnscaleTransform.from_standard_scaler(scaler)

    def save(self, directory: Path) -> None:
        config = {"hidden": self.options.hidden, "depth": self.options.depth}
        pretrained.save_own(self, config, directory)


def parts(hidden: int, depth: int) -> dict[str, Any]:
    """The three parts of the network; mean and deviation come with its weights."""
    return {
        "message_passing": BondMessagePassing(d_h=hidden, depth=depth),
        "agg": MeanAggregation(),
        "predictor": RegressionFFN(
            input_dim=hidden, hidden_dim=hidden, output_transform=UnscaleTransform([0.0], [1.0])
        ),
    }


def load(directory: Path) -> MPNN:
    """A saved network in evaluation mode."""
    with pretrained.model_errors(directory):
        net = MPNN(**parts(**pretrained.saved_config(directory)), metrics=[RMSE(), MAE()])
        pretrained.load_own(net, directory)
    return net.eval()
