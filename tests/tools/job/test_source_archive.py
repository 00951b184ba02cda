"""The archive of the code: src/, and the package's training part, in the same bytes each time."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from smlightning.errors import UserError
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


def test_it_holds_src_and_the_packages_training_part() -> None:
    files = contents(written())
    top = {name.split("/")[0] for name in files}
    assert {"train.py", "options.py", "requirements.txt", "smlightning"} <= top
    parts = {name.split("/")[1] for name in files if name.startswith("smlightning/")}
    assert {"cluster", "data", "checkpoints", "errors.py", "py.typed"} <= parts
    assert not parts & {"launch", "rehearsal", "testing", "__main__.py"}
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


def test_what_it_holds_is_enough_to_import_train(tmp_path: Path) -> None:
    """The process has neither the project nor the package's other parts on its path."""
    with tarfile.open(fileobj=io.BytesIO(written())) as tar:
        tar.extractall(tmp_path, filter="data")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import smlightning, train\n"
        "print(smlightning.__file__)\n"
        "heavy = {'boto3', 'pydantic', 'psutil', 'sagemaker'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_a_module_of_src_may_not_hide_the_package(tmp_path: Path) -> None:
    (tmp_path / "smlightning.py").touch()
    with pytest.raises(UserError) as raised:
        source_archive.files(tmp_path)
    assert "smlightning.py" in raised.value.problem
