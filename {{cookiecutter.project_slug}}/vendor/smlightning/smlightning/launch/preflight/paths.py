"""What a text of job.toml can be a path of: the container's channels, or this machine."""

import os
import re
from pathlib import Path

CHANNELS = "/opt/ml/input/data/"  # where the container finds them
DATASET = "training"  # the channel that --dataset names (data/tables.py, CHANNEL)
DATA_FILE = re.compile(
    r".*\.(csv|tsv|jsonl|parquet|arrow|npy|npz|h5|zip|gz|ckpt|pth?|safetensors)", re.I
)
# A text that can only be a path of this machine.
LOCAL = re.compile(rf"(?!\w+://|/opt/ml/)((\.\.?[/\\]|~|[a-z]:[/\\]).*|{DATA_FILE.pattern})", re.I)


def expanded(text: str) -> str:
    """The text with this user's folder in place of ``~/``."""
    return f"{Path.home()}{text[1:]}" if text.startswith("~/") else text


def only_local(text: str) -> bool:
    """Whether the text can only be a path of this machine."""
    return bool(LOCAL.fullmatch(text))


def on_no_host(text: str, *, private_image: bool) -> bool:
    """Whether a path of this machine cannot be there on a host, too.

    Of AWS's images it is known what they hold; an image of one's own may hold any path, and a
    script may write to folders for temporary files.

    Args:
        text: for which `only_local` is true, and which is no file of src/.
        private_image: the job's image is none of AWS's.
    """
    if re.match(r"[a-z]:[/\\]", text, re.I):  # of Windows
        return True
    return not private_image and not text.startswith(("/tmp/", "/dev/shm/"))  # noqa: S108


def exists(text: str) -> bool:
    """Whether the text is meant as a path, which a name alone is not, and something is there."""
    meant = only_local(text) or "/" in text
    # Path.exists raises where a text is too long for a path.
    return meant and os.path.exists(expanded(text))  # noqa: PTH110


def is_file(text: str) -> bool:
    """Whether the text is the path of a file that is there."""
    return exists(text) and os.path.isfile(expanded(text))  # noqa: PTH113


def in_every_container(text: str) -> bool:
    """Whether each container has the path."""
    return text.startswith("/opt/ml/") or text.strip("/.") in ("", "tmp", "dev/shm")


def channel_of(option: str, text: str) -> str:
    """The channel that an option with this value reads; empty for none."""
    if option == "dataset" and text == DATASET:
        return DATASET
    if text.startswith(CHANNELS):
        return text.removeprefix(CHANNELS).split("/")[0]
    return ""
