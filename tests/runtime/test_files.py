"""A kill while a model replaces another one leaves a whole model or none."""

import os
import signal
import sys
from pathlib import Path

import pytest

from smlightning import files

WHOLE = {
    "config.json": "network",
    "model-00001-of-00002.safetensors": "1",
    "model-00002-of-00002.safetensors": "2",
    "model.safetensors.index.json": "index",
    "tokenizer.json": "words",
}
OTHER = {"config.json": "another network", "model.safetensors": "3", "tokenizer.json": "words"}
CHANGES = {"os.rename", "os.remove", "os.rmdir"}  # https://docs.python.org/3/library/audit_events


def write(folder: Path, model: dict[str, str]) -> None:
    with files.replace_model(folder) as new:
        for name, content in model.items():
            path = files.ensure_dir((new / name).parent) / Path(name).name
            path.write_text(content)


def read(folder: Path) -> dict[str, str] | None:
    """The model in a folder, or None."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.is_file()}
    names = {name for name in names if not name.startswith(".saving/")}
    if files.NETWORK_CONFIG not in names:
        return None
    return {name: (folder / name).read_text() for name in names}


def write_and_be_killed(folder: Path, model: dict[str, str], change: int) -> bool:
    """Write a model in a process that is killed at its n-th change; False: it made fewer."""
    process = os.fork()
    if not process:
        left = change

        def count(event: str, _arguments: object) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            write(folder, model)
        finally:
            os._exit(0)  # this is a copy of the process that runs the tests
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize(("old", "new"), [(WHOLE, OTHER), (OTHER, WHOLE), (WHOLE, WHOLE)])
def test_a_kill_leaves_one_model_or_none(
    tmp_path: Path, old: dict[str, str], new: dict[str, str]
) -> None:
    new = {name: content + " anew" for name, content in new.items()}
    left = []
    while True:
        folder = tmp_path / str(len(left))
        write(folder, old)
        if not write_and_be_killed(folder, new, len(left)):
            break
        left.append(read(folder))
        write(folder, new)  # the next run
        assert read(folder) == new and not (folder / ".saving").exists()
    assert left[0] == old and left[-1] == new, "the kills did not cover all of it"
    assert all(model in (old, None, new) for model in left)
    assert left.count(None) > 3


def test_a_model_that_could_not_be_written_leaves_the_older_one(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    (tmp_path / "code").mkdir()
    with pytest.raises(OSError, match="full"), files.replace_model(tmp_path) as new:
        (new / "model.safetensors").write_text("half")
        raise OSError("full")
    assert read(tmp_path) == WHOLE
    assert not (tmp_path / ".saving").exists()
    write(tmp_path, OTHER)
    assert read(tmp_path) == OTHER and (tmp_path / "code").exists()


def test_other_files_in_a_models_folder_stay(tmp_path: Path) -> None:
    theirs = ["model_ema.safetensors", "model-backup.safetensors", "notes.txt"]
    for name in theirs:
        path = files.ensure_dir((tmp_path / name).parent) / Path(name).name
        path.write_text("theirs")
    write(tmp_path, WHOLE)
    write(tmp_path, {**WHOLE, "config.json": "anew"})
    model = read(tmp_path)
    assert model == {**WHOLE, "config.json": "anew", **dict.fromkeys(theirs, "theirs")}
