"""Odd answers become text of the project or an error: nothing is evaluated or left behind.

A portal's form gives such answers: typed at the prompts, or in a file for --replay-file.
"""

import ast
import functools
import io
import json
import random
import shutil
import tempfile
import threading
import tomllib
from collections import Counter
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cookiecutter.exceptions import CookiecutterException, FailedHookException
from cookiecutter.main import cookiecutter
from jinja2.exceptions import UndefinedError

from projects import TEMPLATE, commit_all, copy_template, git

QUESTIONS = {
    name: answer
    for name, answer in json.loads((TEMPLATE / "cookiecutter.json").read_text()).items()
    if not name.startswith("_")
}
FREE = ("project_name", "description", "author_name")
CHECKED = ("project_slug", "author_email", "aws_region", "instance_type", "instance_count")
PLAIN = {
    "project_name": "Plain",
    "project_slug": "plain",
    "description": "A plain project.",
    "author_name": "Ada",
    "author_email": "ada@example.org",
    "license": "Apache-2.0",
    "aws_region": "eu-central-1",
    "instance_type": "ml.g5.xlarge",
    "instance_count": "3",
    "distribution": "torch_distributed",
    "spot": True,
}
TEXTS = (
    "$HOME", "$(HOME)", "${HOME}", "$$HOME", "`ticks`", "a; b", "R&D", "a | b", "5 < 6", "!x",
    "{{ 7 * 6 }}", "{{ cookiecutter.project_name }}", "{% raw %}", "{# note #}", "{}", "%(x)s",
    "${{ 7 * 6 }}", "::group::x", "'", '"', "'x'", '"x"', "'''", '"""', "\\", '\\"', "\\u0022",
    "two\nlines", "[table]", 'key = "value"', "#", "- item", "key: value", "yes", "~",
    "<b>bold</b>", "[a](b)", "<!-- a -->", "&lt;", "\u202ertl", "\u2066x\u2069", "\ufeffx",
    "\x1b[1m", "\x07", "\r", "\x00", "\x7f", "\x9b31m",
    "a/b", "a\\b", "~/x", "C:\\x", "con", "-rf", "--help", "x" * 300, "", " ", "\t", "é", "😀",
    "ﷺ", "\ud83d",
)  # fmt: skip


def odd(draw: random.Random) -> dict[str, Any]:
    """Answers of which one to three are odd, most of them where any text is allowed."""
    answers = dict(PLAIN)
    for name in draw.sample((*FREE * 4, *CHECKED), draw.randint(1, 3)):
        parts = draw.choices(TEXTS, k=draw.choice((1, 1, 2, 3)))
        answers[name] = "".join(draw.choice(("", "x", " ")) + part for part in parts)
    return answers


def typed(answers: dict[str, Any]) -> str:
    """Answers as they are typed: choices by number, one answer a line."""
    lines = []
    for name, answer in answers.items():
        choices = QUESTIONS[name]
        if isinstance(choices, list):
            lines.append(str(choices.index(answer) + 1))
        elif isinstance(choices, bool):
            lines.append("y" if answer else "n")
        else:
            lines.append(str(answer))
    return "\n".join(lines) + "\n" * 20


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def recorded(project: Path) -> dict[str, Any]:
    """The answers that the project has noted for its updates."""
    link = json.loads((project / ".cruft.json").read_text(encoding="utf-8"))
    answers = link["context"]["cookiecutter"]
    return {name: answers[name] for name in QUESTIONS}


def holds(project: Path, answers: dict[str, Any]) -> bool:
    """Whether the project's files have the answers as they were given, and no more keys."""
    made = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    author = {"name": answers["author_name"], "email": answers["author_email"]}
    job = tomllib.loads((project / "job.toml").read_text(encoding="utf-8"))
    keys = {
        "region": "aws_region",
        "instance_type": "instance_type",
        "distribution": "distribution",
    }
    return (
        made["project"]["description"] == answers["description"]
        and made["project"]["authors"] == [author]
        and made["project"]["license"] == answers["license"]
        and made.keys() == {"project", "dependency-groups", "tool"}
        and all(job[key] == answers[name] for key, name in keys.items())
        and job["instance_count"] == int(answers["instance_count"])
        and job["spot"]["enabled"] == answers["spot"]
        and answers["author_name"] in (project / "LICENSE").read_text(encoding="utf-8")
        and "<b>" not in (project / "README.md").read_text(encoding="utf-8")
        and project.name == answers["project_slug"]
    )


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_odd_answers_stay_text_and_leave_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    place, temporary = tmp_path / "a/b/c/out", tmp_path / "temporary"
    for folder in (place, temporary, tmp_path / "home"):
        folder.mkdir(parents=True)
    configuration = tmp_path / "home/config.yaml"
    configuration.write_text(f"replay_dir: {tmp_path}/home/replay\n")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(place)
    before = files(tmp_path / "a")
    ended: Counter[str] = Counter()
    for number in range(25):
        answers = odd(draw)
        given: dict[str, Any] = {}
        by_file = number % 2 == 1
        if by_file:
            # cookiecutter makes the folder before any hook: a portal checks the name (SECURITY.md)
            if set("/\\\0") & set(answers["project_slug"]):
                answers["project_slug"] = "plain"
            replayed = tmp_path / "home/answers.json"
            replayed.write_text(json.dumps({"cookiecutter": answers}), encoding="utf-8")
            given["replay"] = str(replayed)
        else:
            monkeypatch.setattr("sys.stdin", io.StringIO(typed(answers)))
        try:
            made = Path(
                cookiecutter(
                    str(TEMPLATE), config_file=str(configuration), output_dir=str(place), **given
                )
            )
        except (CookiecutterException, UndefinedError, OSError, ValueError) as error:
            ended[type(error).__name__] += 1
        else:
            ended["accepted"] += 1
            assert not by_file or recorded(made) == answers
            assert holds(made, recorded(made)) and made.parent == place, answers
            shutil.rmtree(made)
        assert files(tmp_path / "a") == before, answers
        assert not files(temporary), answers
    print("ended", seed, dict(ended))
    assert ended["accepted"] and ended["FailedHookException"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("license", "BSD"),
        ("distribution", "ring"),
        ("spot", "often"),
        ("description", ["a", "b"]),
        ("instance_count", 2),
    ],
)
def test_a_replayed_answer_that_no_prompt_takes_is_rejected(
    name: str, answer: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    replayed = tmp_path / "answers.json"
    replayed.write_text(json.dumps({"cookiecutter": {**PLAIN, name: answer}}))
    with pytest.raises(FailedHookException):
        cookiecutter(str(TEMPLATE), replay=str(replayed), output_dir=str(tmp_path / "out"))
    assert f"  {name}: found" in capfd.readouterr().err
    assert not files(tmp_path / "out")


def of_the_hook(name: str) -> Any:
    """The value of a constant of the hook, which runs only where it is rendered."""
    hook = (TEMPLATE / "hooks/pre_gen_project.py").read_text(encoding="utf-8")
    (value,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(hook).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return value


def test_the_hook_knows_every_module_of_a_project() -> None:
    own = {path.stem for path in TEMPLATE.glob("{{*}}/src/*.py")}
    assert "train" in own
    assert own | {"smlightning", "torch", "datasets"} <= of_the_hook("DEPENDENCIES")


def test_the_hook_knows_every_choice() -> None:
    choices = of_the_hook("CHOICES")
    closed = {name: answer for name, answer in QUESTIONS.items() if isinstance(answer, list | bool)}
    assert choices.keys() == closed.keys()
    for name, answer in closed.items():
        assert set(choices[name]) == (set(answer) if isinstance(answer, list) else {False, True})


def test_a_project_keeps_no_credentials_of_the_templates_address(tmp_path: Path) -> None:
    """The checkout as a repository of git, at an address with a user and a password."""
    folder = copy_template(tmp_path / "t")
    git(folder, "init")
    commit_all(folder, "first")
    git(folder, "clone", "--bare", ".", str(tmp_path / "t.git"))
    git(tmp_path / "t.git", "update-server-info")
    configuration = tmp_path / "config.yaml"
    configuration.write_text(f"replay_dir: {tmp_path}\ncookiecutters_dir: {tmp_path}/cloned\n")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}/t.git"
        made = cookiecutter(
            f"http://bot:pa55word@{address}",
            no_input=True,
            config_file=str(configuration),
            output_dir=str(tmp_path / "out"),
        )
        server.shutdown()
    link = json.loads(Path(made, ".cruft.json").read_text(encoding="utf-8"))
    assert link["template"] == link["context"]["cookiecutter"]["_template"] == f"http://{address}"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://token@example.com/a/t.git", "https://example.com/a/t.git"),
        ("https://example.com/t.git?private_token=x#y", "https://example.com/t.git"),
        ("ssh://git@example.com:22/a/t.git", "ssh://git@example.com:22/a/t.git"),
        ("ssh://git:password@example.com/t.git", "ssh://git@example.com/t.git"),
        ("git+ssh://git@example.com/t.git", "git+ssh://git@example.com/t.git"),
        ("git@example.com:a/t.git", "git@example.com:a/t.git"),
        ("/srv/git/t.git", "/srv/git/t.git"),
    ],
)
def test_an_address_keeps_what_git_needs(address: str, kept: str) -> None:
    hook = ast.parse((TEMPLATE / "hooks/post_gen_project.py").read_text(encoding="utf-8"))
    (function,) = [node for node in hook.body if getattr(node, "name", "") == "without_credentials"]
    names: dict[str, Any] = {"urlsplit": urlsplit}
    exec(ast.unparse(function), names)  # noqa: S102  the hook itself runs only where it is rendered
    assert names["without_credentials"](address) == kept
