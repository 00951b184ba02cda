"""One problem of a job and its cure; what preflight prints, and what refuses a job."""

import difflib
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from runtime.report import UserError

LEVELS = ("error", "warning", "skipped")


@dataclass(frozen=True)
class Finding:
    """An error refuses the job, a warning does not, skipped was not checked."""

    level: str
    key: str  # of job.toml, or a file; what --accept names
    problem: str
    cure: str

    def __str__(self) -> str:
        return " ".join(f"{self.level:<8}{self.key}: {self.problem}; {self.cure}".splitlines())


error, warning, skipped = (partial(Finding, level) for level in LEVELS)


def from_sentence(key: str, sentence: str, cure: str = "correct it", level: str = "error") -> Finding:
    """What a sentence says; its own cure, where it has one, stands after the last semicolon."""
    problem, semicolon, own = sentence.rpartition("; ")
    return Finding(level, key, problem or own, own if semicolon else cure)


def print_error(problem: Exception) -> None:
    """Print a mistake of the user's; job.toml may have several, each in a line."""
    for line in str(problem).split("\n"):
        print(f"error: {line}", file=sys.stderr)


def ordered(findings: Iterable[Finding], accepted: Collection[str] = ()) -> list[Finding]:
    """Errors first. An error whose key is accepted becomes a warning; an accepted key without an error is named."""
    found = [
        replace(each, level="warning", cure="accepted") if each.level == "error" and each.key in accepted else each
        for each in dict.fromkeys(findings)  # both ends of a range may have the same
    ]
    for key in sorted(set(accepted) - {each.key for each in found if each.cure == "accepted"}):
        errors = [each.key for each in found if each.level == "error"]
        found.append(warning(key, "--accept names no error", near(key, errors) if errors else "remove it"))
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def refused(findings: Iterable[Finding]) -> bool:
    return any(each.level == "error" for each in findings)


def raise_if_errors(findings: Iterable[Finding]) -> None:
    """Raises UserError if there is an error among the findings: what is refused is not sent."""
    if refused(findings):
        raise UserError("preflight or the rehearsal refuses this job; fix its errors and run all cells again")


def near(value: str, known: Iterable[str]) -> str:
    """The cure of a name that does not exist; it may be one that differs by case alone."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(value[:200].lower(), names, n=1, cutoff=0.5)
    listed = ", ".join([*names.values()][:12]) + ", …" * (len(names) > 12)
    return f"did you mean {names[found[0]]}?" if found else f"known are {listed}"
