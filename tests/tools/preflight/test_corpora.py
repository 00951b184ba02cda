"""Preflight accepts every job of right_jobs.toml, and reports every mistake of mistakes.toml."""

import argparse
import contextlib
import dataclasses
import io
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from options import Options
from small_job import PROJECT, ROLE, document
from smlightning.errors import UserError
from smlightning.options import option
from smlightning_sagemaker import commands, findings, preflight
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job import job, request
from smlightning_sagemaker.preflight import requirements, secrets, source
from smlightning_sagemaker.project import Project

HERE = Path(__file__).parent
RIGHT: list[dict[str, Any]] = tomllib.loads((HERE / "right_jobs.toml").read_text())["job"]
MISTAKES: list[dict[str, Any]] = tomllib.loads((HERE / "mistakes.toml").read_text())["mistake"]
AS_ANSWERED = tomllib.loads(PROJECT.job_file.read_text(encoding="utf-8"))  # job.toml as generated
BASE = {**AS_ANSWERED, "role": ROLE}
# src/ of the project itself is checked once, in test_uploaded_code.py.
OF_JOB = tuple(
    check
    for check in preflight.CHECKS
    if check not in (secrets.in_files, source.complete, source.left_out, source.hidden, source.size)
)


def table(case: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """The content of job.toml: a base, and what the case sets in it."""
    content = json.loads(json.dumps(base))
    for name, value in case.get("set", {}).items():
        if isinstance(value, dict) and isinstance(content.get(name), dict):
            content[name].update(value)
        else:
            content[name] = value
    return content


def project(case: dict[str, Any], folder: Path) -> Project:
    """The project, with other files in its src/ where the case has some."""
    files = dict(case.get("src", {}))
    if "requirements" in case:
        files["requirements.txt"] = case["requirements"]
    if not files:
        return PROJECT
    shutil.copytree(PROJECT.src, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "src" / name).write_text(text)
    return Project(folder)


def found(case: dict[str, Any], folder: Path, base: dict[str, Any]) -> list[Finding]:
    """Every finding that needs no network: of the file, of the job, of a search."""
    here = project(case, folder)
    try:
        wanted = job.from_table(table(case, base), here)
    except job.JobError as wrong:
        return wrong.findings
    with pytest.MonkeyPatch.context() as patch:
        if here is PROJECT:
            patch.setattr(preflight, "CHECKS", OF_JOB)
        return preflight.offline_checks(wanted, here)[0]


def name(case: dict[str, Any]) -> str:
    return str(case["what"])


@pytest.mark.parametrize("case", RIGHT, ids=name)
def test_a_right_job_has_no_error(case, tmp_path, monkeypatch):
    """A setting that is seldom right may cause a warning, with its reason."""
    usual = {"name": "right", "instance_type": "ml.g5.12xlarge", "instance_count": 2}
    if "option" in case:
        field = (case["option"], str, option("", "an option of the owner's"))
        mine = dataclasses.make_dataclass("Mine", [field], bases=(Options,), frozen=True)
        monkeypatch.setattr("options.Options", mine)
    results = found(case, tmp_path, {**BASE, **usual})
    assert not findings.has_errors(results), [str(each) for each in results]


@pytest.mark.parametrize("case", MISTAKES, ids=name)
def test_a_mistake_is_found_with_a_hint(case, tmp_path):
    """And where it is meant, `--accept KEY` makes a warning of it."""
    results = found(case, tmp_path, BASE)
    named = [each for each in results if each.key == case["key"]]
    levels = [each.level for each in named]
    assert case.get("level", "error") in levels, [str(each) for each in results]
    assert any(case.get("hint", "") in each.hint for each in named), [str(each) for each in named]
    assert all(each.problem and each.hint and "\n" not in str(each) for each in results)
    accepted = findings.ordered(results, [each.key for each in results])
    assert not findings.has_errors(accepted)


def sentences(command: str, file: Path, here: Project) -> list[str]:
    """What a command prints about a job: level and sentence of each finding."""
    printed = io.StringIO()
    arguments = argparse.Namespace(job=file, accept=[], offline=True, dry_run=True, json=None)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            commands.COMMANDS[command].run(arguments, here)
        except UserError as failure:
            print(*findings.error_lines(failure), sep="\n")
    return re.findall(rf"(?m)^(?:{'|'.join(findings.LEVELS)}):? +.*", printed.getvalue())


EACH = [pytest.param(number, marks=pytest.mark.long if number % 20 else ()) for number in range(40)]


@pytest.mark.parametrize("part", EACH)
def test_submit_and_preflight_print_the_same_findings(part, tmp_path, monkeypatch):
    """The notebook calls the function that the command `preflight` calls."""
    monkeypatch.setattr(requirements, "resolved", lambda *_, **__: iter(()))  # uv, which is slow
    monkeypatch.setattr(request, "job_name", lambda _: "a-job")  # whose time is in some findings
    for number, case in enumerate([*MISTAKES, *RIGHT][part :: len(EACH)]):
        here = project(case, tmp_path / str(number))
        file = tmp_path / f"{number}.toml"
        file.write_text(document(table(case, BASE)))
        one, other = (sentences(command, file, here) for command in ("preflight", "submit"))
        plain = [[re.sub(r"^(\w+):? +", r"\1 ", line) for line in each] for each in (one, other)]
        assert plain[0] == plain[1], name(case)
        assert plain[0] or "key" not in case, name(case)
