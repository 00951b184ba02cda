"""The files that an inference image with Ray Serve finds in /opt/ml/model."""

import json
from pathlib import Path

from smlightning.errors import UserError
from smlightning.files import ADAPTER_CONFIG
from smlightning_sagemaker.job import source_archive

TRAINED = "trained"  # as ray_serving.py has it, which only Ray's image can import
UNNEEDED = ("train.py",)  # files of src/ that an endpoint does not need


def add_code(folder: Path, src: Path, gpus: int = 0) -> None:
    """Write code and Ray's configuration next to a trained model.

    Args:
        folder: with the job's model in its folder ``trained``.
        src: folder with predict.py.
        gpus: of one host.

    Raises:
        UserError: the model is a LoRA adapter whose base model is a path of the training host.
    """
    check_adapter(folder / TRAINED / ADAPTER_CONFIG)
    source_archive.copy(src, folder / "code", UNNEEDED)
    (folder / "config.yaml").write_text(configuration(gpus), encoding="utf-8")


def check_adapter(path: Path) -> None:
    """Check that an endpoint can load the base model that an adapter_config.json names."""
    config = json.loads(path.read_bytes()) if path.is_file() else {}
    base = str(config.get("base_model_name_or_path", ""))
    if base.startswith("/"):
        raise UserError(
            f"the model is an adapter of {base}, a path that an endpoint does not have",
            "train with --merge true, which saves the whole model (docs/how_to.md, LoRA, merges "
            "the model of a job that has ended)",
        )


def configuration(gpus: int) -> str:
    """Ray Serve's application: one replica for each GPU, or one on all CPUs.

    docs.ray.io/en/latest/serve/production-guide/config.html
    """
    return f"""\
applications:
  - name: model
    route_prefix: /
    import_path: smlightning.ray_serving:app
    deployments:
      - name: Handlers
        num_replicas: {gpus or 1}
        ray_actor_options:
          num_gpus: {1 if gpus else 0}
"""
