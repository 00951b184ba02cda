"""The archive of the code: src/ as it stands, in the same bytes each time."""

import io
import os
import shutil
import tarfile
from pathlib import Path

from smlightning_sagemaker import project
from smlightning_sagemaker.job import source_archive

SRC = project.find().src


def contents(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {each.name: tar.extractfile(each) for each in tar if each.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def written(source: Path = SRC) -> bytes:
    file = io.BytesIO()
    source_archive.write(file, source)
    return file.getvalue()


def test_it_holds_src_as_it_stands() -> None:
    files = contents(written())
    assert {"train.py", "options.py", "requirements.txt"} <= files.keys()
    assert [name for name in files if name.endswith(".whl")]
    assert not [name for name in files if "__pycache__" in name]
    assert files["train.py"] == (SRC / "train.py").read_bytes()


def test_time_and_owner_do_not_change_a_byte(tmp_path: Path) -> None:
    copy = tmp_path / "src"
    shutil.copytree(SRC, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "train.pyc").touch()
    assert written(copy) == written()
