"""Paths among the values of options: of a channel in the container, or of this machine."""

import os
import re

from smlightning import hub
from smlightning.data.channel import CHANNEL
from smlightning_sagemaker.project import Project

CHANNELS = "/opt/ml/input/data/"  # where the container finds them
DATA_FILE = re.compile(
    r".*\.(csv|tsv|jsonl|parquet|arrow|npy|npz|h5|zip|gz|ckpt|pth?|safetensors)", re.I
)
# A text that can only be a path of this machine.
LOCAL = re.compile(rf"(?!\w+://|/opt/ml/)((\.\.?[/\\]|~|[a-z]:[/\\]).*|{DATA_FILE.pattern})", re.I)
RELATIVE = re.compile(r"(?!\w+://)[^/]+/|\.")
OF_HUB = ("dataset", "model_name")  # options whose value is a path or a name on the hub
# Folders that SageMaker copies to S3.
KEPT = r"/opt/ml/(model|checkpoints|output/data)(/.*)?"
# A folder of a person, in any text.
OF_PERSON = re.compile(
    r"(?<![\w.~-])(/home/|/Users/|[A-Za-z]:[\\/]+Users[\\/]+)[\w.-]+[\\/][^\s\"'`,;)]*"
)
OF_SYSTEM = re.compile(
    r"/(opt|usr|etc|s?bin|lib\w*|var|dev|proc|sys|tmp)(/|$)"
)  # images have them, too
TEMPORARY = ("/tmp/", "/dev/shm/")  # noqa: S108


def is_local(option: str, text: str) -> bool:
    """Whether the value of an option is a path of this machine, and not of the container."""
    if text.startswith("/opt/ml/") or text.strip("/.") in ("", "tmp", "dev/shm"):
        return False
    if exists(text):
        return True
    if text.startswith(TEMPORARY):  # by the script itself, perhaps
        return False
    is_no_name = option in OF_HUB and RELATIVE.match(text) and not hub.NAME.fullmatch(text)
    return bool(LOCAL.fullmatch(text) or is_no_name)


def of_this_machine(text: str) -> str:
    """The path of this machine in a text, outside of the folders that images have; empty: none."""
    if found := OF_PERSON.search(text):
        return found[0]
    is_path = text.startswith(("/", "~/")) and exists(text)
    return text if is_path and not OF_SYSTEM.match(text) else ""


def is_in_source(project: Project, text: str) -> bool:
    """Whether the text is a path in src/, which is uploaded, and in which train.py starts."""
    is_inside = not text.startswith(("/", "~")) and ".." not in re.split(r"[/\\]", text)
    return is_inside and exists(f"{project.src}/{text}")


def exists(text: str) -> bool:
    """Whether there is something here at a path; a mere name is no path."""
    # Path's methods raise where a text is too long for a path, or has an unknown user.
    return "/" in text and os.path.exists(os.path.expanduser(text))  # noqa: PTH110, PTH111


def is_file(text: str) -> bool:
    """Whether the text is the path of a file here."""
    return os.path.isfile(os.path.expanduser(text))  # noqa: PTH111, PTH113


def channel_of(option: str, text: str) -> str:
    """The channel that an option with this value reads; empty for none."""
    if option == "dataset" and text == CHANNEL:
        return text
    if text.startswith(CHANNELS):
        return text.removeprefix(CHANNELS).split("/")[0]
    return ""
