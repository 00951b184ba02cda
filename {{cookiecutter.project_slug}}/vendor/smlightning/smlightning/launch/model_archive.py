"""The archive of model and code that an inference image unpacks to /opt/ml/model."""

import json
import shutil
import tarfile
import tempfile
from pathlib import Path

from smlightning.errors import UserError
from smlightning.files import ADAPTER_CONFIG
from smlightning.launch import archive
from smlightning.launch.fetch import unpack
from smlightning.launch.inference_images import RAY, Server

TRAINED = "trained"  # as ray_serving.py looks for it, which only Ray's image can import
CODE = "code"  # where both images look for handlers, and for requirements.txt
CONFIGURATION = "config.yaml"
UNNEEDED = ("train.py",)  # of src/: an endpoint does not train


def pack(trained: Path, packed: Path, src: Path, server: Server, gpus: int = 0) -> None:
    """Write the job's model again with the code that answers for it.

    For SageMaker's toolkit the model is at the top. For Ray Serve it is in the folder trained/, so
    that a config.yaml of its own is not taken for Ray's.

    Args:
        trained: the job's own archive, or a folder of its files.
        packed: where to write.
        src: folder of the handlers, predict.py.
        server: which image's layout.
        gpus: of one host.

    Raises:
        UserError: the archive cannot be unpacked, or no host can load what is in it.
    """
    with tempfile.TemporaryDirectory(dir=packed.parent) as folder:
        place = Path(folder, TRAINED) if server is RAY else Path(folder)
        if trained.is_dir():
            shutil.copytree(trained, place, dirs_exist_ok=True)
        else:
            unpack(trained, place)
        adapter = place / ADAPTER_CONFIG
        if adapter.is_file():
            check_adapter(adapter.read_bytes())
        add_code(Path(folder), src, server, gpus)
        with tarfile.open(packed, "w:gz", compresslevel=1) as tar:  # weights hardly compress
            tar.add(folder, ".")


def add_code(folder: Path, src: Path, server: Server, gpus: int = 0) -> None:
    """Put src/, the package's training part, and Ray's configuration beside a model."""
    code = folder / CODE
    if code.is_file():
        raise UserError("the model has a file named code", "save it under another name")
    archive.copy(src, code, UNNEEDED)
    if server is RAY:
        (folder / CONFIGURATION).write_text(configuration(gpus), encoding="utf-8")


def check_adapter(config: bytes) -> None:
    """Refuse a LoRA adapter whose model a host that answers cannot have.

    Args:
        config: its adapter_config.json, as peft writes it.

    Raises:
        UserError: it names a path of the host that trained; a name on the hub can be loaded.
    """
    try:
        base = json.loads(config)["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError):
        return  # model_fn says what is wrong with it
    if isinstance(base, str) and base.startswith("/"):
        raise UserError(
            f"the model is an adapter of {base}, a path that an endpoint does not have",
            "train it with --merge true, which saves the whole model (docs/how_to.md, LoRA, says "
            "how that is done of a run that has ended)",
        )


def configuration(gpus: int) -> str:
    """Ray Serve's application: a replica for each GPU, or one on all CPUs.

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
