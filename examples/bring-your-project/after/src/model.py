"""`Model`: VAE of vae/ with the names of this project's options; saving and loading."""

from pathlib import Path
from typing import Any

from options import Options
from smlightning import pretrained, torch_files
from vae.model import VAE


class Model(VAE):
    def __init__(self, **options: Any) -> None:
        chosen = Options(**options)
        sizes: dict[str, Any] = {"hidden": chosen.hidden, "latent": chosen.latent}
        super().__init__(**sizes, beta=chosen.beta, lr=chosen.lr)
        self.sizes = sizes
        if chosen.init_from:  # as data: nothing in it is executed
            self.load_state_dict(torch_files.load(Path(chosen.init_from))["state_dict"])

    def save(self, directory: Path) -> None:
        pretrained.save_own(self, self.sizes, directory)


def load(directory: Path) -> tuple[VAE]:
    """The trained network, in evaluation mode."""
    with pretrained.model_errors(directory):
        net = VAE(**pretrained.saved_config(directory))
        pretrained.load_own(net, directory)
    return (net.eval(),)
