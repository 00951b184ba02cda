"""Other tasks, written after the README alone: their files replace the example's, and all else
holds.

strangers/ has a regression and an image classifier.
"""

import ast
import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from projects import Project, bake

STRANGERS = Path(__file__).parent / "strangers"
BEST = {
    "regression": ("val/rmse", min),
    "images": ("val/f1", max),
}
CHANNEL = "s3://bucket/data/"
MEMORY = ("host_gib", "gpu_gib")  # of every project, where a machine has them


@pytest.fixture(scope="module", params=BEST)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stranger(name: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with another owner's data, model, options, predict and small.py, and a channel."""
    made = bake(tmp_path_factory.mktemp(name))
    shutil.rmtree(made.path / "tests" / "example", ignore_errors=True)
    for file in ("data.py", "model.py", "predict.py"):
        shutil.copy(STRANGERS / name / file, made.path / "src")
    shutil.copy(STRANGERS / name / "small.py", made.path / "tests")
    options = made.path / "src" / "options.py"
    options.write_text(
        edited(made.read("src/options.py"), (STRANGERS / name / "options.py").read_text("utf-8")),
        "utf-8",
    )
    job = re.sub(
        r"(?m)^(\[hyperparameters\].*\n)(?:.+\n)+", r"\1epochs = 2\n", made.read("job.toml")
    )
    job = re.sub(r"(?m)^(\[channels\].*\n)", rf'\1training = "{CHANNEL}"\n', job)
    (made.path / "job.toml").write_text(job, "utf-8")
    return made


def edited(options: str, wanted: str) -> str:
    """options.py with its classes and constants replaced by those of the same names in `wanted`."""
    replaced = definitions(wanted)
    for name, old in definitions(options).items():
        options = options.replace(old, replaced.get(name, old))
    return options


def definitions(source: str) -> dict[str, str]:
    """The text of each class and constant of a module, by name."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = "@dataclass(frozen=True)\n" + str(
                ast.get_source_segment(source, node)
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = str(ast.get_source_segment(source, node))
    return found


# In parts, since none should take long. Its options one by one: tests/package/test_contract.py.
PARTS = {
    "rehearsal": "rehearsal",
    "others": "not rehearsal and not changes_something",
}


@pytest.mark.parametrize(
    "name, part",
    [
        *(("images", part) for part in PARTS),
        pytest.param("regression", "others", marks=pytest.mark.long),
    ],
    indirect=["name"],
)
def test_the_contract_tests_pass(part: str, stranger: Project, tmp_path: Path) -> None:
    """On one rank and on several; resumed after a kill; best weights saved; rehearsed."""
    folder = tmp_path / "contract"
    command = ["python", "-m", "pytest", "-n", "0", "tests/test_contract.py", "-k", PARTS[part]]
    stranger.run(*command, "--basetemp", str(folder))
    if part == "rehearsal":
        (report,) = folder.rglob("report.json")
        judge(json.loads(report.read_text(encoding="utf-8"))["checks"])


def judge(checks: list[dict[str, str]]) -> None:
    """Every check of the contract's own rehearsal passed, but for data that lay there already."""
    verdicts = {check["name"]: check["verdict"] for check in checks}
    for name in ("data-divided", "model-predicts", "weights-identical"):
        assert verdicts[name] == "passed", checks
    skipped = {name for name, verdict in verdicts.items() if verdict == "skipped"}
    assert skipped <= {"prepare-data-once-per-node"}, checks
    assert not {"failed", "incomplete"} & set(verdicts.values()), checks
    assert all(check["detail"] for check in checks), checks


KILLED = """
import sys
from pathlib import Path
import small
from smlightning.testing import runs
place, steps = Path(sys.argv[1]), int(sys.argv[2])
options = {**small.options(place), "epochs": 3}
runs.train(place / "run", options, world_size=2, kill_at=steps + 2)
resumed, _ = runs.train(place / "run", options, world_size=2)
print(resumed["log"], end="")
"""
STEPS = 6  # of an epoch of the images' small run, on two ranks


@pytest.mark.long
@pytest.mark.parametrize("name", ["images"], indirect=True)
def test_two_ranks_resume_after_a_kill(stranger: Project, name: str, tmp_path: Path) -> None:
    """Both ranks are killed in the second epoch; the same command resumes and keeps the best."""
    command = ["python", "-c", KILLED, str(tmp_path), str(STEPS)]
    said = stranger.run(*command, PYTHONPATH=os.pathsep.join((".", "src", "tests"))).stdout
    assert f" steps={3 * STEPS} " in said, said
    at = re.search(r"resume: from .*, step (\d+) of (\d+)", said)
    assert at and STEPS <= int(at[1]) < int(at[2]), said
    metric, best = BEST[name]
    with (tmp_path / "run" / "outputs" / "curves.csv").open(newline="") as file:
        values = [float(row[metric]) for row in csv.DictReader(file) if row[metric]]
    assert len(values) == 3 and values.index(best(values)) > 0, values
    assert re.fullmatch(rf"{metric.replace('val', 'test')} \d+\.\d{{4}}", said.splitlines()[-1])


def test_the_request_has_the_metrics_and_the_channel(stranger: Project, name: str) -> None:
    request = json.loads(stranger.run("python", "-m", "smlightning", "submit", "--dry-run").stdout)
    names = (*definitions_of_metrics(name), *MEMORY)
    logged = "step=4 epoch=1 " + " ".join(f"{each}=1.5" for each in names)
    found = {each["Name"] for each in request["AlgorithmSpecification"]["MetricDefinitions"]}
    assert found == {*definitions_of_metrics(name), *MEMORY} and "val/accuracy" not in found
    for each in request["AlgorithmSpecification"]["MetricDefinitions"]:
        assert re.findall(each["Regex"], logged, re.M) == ["1.5"]
    assert [each["DataSource"]["S3DataSource"]["S3Uri"] for each in request["InputDataConfig"]] == [
        CHANNEL
    ]


def definitions_of_metrics(name: str) -> tuple[str, ...]:
    source = definitions((STRANGERS / name / "options.py").read_text("utf-8"))["METRICS"]
    return ast.literal_eval(source.partition("=")[2].strip())
