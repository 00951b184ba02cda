"""Paths among the values of options: of a channel in the container, or of this machine."""

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
TEMPORARY = ("/tmp/", "/dev/shm/")  # noqa: S108


def is_local(text: str) -> bool:
    """Whether the text is a path of this machine, and not of the container."""
    if text.startswith("/opt/ml/") or text.strip("/.") in ("", "tmp", "dev/shm"):
        return False
    is_written = text.startswith(TEMPORARY)  # by the script itself, perhaps
    return exists(text) or bool(LOCAL.fullmatch(text) and not is_written)


def exists(text: str) -> bool:
    """Whether there is something here at a path; a mere name is no path."""
    # Path.exists raises where a text is too long for a path.
    return "/" in text and os.path.exists(Path(text).expanduser())  # noqa: PTH110


def is_file(text: str) -> bool:
    """Whether the text is the path of a file here."""
    return os.path.isfile(Path(text).expanduser())  # noqa: PTH113  which takes any length


def channel_of(option: str, text: str) -> str:
    """The channel that an option with this value reads; empty for none."""
    if option == "dataset" and text == DATASET:
        return DATASET
    if text.startswith(CHANNELS):
        return text.removeprefix(CHANNELS).split("/")[0]
    return ""
