"""Answers become a project; a bad answer becomes one line, and no project."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from cookiecutter.environment import StrictEnvironment
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter
from jinja2.exceptions import UndefinedError

from projects import TEMPLATE, Project, bake, commit_all, copy_template, git, need
from smlightning import __version__

SOURCE = next(TEMPLATE.glob("{{*}}"))  # what is generated, before it is
ODD = {
    "project_name": "علی\u200cرضا Ünïcode & <b>\"quoted\"</b> 'name'",
    "project_slug": "odd_one-2",
    "description": (
        'Back\\slash, "quotes", \'more\', """ three, #hash, $HOME, '
        "`ticks`, {{ 7 * 6 }}, 😀 and | pipes"
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


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with odd answers."""
    return bake(tmp_path_factory.mktemp("odd"), **ODD)


def test_only_a_job_in_the_environment_has_the_role_that_sends(project: Project) -> None:
    text = project.read(".github/workflows/job.yml")
    workflow = yaml.safe_load(text)
    events, jobs = workflow[True], workflow["jobs"]  # YAML 1.1 reads `on` as true
    assert {"tools/**", "pyproject.toml", "src/**", "job.toml"} <= set(
        events["pull_request"]["paths"]
    )
    by_event = {job["if"].partition("== ")[2].strip("'"): job for job in jobs.values()}
    assert by_event.keys() == set(events)
    looking, sending = by_event["pull_request"], by_event["workflow_dispatch"]
    assert looking["env"]["AWS_ROLE_ARN"] == "${{ vars.AWS_PREFLIGHT_ROLE_ARN }}"
    assert sending["env"]["AWS_ROLE_ARN"] == "${{ vars.AWS_ROLE_ARN }}"
    assert "environment" not in looking
    assert f"Default: {sending['environment']}\n" in project.read("infra/cloudformation.yaml")
    sends = re.compile("make launch|smlightning(_sagemaker)? submit")
    assert [name for name, job in jobs.items() if sends.search(str(job["steps"]))] == ["submit"]


def test_the_files_that_run_do_not_depend_on_the_answers(tmp_path: Path) -> None:
    one, other = files(bake(tmp_path / "default")), files(bake(tmp_path / "odd", **ODD))
    assert one.keys() == other.keys()
    differing = {name for name in one if one[name] != other[name]}
    differing = {name for name in differing if not name.startswith("infra/")}
    rendered = {"README.md", "pyproject.toml", "LICENSE", "job.toml", ".cruft.json"}
    assert differing <= {*rendered, "launch.ipynb"}
    copied = ("src/", "tools/", "tests/")
    source = {name: (SOURCE / name).read_bytes() for name in one if name.startswith(copied)}
    assert source == {name: one[name] for name in source}, "copied, and not rendered"
    assert not [name for name in one if "cache" in name or "egg-info" in name]


def test_the_notebook_shows_the_projects_name_and_region(tmp_path: Path) -> None:
    stored = json.loads((SOURCE / "launch.ipynb").read_text(encoding="utf-8"))
    made = bake(tmp_path, **ODD).read("launch.ipynb")
    assert "'odd-one-2'" in made and "eu-central-1.console" in made
    assert "language-identification" not in made and "us-east-1" not in made
    sources = [cell["source"] for cell in json.loads(made)["cells"]]
    assert sources == [cell["source"] for cell in stored["cells"]]


def test_a_second_demo_has_the_first_ones_outputs(tmp_path: Path) -> None:
    """So it resumes; all else of the project is made anew."""
    need("git")
    template = copy_template(tmp_path / "template")
    made = template / "build/language-identification"
    for name in ("outputs/checkpoints/newest", "prepared/rows", "src/old.py", ".hidden/old"):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    words = ["make", "project", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.template"]
    subprocess.run(words, cwd=template, check=True)
    kept = ("outputs/checkpoints/newest", "prepared/rows", "src/train.py")
    assert all((made / name).exists() for name in kept)
    assert not (made / "src/old.py").exists() and not (made / ".hidden").exists()


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@pytest.mark.long
def test_an_update_renews_the_wheels_and_leaves_the_owners_files(tmp_path: Path) -> None:
    """`make update`, after the template and the owner have both changed the same files."""
    template = copy_template(tmp_path / "template")
    git(template, "init")
    commit_all(template, "first")
    made = Project(Path(cookiecutter(str(template), no_input=True, output_dir=str(tmp_path))))
    git(made.path, "init")
    commit_all(made.path, "first")
    updated = ("AGENTS.md", "Makefile", ".github/requirements.in")
    owned = (
        "src/model.py",
        "tests/small.py",
        "infra/cloudformation.yaml",
        ".github/workflows/ci.yml",
    )
    for name in (*updated, *owned):
        append(template / SOURCE.name / name, "# newer")
    version = template / "packages/smlightning/smlightning/__init__.py"
    version.write_text(version.read_text().replace(__version__, "9.9.9"), encoding="utf-8")
    subprocess.run([sys.executable, template / "packages/build_wheels.py"], check=True)
    commit_all(template, "second")
    append(made.path / "src/model.py", "# mine")
    append(made.path / "src/requirements.in", "six")

    assert "commit everything first" in made.make("update", check=False).stderr
    commit_all(made.path, "mine")
    made.make("update")
    for name in updated:
        assert made.read(name).endswith("# newer\n"), name
    assert made.read("src/model.py").endswith("# mine\n")
    for name in owned:
        assert "# newer" not in made.read(name), name
    for folder in ("src", "tools"):
        (wheel,) = (made.path / folder).glob("*.whl")
        assert "9.9.9" in wheel.name
    wheel = next((made.path / "src").glob("*.whl"))
    lock = made.read("src/requirements.txt")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert f"./{wheel.name} \\\n    --hash=sha256:{digest}\n" in lock and "\nsix==" in lock


LICENSES = {
    "MIT": "MIT License",
    "Apache-2.0": "Apache License",
    "BSD-3-Clause": "BSD 3-Clause",
    "proprietary": "All rights reserved",
}


@pytest.mark.parametrize("license", LICENSES)
def test_a_project_has_its_license(license: str, tmp_path: Path) -> None:
    made = bake(tmp_path, license=license, author_name="Ada Lovelace")
    text = made.read("LICENSE")
    assert text.count("Ada Lovelace") == 1 and "{" not in text and LICENSES[license] in text
    assert tomllib.loads(made.read("pyproject.toml"))["project"]["license"]


@pytest.mark.long
def test_a_project_with_odd_answers_passes_its_own_tests(odd: Project) -> None:
    """The example's tests, and preflight: tests/runtime has the contract, on the same files."""
    command = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "tests"]
    odd.run(*command, "-k", "example or preflight")


def test_a_generated_project_is_formatted(project: Project) -> None:
    project.run("python", "-m", "ruff", "check", "--output-format", "concise", ".")
    project.run("python", "-m", "ruff", "format", "--check", ".")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"project_slug": "Has Space"}, "project_slug: found 'Has Space'; expected lower-case"),
        ({"project_slug": "-x"}, "project_slug: found '-x'"),
        ({"project_slug": "x-"}, "project_slug: found 'x-'"),
        ({"project_slug": "1x"}, "project_slug: found '1x'"),
        ({"project_slug": "x" * 41}, "found 41 characters; expected at most 40"),
        ({"project_slug": "lambda"}, "a keyword of Python"),
        ({"project_slug": "pytorch-lightning"}, "a module the project imports"),
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
    assert [line for line in error.splitlines() if line.startswith("  ") and said in line]
    assert "Traceback" not in error
    assert [p.name for p in tmp_path.rglob("*")] == ["place"]


@pytest.mark.parametrize("slug", ["../x/y", "a/b", "a\\b", "/tmp/x/y"])  # noqa: S108
def test_a_slug_with_a_slash_ends_before_a_folder_is_made(slug: str, tmp_path: Path) -> None:
    """cookiecutter would create all parent folders, and remove only the last one."""
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(UndefinedError, match="project_slug: found a slash"):
        bake(place, project_slug=slug)
    assert [p.name for p in tmp_path.rglob("*")] == ["place"]


def test_an_old_cookiecutter_ends_in_a_sentence(tmp_path: Path) -> None:
    """1.7 does not render names that begin with ``__``, and asked for __prompts__ without end; 2.1
    writes a boolean as text.
    """
    answers = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
    environment = StrictEnvironment(context={"cookiecutter": answers})
    slug = environment.from_string(answers["project_slug"])
    assert slug.render(cookiecutter={"__rendered": "x", "project_name": "A b"}) == "a-b"
    with pytest.raises(UndefinedError, match=r"old cookiecutter; expected 2\.4 or newer"):
        slug.render(cookiecutter=answers)
    hook = (TEMPLATE / "hooks/pre_gen_project.py").read_text(encoding="utf-8")
    script = tmp_path / "hook.py"
    old = {**ODD, "spot": "False"}
    script.write_text(environment.from_string(hook).render(cookiecutter=old), encoding="utf-8")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ended.returncode == 1 and "expected 2.4 or newer" in ended.stderr


def test_every_bad_answer_is_reported_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FailedHookException):
        bake(tmp_path, project_slug="torch", author_email="x", aws_region="x", instance_count="x")
    error = capfd.readouterr().err
    for name in ("project_slug", "author_email", "aws_region", "instance_count"):
        assert f"  {name}: found" in error


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
