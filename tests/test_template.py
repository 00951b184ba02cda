"""Answers become a project; bad ones become a sentence each, and nothing else."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest
from conftest import TEMPLATE, Project, bake
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter

SOURCE = next(TEMPLATE.glob("{{*}}"))  # what is generated, before it is
QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
ODD = {
    "project_name": "علی\u200cرضا Ünïcode & <b>\"quoted\"</b> 'name'",
    "project_slug": "odd_one-2",
    "description": 'Back\\slash, "quotes", \'more\', """ three, #hash, $(touch pwned), `touch pwned`, 😀 and | pipes',
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
    return {str(p.relative_to(project.path)): p.read_bytes() for p in project.path.rglob("*") if p.is_file()}


def test_default_answers(project: Project) -> None:
    assert project.path.name == "language-identification"
    made = files(project)
    for name in (
        "README.md",
        "Makefile",
        "pyproject.toml",
        ".gitignore",
        "LICENSE",
        ".github/workflows/ci.yml",
        "job.toml",
    ):
        assert made[name]
    for name in ("train", "options", "data", "model", "predict", "dist", "runtime/ranks", "runtime/checkpoints"):
        assert made[f"src/{name}.py"]
    left = [name for name in made if "cookiecutter" in made[name].decode("utf-8", "replace") and name != "README.md"]
    left = [name for name in left if not name.startswith("tests/") and name != ".cruft.json"]
    assert not left, f"template syntax or the template's name in {left}"


def test_what_runs_is_the_same_bytes_whatever_the_answers(tmp_path: Path) -> None:
    one, other = files(bake(tmp_path / "default")), files(bake(tmp_path / "odd", **ODD))
    assert one.keys() == other.keys()
    differing = {name for name in one if one[name] != other[name]}
    assert differing <= {"README.md", "pyproject.toml", "LICENSE", "job.toml", ".cruft.json"}
    source = {
        p.relative_to(SOURCE).as_posix(): p.read_bytes()
        for p in (SOURCE / "src").rglob("*.*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert source == {name: content for name, content in one.items() if name.startswith("src/")}


def test_an_update_renews_the_machinery_and_leaves_the_owners_files(tmp_path: Path) -> None:
    """`make update`, after the template and the owner have both changed the same files."""

    def git(folder: Path, *words: str) -> None:
        name = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
        subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)

    template = tmp_path / "template"
    shutil.copytree(
        TEMPLATE, template, ignore=shutil.ignore_patterns(".git", ".venv", "build", "*cache*", ".hypothesis")
    )
    git(template, "init")
    git(template, "add", "-A")
    git(template, "commit", "-m", "first")
    made = Project(Path(cookiecutter(str(template), no_input=True, output_dir=str(tmp_path))))
    git(made.path, "init")
    git(made.path, "add", "-A")
    git(made.path, "commit", "-m", "first")
    source = template / SOURCE.name
    for name in ("src/runtime/seeds.py", "src/model.py", "tests/contract/runs.py", "Makefile"):
        with (source / name).open("a", encoding="utf-8") as file:
            file.write("# newer\n")
    git(template, "commit", "-am", "second")
    with (made.path / "src/model.py").open("a", encoding="utf-8") as file:
        file.write("# mine\n")

    environment = Path(sys.executable).parent.parent
    update = ["make", "update", f"VENV={environment}", "-o", f"{environment}/.update"]
    assert "commit everything first" in made.run(*update, check=False).stderr
    git(made.path, "commit", "-am", "mine")
    said = made.run(*update).stdout
    assert "yours: src/train.py" in said.replace("\n", " ")
    for name in ("src/runtime/seeds.py", "tests/contract/runs.py", "Makefile"):
        assert made.read(name).endswith("# newer\n"), name
    assert made.read("src/model.py").endswith("# mine\n") and "# newer" not in made.read("src/model.py")


def test_answers_land_where_they_belong_and_are_not_executed(tmp_path: Path) -> None:
    made = bake(tmp_path, **ODD)
    assert made.path.name == ODD["project_slug"]
    meta = tomllib.loads(made.read("pyproject.toml"))["project"]
    assert meta["description"] == ODD["description"]
    assert meta["authors"] == [{"name": ODD["author_name"], "email": ODD["author_email"]}]
    assert meta["license"] == "Apache-2.0"
    job = tomllib.loads(made.read("job.toml"))
    assert (job["region"], job["instance_type"], job["instance_count"]) == ("eu-central-1", "ml.g5.12xlarge", 3)
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


def test_a_generated_project_passes_its_own_tests_and_the_machinerys(tmp_path: Path) -> None:
    made = bake(tmp_path)
    for tool in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):  # and mypy: make lint
        made.run("python", "-m", *tool)
    shutil.copytree(Path(__file__).parent / "machinery", made.path / "tests", dirs_exist_ok=True)
    made.run("python", "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "tests")


def test_odd_answers_pass_preflight(tmp_path: Path) -> None:
    """What runs is the same bytes whatever the answers; what they decide is the job."""
    bake(tmp_path, **ODD).run("python", "-m", "pytest", "-n", "0", "tests/contract", "-k", "preflight")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"project_slug": "Has Space"}, "project_slug: found 'Has Space'; expected lower-case"),
        ({"project_slug": "-x"}, "project_slug: found '-x'"),
        ({"project_slug": "x-"}, "project_slug: found 'x-'"),
        ({"project_slug": "1x"}, "project_slug: found '1x'"),
        ({"project_slug": "../x"}, "project_slug: found '../x'"),
        ({"project_slug": "x" * 41}, "found 41 characters; expected at most 40"),
        ({"project_slug": "lambda"}, "a keyword of Python"),
        ({"project_slug": "torch"}, "a module the project imports"),
        ({"project_slug": "datasets"}, "a module the project imports"),
        ({"project_slug": "pytorch-lightning"}, "a module the project imports"),
        ({"project_slug": "test"}, "a module the project imports"),
        ({"project_slug": "json"}, "a module the project imports"),
        ({"project_slug": "con"}, "not a folder's name on Windows"),
        ({"project_slug": "lpt1"}, "not a folder's name on Windows"),
        ({"project_name": "two\nlines", "project_slug": "x"}, "project_name: found 'two\\nlines'; expected a single"),
        ({"project_name": " ", "project_slug": "x"}, "project_name: found nothing"),
        ({"author_name": "bidi\u202etxt"}, "author_name: found"),
        ({"author_email": "nobody"}, "author_email: found 'nobody'"),
        ({"aws_region": "Frankfurt"}, "aws_region: found 'Frankfurt'; expected a region such as us-east-1"),
        ({"instance_type": "p4d.24xlarge"}, "expected a type such as ml.p4d.24xlarge"),
        ({"instance_count": "0"}, "instance_count: found '0'; expected a whole number from 1 to 999"),
        ({"instance_count": "two"}, "instance_count: found 'two'"),
        ({"distribution": "none"}, "distribution: found 'none' with 2 instances"),
        ({"distribution": "smddp", "instance_type": "ml.g5.12xlarge"}, "distribution: found 'smddp' on ml.g5.12xlarge"),
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
    assert len([line for line in error.splitlines() if line.startswith("  ") and said in line]) == 1, error
    assert "Nothing was generated; 1 answer to mend" in error and "Traceback" not in error
    assert [p.name for p in tmp_path.rglob("*")] == ["place"]


def test_every_bad_answer_is_named_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FailedHookException):
        bake(tmp_path, project_slug="torch", author_email="x", aws_region="x", instance_count="x")
    assert "4 answers to mend" in capfd.readouterr().err


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


@pytest.mark.parametrize("name", sorted({p.stem for p in TEMPLATE.glob("{{*}}/src/*.py")} | {"psutil", "runtime"}))
def test_what_the_project_imports_is_no_name_for_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(FailedHookException):
        bake(tmp_path, project_slug=name)


def test_every_question_is_asked_in_words(tmp_path: Path) -> None:
    asked = [name for name in QUESTIONS if not name.startswith("_")]
    assert asked == [
        "project_name", "project_slug", "description", "author_name", "author_email", "license", "aws_region",
        "instance_type", "instance_count", "distribution", "spot",
    ]  # fmt: skip
    words = {name: q if isinstance(q, str) else q["__prompt__"] for name, q in QUESTIONS["__prompts__"].items()}
    assert list(words) == asked
    answers = ["Plain Name", "", "", "Ada", "ada@example.org", "3", "eu-west-1", "ml.p5.48xlarge", "4", "3", "y"]

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
    assert (job["region"], job["instance_type"], job["instance_count"]) == ("eu-west-1", "ml.p5.48xlarge", 4)
    assert (job["distribution"], job["spot"]["enabled"]) == ("torch_distributed", True)


def test_no_template_syntax_in_python_or_the_notebook() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=TEMPLATE, text=True, capture_output=True, check=True).stdout
    for name in tracked.splitlines():
        if name.endswith((".py", ".ipynb")) and not name.startswith(("hooks/", "tests/")):
            text = (TEMPLATE / name).read_text(encoding="utf-8")
            assert not re.search(r"\{\{-? *cookiecutter|\{%", text), name
            if name.endswith(".py"):
                ast.parse(text)
