"""Other tasks, written after the README alone: their files replace the example's, and everything else still holds.

tests/strangers/ has a regression, an image classifier and a byte language model. `runtime/`, `launch/`, `rehearsal/`
and the tests of a project are as they were generated.
"""

import ast
import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import Project, bake

STRANGERS = Path(__file__).parent / "strangers"
BEST = {"regression": ("val/rmse", min), "images": ("val/f1", max), "sequences": ("val/perplexity", min)}
CHANNEL = "s3://bucket/data/"


@pytest.fixture(scope="module", params=BEST)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stranger(name: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose owner did what the README says under "Your own task", and named its data in job.toml."""
    made = bake(tmp_path_factory.mktemp(name))
    shutil.rmtree(made.path / "tests" / "example", ignore_errors=True)
    for file in ("data.py", "model.py", "predict.py"):
        shutil.copy(STRANGERS / name / file, made.path / "src")
    shutil.copy(STRANGERS / name / "small.py", made.path / "tests")
    options = made.path / "src" / "options.py"
    options.write_text(
        edited(made.read("src/options.py"), (STRANGERS / name / "options.py").read_text("utf-8")), "utf-8"
    )
    job = re.sub(r"(?m)^(\[hyperparameters\].*\n)(?:.+\n)+", r"\1epochs = 2\n", made.read("job.toml"))
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
            found[node.name] = "@dataclass(frozen=True)\n" + str(ast.get_source_segment(source, node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = str(ast.get_source_segment(source, node))
    return found


def test_the_contract_tests_pass(stranger: Project, tmp_path: Path) -> None:
    """On one rank and on two; resumed after a kill; best weights tested and saved; rehearsed on two hosts."""
    command = ["python", "-m", "pytest", "-n", "0", "tests/contract", "--basetemp", str(tmp_path / "contract")]
    stranger.run(*command, PATH=os.environ["PATH"])
    (report,) = (tmp_path / "contract").rglob("report.json")  # of the contract's own rehearsal
    checks = {check["name"]: (check["verdict"], check["detail"]) for check in json.loads(report.read_text())["checks"]}
    assert checks["data-divided"][0] == checks["model-predicts"][0] == checks["weights-identical"][0]
    skipped = {name for name, (verdict, _) in checks.items() if verdict == "skipped"}
    assert skipped <= {"prepare-data-once-per-node"}, "the data lies there already, and nothing is prepared"
    assert all(verdict not in ("failed", "incomplete") and detail for verdict, detail in checks.values()), checks


KILLED = """
import sys
from pathlib import Path
import small
from contract import runs
place, steps = Path(sys.argv[1]), int(sys.argv[2])
options = {**small.options(place), "epochs": 3}
runs.train(place / "run", options, world_size=2, kill_at=steps + 2)
resumed, _ = runs.train(place / "run", options, world_size=2)
print(resumed["log"], end="")
"""
STEPS = {"regression": 5, "images": 6, "sequences": 8}  # of an epoch of the small run, on two ranks


def test_two_ranks_resume_after_a_kill(stranger: Project, name: str, tmp_path: Path) -> None:
    """Both ranks are killed in the second epoch; the same command resumes, and the best is not lost."""
    command = ["python", "-c", KILLED, str(tmp_path), str(STEPS[name])]
    said = stranger.run(*command, PYTHONPATH=os.pathsep.join((".", "src", "tests"))).stdout
    assert f" steps={3 * STEPS[name]} " in said, said
    at = re.search(r"resume: from .*, step (\d+) of (\d+)", said)
    assert at and STEPS[name] <= int(at[1]) < int(at[2]), said
    metric, best = BEST[name]
    with (tmp_path / "run" / "outputs" / "curves.csv").open(newline="") as file:
        values = [float(row[metric]) for row in csv.DictReader(file) if row[metric]]
    assert len(values) == 3 and values.index(best(values)) > 0, values
    assert re.fullmatch(rf"{metric.replace('val', 'test')} \d+\.\d{{4}}", said.splitlines()[-1])


def test_the_request_has_the_metrics_and_the_channel(stranger: Project, name: str) -> None:
    request = json.loads(stranger.run("python", "-m", "launch", "submit", "--dry-run").stdout)
    logged = "step=4 epoch=1 " + " ".join(f"{each}=1.5" for each in definitions_of_metrics(name))
    found = {each["Name"] for each in request["AlgorithmSpecification"]["MetricDefinitions"]}
    assert found == set(definitions_of_metrics(name)) and "val/accuracy" not in found
    for each in request["AlgorithmSpecification"]["MetricDefinitions"]:
        assert re.findall(each["Regex"], logged, re.M) == ["1.5"]
    assert [each["DataSource"]["S3DataSource"]["S3Uri"] for each in request["InputDataConfig"]] == [CHANNEL]


def definitions_of_metrics(name: str) -> tuple[str, ...]:
    source = definitions((STRANGERS / name / "options.py").read_text("utf-8"))["METRICS"]
    return ast.literal_eval(source.partition("=")[2].strip())
