"""Fetching a job's model, and archives that may not be unpacked."""

import errno
import tarfile
from pathlib import Path

import pytest

from moto_account import REGION
from sent_job import archive, put
from smlightning.errors import UserError
from smlightning_sagemaker.follow import fetch

pytest_plugins = ("moto_account", "sent_job")


def test_fetch_brings_model_and_curves(aws, sent, tmp_path):
    put(aws, sent, archive(("./", tarfile.DIRTYPE, b""), ("./config.json", tarfile.REGTYPE, b"{}")))
    put(aws, sent, archive(("curves.csv", tarfile.REGTYPE, b"step\n")), "output.tar.gz")
    folder = fetch.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) == [
        "config.json",
        "output",
        "output/curves.csv",
    ]
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["x"]
    with pytest.raises(UserError) as raised:
        fetch.fetch(sent.training_job_name, REGION, folder)
    assert str(folder) in raised.value.problem and "--to" in raised.value.hint


def test_fetch_does_not_replace_the_current_folder(sent, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(UserError, match="exists already"):
        fetch.fetch(sent.training_job_name, REGION, Path())


@pytest.mark.parametrize(
    "body",
    [
        archive(("../up", tarfile.REGTYPE, b"x")),
        archive(("a", tarfile.REGTYPE, b"x"), ("b", tarfile.SYMTYPE, b"a")),
        archive(("dev", tarfile.CHRTYPE, b"")),
        archive(("fifo", tarfile.FIFOTYPE, b"")),
        archive(("link", tarfile.LNKTYPE, b"nothing")),
        archive(("config.json", tarfile.REGTYPE, b"x" * 10_000))[:60],
        b"no archive",
        b"",
    ],
    ids=[
        "parent",
        "link",
        "device",
        "fifo",
        "hard link to nothing",
        "cut off",
        "text",
        "empty",
    ],
)
def test_fetch_rejects_what_leads_out_or_is_damaged(aws, sent, tmp_path, body):
    put(aws, sent, body)
    with pytest.raises(UserError, match="archive"):
        fetch.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")
    assert not list((tmp_path / "models").iterdir()) and not list(tmp_path.glob("up"))


def test_an_archive_with_links_and_a_full_disk_have_their_own_errors(tmp_path, monkeypatch):
    path = tmp_path / "model.tar.gz"
    path.write_bytes(archive(("a", tarfile.REGTYPE, b"x"), ("b", tarfile.SYMTYPE, b"a")))
    with pytest.raises(UserError) as raised:
        fetch.unpack(path, tmp_path / "model")
    assert raised.value.problem.startswith("the archive has symbolic links")
    assert "copies" in raised.value.hint
    path.write_bytes(archive(("a", tarfile.REGTYPE, b"x")))

    def full(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    with pytest.raises(OSError, match="No space left"):
        fetch.unpack(path, tmp_path / "model")


def test_fetch_rejects_a_model_with_a_file_named_output(aws, sent, tmp_path):
    put(aws, sent, archive(("output", tarfile.REGTYPE, b"x")))
    with pytest.raises(UserError, match="contains `output`"):
        fetch.fetch(sent.training_job_name, REGION, tmp_path / "models" / "x")


def test_fetch_without_a_model(aws, sent, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="s3://language-id/"):
        fetch.fetch(sent.training_job_name, REGION, tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "describe", lambda *_: {"TrainingJobStatus": "Failed"})
        with pytest.raises(UserError, match="smlightning follow"):
            fetch.fetch(sent.training_job_name, REGION, tmp_path / "x")
    sent.training_job_status = "InProgress"
    with pytest.raises(UserError, match="InProgress"):
        fetch.fetch(sent.training_job_name, REGION, tmp_path / "x")


def test_a_key_that_leads_out_of_the_folder_is_rejected(tmp_path: Path) -> None:
    class Bucket:
        def download_file(self, bucket: str, name: str, path: str) -> None:
            Path(path).write_text(name)

    listed = [{"Key": name} for name in ("m/a", "m/../../up")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch.aws, "all_objects", lambda uri, s3: listed)
        with pytest.raises(UserError, match="s3://bucket/"):
            fetch.download_folder(Bucket(), "s3://bucket/m/", tmp_path / "model")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "a"]
