"""Findings: the problems of a job that preflight prints, each with its hint."""

import argparse
import difflib
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from smlightning.errors import UserError

LEVELS = ("error", "warning", "skipped")
LISTED_NAMES = 12  # of the names that exist, where none is similar to the one given


@dataclass(frozen=True)
class Finding:
    """One problem of a job.

    Attributes:
        level: ``error`` stops the job, ``warning`` does not, ``skipped`` was not checked.
        key: the key of job.toml, or a file; `--accept` names it.
        problem: what was found, and what was expected; no full stop at its end.
        hint: what to do; no full stop at its end.
    """

    level: str
    key: str
    problem: str
    hint: str

    def __str__(self) -> str:
        """One line, as it is printed; values of job.toml may hold line breaks."""
        return f"{self.level:<8}{self.sentence}"

    @property
    def sentence(self) -> str:
        """Key, problem and hint, in one line."""
        return " ".join(f"{self.key}: {self.problem}; {self.hint}".splitlines())


error = partial(Finding, "error")
warning = partial(Finding, "warning")
skipped = partial(Finding, "skipped")


def from_error(
    key: str, problem: UserError, *, hint: str = "correct it", level: str = "error"
) -> Finding:
    """The finding that an error amounts to; ``hint`` is for an error that has none."""
    return Finding(level, key, problem.problem, problem.hint or hint)


def error_lines(problem: Exception) -> list[str]:
    """A user's mistake as it is printed: a line, or one for each finding that the error has."""
    return [f"error: {line}" for line in str(problem).splitlines()]


def print_error(problem: Exception) -> None:
    """Print a user's mistake to standard error."""
    for line in error_lines(problem):
        print(line, file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """Reports a mistake on the command line in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        print_error(UserError(message, f"see {self.prog} --help"))
        self.exit(2)


def ordered(findings: Iterable[Finding], accepted: Collection[str] = ()) -> list[Finding]:
    """Findings without repetitions, errors first.

    An accepted error becomes a warning. A warning lists each accepted key without an error.
    """
    result: list[Finding] = []
    for finding in dict.fromkeys(findings):
        if finding.level == "error" and finding.key in accepted:
            finding = replace(finding, level="warning", hint="accepted")
        result.append(finding)
    errors = [finding.key for finding in result if finding.level == "error"]
    used = {finding.key for finding in result if finding.hint == "accepted"}
    for key in sorted(set(accepted) - used):
        hint = hint_for_unknown_name(key, errors) if errors else "remove it"
        result.append(warning(key, "--accept has this key, and no error has it", hint))
    return sorted(result, key=lambda finding: LEVELS.index(finding.level))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether there is an error among the findings."""
    return any(finding.level == "error" for finding in findings)


def hint_for_unknown_name(value: str, known: Iterable[str], *, likeness: float = 0.5) -> str:
    """The hint for a name that does not exist: the most similar one, or the first ones.

    A name may differ from an existing one in case only.

    Args:
        value: the name.
        known: names that exist.
        likeness: a similar name has this ratio of difflib's or more.
    """
    names = {name.lower(): name for name in known}
    similar = difflib.get_close_matches(value[:200].lower(), names, n=1, cutoff=likeness)
    if similar:
        return f"did you mean {names[similar[0]]}?"
    if not names:
        return "remove it: there are none of this kind"
    listed = ", ".join(list(names.values())[:LISTED_NAMES])
    more = ", …" if len(names) > LISTED_NAMES else ""
    return f"known are {listed}{more}"
