"""A project keeps every promise with another owner's files: those of an image classifier."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

from projects import Project, bake

FILES = Path(__file__).parent / "image_classifier"
CHANNEL = "s3://bucket/data/"
MEMORY = ("host_gib", "gpu_gib")  # metrics of every project


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the classifier's files, and a channel."""
    made = bake(tmp_path_factory.mktemp("images"))
    shutil.rmtree(made.path / "tests" / "example")
    for path in FILES.glob("*.py"):
        shutil.copy(path, made.path / ("tests" if path.name == "small.py" else "src"))
    job = re.sub(
        r"(?m)^(\[hyperparameters\].*\n)(?:.+\n)+", r"\1epochs = 2\n", made.read("job.toml")
    )
    job = re.sub(r"(?m)^(\[channels\].*\n)", rf'\1training = "{CHANNEL}"\n', job)
    (made.path / "job.toml").write_text(job, "utf-8")
    return made


def test_the_contract_tests_pass(classifier: Project, tmp_path: Path) -> None:
    """On one rank and on several; resumed after a kill; best weights saved; rehearsed.

    tests/package/test_contract.py changes the options.
    """
    folder = tmp_path / "contract"
    command = ["python", "-m", "pytest", "-n", "0", "tests/test_contract.py"]
    classifier.run(*command, "-k", "not changes_something", "--basetemp", str(folder))
    (report,) = folder.rglob("report.json")
    checks = json.loads(report.read_text(encoding="utf-8"))["checks"]
    verdicts = {check["name"]: check["verdict"] for check in checks}
    assert verdicts.pop("prepare-data-once-per-node") == "skipped"  # it has no prepare_data
    assert set(verdicts.values()) == {"passed"}, checks


def test_the_request_has_the_metrics_and_the_channel(classifier: Project) -> None:
    command = ("python", "-m", "smlightning", "submit", "--dry-run")
    request = json.loads(classifier.run(*command).stdout)
    names = {*runpy.run_path(str(FILES / "options.py"))["METRICS"], *MEMORY}
    logged = "step=4 epoch=1 " + " ".join(f"{name}=1.5" for name in names)
    definitions = request["AlgorithmSpecification"]["MetricDefinitions"]
    assert {definition["Name"] for definition in definitions} == names
    for definition in definitions:
        assert re.findall(definition["Regex"], logged, re.M) == ["1.5"]
    [channel] = request["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == CHANNEL
