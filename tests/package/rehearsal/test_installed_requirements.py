"""Whether requirements.txt leaves the image's torch alone, judged by the packages here."""

from pathlib import Path

import pytest
from small_rehearsal import ROOT

from smlightning.launch.images import PROFILES, Profile
from smlightning.rehearsal.checks import FAILED, PASSED, SKIPPED
from smlightning.rehearsal.installed_requirements import requirements_keep_torch


@pytest.mark.parametrize(
    "text, image, word",
    [
        ("pytorch-lightning  # and why\n", "2.13.0", None),
        ("torch==2.13.0\ntorchvision\n", "2.13.0", None),  # pip leaves what is there
        ("torch==2.12.0\n", "2.13.0", "torch==2.12.0"),
        ("torchvision<0.20\n", "2.13.0", "torchvision<0.20"),
        ("torchaudio\n", "1.9.0", "torchaudio"),
        ("nvidia-nccl-cu12\n", "2.13.0", "nvidia-nccl-cu12"),
        ("pytorch-lightning\n", "1.9.0", "1.9.0"),
        ("pytorch-lightning==0.1\n", "2.13.0", "pytorch-lightning==0.1"),
        ("surely-no-such-package\n", "2.13.0", "surely-no-such-package"),
        ("--extra-index-url x\npackaging --hash=sha256:0 \\\n --hash=sha256:1\n", "2.13.0", None),
        ("git+https://x.y/z\n", "2.13.0", "git+https://x.y/z"),
        ("-e git+https://x.y/z\n", "2.13.0", "-e git+https://x.y/z"),
        ("-f wheels\n-i https://x.y/simple\n-c older.txt\n", "2.13.0", None),
        ("-r older.txt\n", "2.13.0", "torch==2.12.0"),
        ("--requirement older.txt\n", "2.13.0", "torch==2.12.0"),
        ("--requirement=absent.txt\n", "2.13.0", "absent.txt"),
    ],
)
def test_what_would_replace_torch_or_was_not_rehearsed_is_a_failure(
    text: str, image: str, word: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    (tmp_path / "older.txt").write_text("torch==2.12.0\n")
    packages, check = requirements_keep_torch(path, image)
    assert check.name == "requirements-keep-torch"
    assert check.verdict == (FAILED if word else PASSED) and (word or image) in check.detail
    assert not any(package.startswith(("torch==", "nvidia")) for package in packages)


def test_without_a_file_nothing_is_judged(tmp_path: Path) -> None:
    packages, check = requirements_keep_torch(tmp_path / "requirements.txt", "2.13.0")
    assert (packages, check.verdict) == ([], SKIPPED)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_projects_requirements_keep_every_images_torch(profile: Profile) -> None:
    path = ROOT / "src/requirements.txt"
    packages, check = requirements_keep_torch(path, profile.torch)
    assert check.verdict == PASSED, check.detail
    assert any(package.startswith("pytorch-lightning==") for package in packages)
