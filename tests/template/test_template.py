"""Answers become a project; bad ones become a sentence each, and nothing else."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest
import yaml
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter
from jinja2.exceptions import UndefinedError

from projects import PACKAGE, TEMPLATE, Project, bake, commit_all, copy_template, git
from smlightning.launch.account import template

SOURCE = next(TEMPLATE.glob("{{*}}"))  # what is generated, before it is
QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
ODD = {
    "project_name": "علی\u200cرضا Ünïcode & <b>\"quoted\"</b> 'name'",
    "project_slug": "odd_one-2",
    "description": (
        'Back\\slash, "quotes", \'more\', """ three, #hash, $(touch pwned), '
        "`touch pwned`, 😀 and | pipes"
    ),
    "author_name": 'Łukasz "O\'Brien" \\ 𝔐',
    "author_email": "o'brien+ml@example.co.uk",
    "license": "Apache-2.0",
    "aws_region": "eu-central-1",
    "instance_type": "ml.g5.12xlarge",
    "instance_count": "3",
    "distribution": "torch_distributed",
    "spot": True,
}


def files(project: Project) -> dict[str, bytes]:
    return {
        str(p.relative_to(project.path)): p.read_bytes()
        for p in project.path.rglob("*")
        if p.is_file()
    }


def test_default_answers(project: Project) -> None:
    assert project.path.name == "language-identification"
    made = files(project)
    for name in ("README.md", "Makefile", "pyproject.toml", "LICENSE", "job.toml", "launch.ipynb"):
        assert made[name]
    for name in (".gitignore", ".github/workflows/ci.yml", ".pre-commit-config.yaml", "AGENTS.md"):
        assert made[name]
    for name in ("train", "options", "data", "model", "predict", "dist"):
        assert made[f"src/{name}.py"]
    assert made["vendor/smlightning/smlightning/py.typed"] == b""
    left = []
    for name, content in made.items():
        if "cookiecutter" in content.decode("utf-8", "replace"):
            left.append(name)
    assert set(left) <= {"README.md", ".cruft.json"}, "template syntax or the template's name"


def test_only_a_job_in_the_environment_has_the_role_that_sends(project: Project) -> None:
    text = project.read(".github/workflows/job.yml")
    workflow = yaml.safe_load(text)
    events, jobs = workflow[True], workflow["jobs"]  # YAML 1.1 reads `on` as true
    assert {"vendor/**", "pyproject.toml", "src/**", "job.toml"} <= set(
        events["pull_request"]["paths"]
    )
    by_event = {job["if"].partition("== ")[2].strip("'"): job for job in jobs.values()}
    assert by_event.keys() == set(events)
    looking, sending = by_event["pull_request"], by_event["workflow_dispatch"]
    assert looking["env"]["AWS_ROLE_ARN"] == "${{ vars.AWS_PREFLIGHT_ROLE_ARN }}"
    assert sending["env"]["AWS_ROLE_ARN"] == "${{ vars.AWS_ROLE_ARN }}"
    assert "environment" not in looking
    parameters = yaml.safe_load(template.FILE.read_text())["Parameters"]
    assert sending["environment"] == parameters["Environment"]["Default"]
    sends = re.compile("make launch|smlightning submit")
    assert [name for name, job in jobs.items() if sends.search(str(job["steps"]))] == ["submit"]


def test_what_an_owner_gets_is_small(tmp_path: Path) -> None:
    """Outside vendor/, which nobody edits: six files in src/, and little else, in short lines."""
    project = bake(tmp_path)
    own = [p for p in project.path.rglob("*") if p.is_file()]
    own = [p for p in own if p.relative_to(project.path).parts[0] not in ("vendor", ".git")]
    assert len(own) <= 45, sorted(map(str, own))
    lines = {p: p.read_text(encoding="utf-8").splitlines() for p in own if p.suffix == ".py"}
    assert sum(map(len, lines.values())) <= 2000
    source = [p for p in lines if p.parent.name == "src"]
    assert len(source) == 6 and sum(len(lines[p]) for p in source) <= 950
    assert not [p for p in lines if max(map(len, lines[p]), default=0) > 100]


def test_tasks_differ_in_data_model_answers_and_their_tests(tmp_path: Path) -> None:
    one = bake(tmp_path / "one", project_name="Mine", description="What is it?")
    other = bake(
        tmp_path / "other", project_name="Mine", description="What is it?", task="language-model"
    )
    here, there = files(one), files(other)
    assert here.keys() == there.keys()
    differing = {name for name in here if here[name] != there[name]}
    assert differing == {
        "README.md", ".cruft.json", "src/data.py", "src/model.py", "src/options.py",
        "src/predict.py", "tests/small.py", "tests/example/conftest.py",
        "tests/example/test_data.py", "tests/example/test_model.py",
    }  # fmt: skip


def test_what_runs_is_the_same_bytes_whatever_the_answers(tmp_path: Path) -> None:
    one, other = files(bake(tmp_path / "default")), files(bake(tmp_path / "odd", **ODD))
    assert one.keys() == other.keys()
    differing = {name for name in one if one[name] != other[name]}
    assert differing <= {"README.md", "pyproject.toml", "LICENSE", "job.toml", ".cruft.json"}
    copied = ("src/", "vendor/", "tests/")
    source = {name: (SOURCE / name).read_bytes() for name in one if name.startswith(copied)}
    assert source == {name: one[name] for name in source}, "copied, and not rendered"
    assert not [name for name in one if "cache" in name or "egg-info" in name]


def generate_and_commit(template: Path, folder: Path) -> Project:
    """A project of the template in ``folder``, as its owner would keep it in git."""
    made = Project(Path(cookiecutter(str(template), no_input=True, output_dir=str(folder))))
    git(made.path, "init")
    commit_all(made.path, "first")
    return made


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def test_an_update_renews_the_package_and_leaves_the_owners_files(tmp_path: Path) -> None:
    """`make update`, after the template and the owner have both changed the same files."""
    template = copy_template(tmp_path / "template")
    git(template, "init")
    commit_all(template, "first")
    made = generate_and_commit(template, tmp_path)
    renewed = [f"{PACKAGE}/options.py", f"{PACKAGE}/testing/contract.py", "Makefile"]
    for name in (*renewed, "src/model.py", "tests/small.py"):
        append(template / SOURCE.name / name, "# newer")
    commit_all(template, "second")
    append(made.path / "src/model.py", "# mine")

    assert "commit everything first" in made.make("update", check=False).stderr
    commit_all(made.path, "mine")
    said = made.make("update").stdout
    assert "yours: src/train.py" in said.replace("\n", " ")
    for name in renewed:
        assert made.read(name).endswith("# newer\n"), name
    assert made.read("src/model.py").endswith("# mine\n")
    assert "# newer" not in made.read("src/model.py") + made.read("tests/small.py")


def test_answers_land_where_they_belong_and_are_not_executed(tmp_path: Path) -> None:
    made = bake(tmp_path, **ODD)
    assert made.path.name == ODD["project_slug"]
    meta = tomllib.loads(made.read("pyproject.toml"))["project"]
    assert meta["description"] == ODD["description"]
    assert meta["authors"] == [{"name": ODD["author_name"], "email": ODD["author_email"]}]
    assert meta["license"] == "Apache-2.0"
    job = tomllib.loads(made.read("job.toml"))
    assert (job["region"], job["instance_type"], job["instance_count"]) == (
        "eu-central-1",
        "ml.g5.12xlarge",
        3,
    )
    assert (job["distribution"], job["spot"]["enabled"]) == ("torch_distributed", True)
    assert ODD["author_name"] in made.read("LICENSE")
    assert "<b>" not in made.read("README.md")
    assert not list(tmp_path.rglob("pwned")) and not (TEMPLATE / "pwned").exists()


@pytest.mark.parametrize("license", [*QUESTIONS["license"]])
def test_licenses(license: str, tmp_path: Path) -> None:
    made = bake(tmp_path, license=license, author_name="Ada Lovelace")
    text = made.read("LICENSE")
    assert text.count("Ada Lovelace") == 1 and "{" not in text and text == text.strip() + "\n"
    assert {
        "MIT": "MIT License",
        "Apache-2.0": "Apache License",
        "BSD-3-Clause": "BSD 3-Clause",
        "proprietary": "All rights reserved",
    }[license] in text


def test_a_generated_project_passes_its_own_tests(project: Project) -> None:
    """Of the contract what is soon done: tests/package tries all of it on the same files."""
    command = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "tests"]
    project.run(*command, "-k", "example or answers or metrics_that or preflight")


def test_a_generated_project_is_formatted(project: Project) -> None:
    """As it is generated; its types are those of the template's files, which `make lint` judges."""
    project.run("python", "-m", "ruff", "check", "--output-format", "concise", ".")
    project.run("python", "-m", "ruff", "format", "--check", ".")


def test_odd_answers_pass_preflight(tmp_path: Path) -> None:
    """What runs is the same bytes whatever the answers; what they decide is the job."""
    command = ["python", "-m", "pytest", "-n", "0", "tests/test_contract.py", "-k", "preflight"]
    bake(tmp_path, **ODD).run(*command)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"project_slug": "Has Space"}, "project_slug: found 'Has Space'; expected lower-case"),
        ({"project_slug": "-x"}, "project_slug: found '-x'"),
        ({"project_slug": "x-"}, "project_slug: found 'x-'"),
        ({"project_slug": "1x"}, "project_slug: found '1x'"),
        ({"project_slug": "x" * 41}, "found 41 characters; expected at most 40"),
        ({"project_slug": "lambda"}, "a keyword of Python"),
        ({"project_slug": "torch"}, "a module the project imports"),
        ({"project_slug": "datasets"}, "a module the project imports"),
        ({"project_slug": "pytorch-lightning"}, "a module the project imports"),
        ({"project_slug": "test"}, "a module the project imports"),
        ({"project_slug": "json"}, "a module the project imports"),
        ({"project_slug": "con"}, "not a folder's name on Windows"),
        ({"project_slug": "lpt1"}, "not a folder's name on Windows"),
        (
            {"project_name": "two\nlines", "project_slug": "x"},
            "project_name: found 'two\\nlines'; expected a single",
        ),
        ({"project_name": " ", "project_slug": "x"}, "project_name: found nothing"),
        ({"author_name": "bidi\u202etxt"}, "author_name: found"),
        ({"author_email": "nobody"}, "author_email: found 'nobody'"),
        ({"aws_region": "Frankfurt"}, "aws_region: found 'Frankfurt'; expected a region such as"),
        ({"instance_type": "p4d.24xlarge"}, "expected a type such as ml.p4d.24xlarge"),
        ({"instance_count": "0"}, "instance_count: found '0'; expected a whole number from 1 to"),
        ({"instance_count": "two"}, "instance_count: found 'two'"),
        ({"distribution": "none"}, "distribution: found 'none' with 2 instances"),
        (
            {"distribution": "smddp", "instance_type": "ml.g5.12xlarge"},
            "distribution: found 'smddp' on ml.g5.12xlarge",
        ),
    ],
)  # fmt: skip
def test_a_bad_answer_is_one_line_and_leaves_nothing(
    answers: dict[str, str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(FailedHookException):
        bake(place, **answers)
    error = capfd.readouterr().err
    assert (
        len([line for line in error.splitlines() if line.startswith("  ") and said in line]) == 1
    ), error
    assert "Nothing was generated; correct 1 answer:" in error and "Traceback" not in error
    assert [p.name for p in tmp_path.rglob("*")] == ["place"]


@pytest.mark.parametrize("slug", ["../x/y", "a/b", "a\\b", "/tmp/x/y"])  # noqa: S108
def test_a_slug_with_a_slash_ends_before_a_folder_is_made(slug: str, tmp_path: Path) -> None:
    """As cookiecutter makes all its parents, and removes only the last."""
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(UndefinedError, match="project_slug: found a slash"):
        bake(place, project_slug=slug)
    assert [p.name for p in tmp_path.rglob("*")] == ["place"]


def test_every_bad_answer_is_named_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FailedHookException):
        bake(tmp_path, project_slug="torch", author_email="x", aws_region="x", instance_count="x")
    assert "correct 4 answers" in capfd.readouterr().err


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    made = bake(tmp_path)
    (made.path / "mine").write_text("kept")
    with pytest.raises(Exception, match="already exists"):
        bake(tmp_path)
    assert made.read("mine") == "kept"


def test_generating_again_takes_nothing_away(tmp_path: Path) -> None:
    made = bake(tmp_path)
    for name in ("outputs/model/weights", "prepared/x", "mine/outputs/x"):
        (made.path / name).parent.mkdir(parents=True)
        (made.path / name).write_text("kept")
    cookiecutter(str(TEMPLATE), no_input=True, output_dir=str(tmp_path), overwrite_if_exists=True)
    for name in ("outputs/model/weights", "prepared/x", "mine/outputs/x"):
        assert made.read(name) == "kept"


def test_a_name_without_letters_still_has_a_folder(tmp_path: Path) -> None:
    assert bake(tmp_path, project_name="😀").path.name == "my-project"


@pytest.mark.parametrize(
    "name", sorted({p.stem for p in TEMPLATE.glob("{{*}}/src/*.py")} | {"psutil", "smlightning"})
)
def test_what_the_project_imports_is_no_name_for_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(FailedHookException):
        bake(tmp_path, project_slug=name)


def test_every_question_is_asked_in_words(tmp_path: Path) -> None:
    asked = [name for name in QUESTIONS if not name.startswith("_")]
    assert asked == [
        "task", "project_name", "project_slug", "description", "author_name", "author_email",
        "license", "aws_region", "instance_type", "instance_count", "distribution", "spot",
    ]  # fmt: skip
    words = {
        name: q if isinstance(q, str) else q["__prompt__"]
        for name, q in QUESTIONS["__prompts__"].items()
    }
    assert list(words) == asked
    answers = [
        "1",
        "Plain Name",
        "",
        "",
        "Ada",
        "ada@example.org",
        "3",
        "eu-west-1",
        "ml.p5.48xlarge",
        "4",
        "3",
        "y",
    ]

    command = [sys.executable, "-m", "cookiecutter", str(TEMPLATE), "--output-dir", str(tmp_path)]
    environment = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "COLUMNS": "200"}
    child = pexpect.spawn(command[0], command[1:], env=environment, encoding="utf-8", timeout=60)
    for i, (name, answer) in enumerate(zip(asked, answers, strict=True), 1):
        child.expect_exact(f"[{i}/{len(asked)}] {words[name]}")
        child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    made = Project(tmp_path / "plain-name")
    assert tomllib.loads(made.read("pyproject.toml"))["project"]["license"] == "BSD-3-Clause"
    job = tomllib.loads(made.read("job.toml"))
    assert (job["region"], job["instance_type"], job["instance_count"]) == (
        "eu-west-1",
        "ml.p5.48xlarge",
        4,
    )
    assert (job["distribution"], job["spot"]["enabled"]) == ("torch_distributed", True)


def test_no_template_syntax_in_python_or_the_notebook() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=TEMPLATE, text=True, capture_output=True, check=True
    ).stdout
    for name in tracked.splitlines():
        if name.endswith((".py", ".ipynb")) and not name.startswith(("hooks/", "tests/")):
            text = (TEMPLATE / name).read_text(encoding="utf-8")
            assert not re.search(r"\{\{-? *cookiecutter|\{%", text), name
            if name.endswith(".py"):
                ast.parse(text)
