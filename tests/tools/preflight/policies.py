"""A small evaluator of IAM's policies, since moto's simulation knows none.

It follows AWS's page on evaluation logic for identity-based policies of one account: an explicit
deny counts above all, then an allow, else there is an implicit deny
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html). Its
own tests are AWS's documented examples (test_policies.py).
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from types import SimpleNamespace
from typing import Any

ALLOWED, EXPLICIT, IMPLICIT = "allowed", "explicitDeny", "implicitDeny"


@dataclass(frozen=True)
class Verdict:
    """IAM's decision, and the keys of the context that conditions asked for in vain."""

    decision: str
    missing: tuple[str, ...] = ()
    by_organisation: bool | None = None  # None: the account is in no organisation
    by_boundary: bool | None = None  # None: there is no boundary


def evaluate(
    policies: Iterable[Mapping[str, Any]],
    action: str,
    resource: str,
    context: Mapping[str, list[str]],
) -> Verdict:
    """The policies' decision about an action on a resource.

    Args:
        policies: documents.
        action: as in s3:GetObject.
        resource: its ARN, or "*".
        context: key → values, which are texts.
    """
    known = {key.lower(): values for key, values in context.items()}
    missing: set[str] = set()
    effects: set[str] = set()
    for policy in policies:
        for statement in listed(policy["Statement"]):
            if not concerns(statement, action, resource, known):
                continue
            if holds(statement.get("Condition", {}), known, missing):
                effects.add(statement["Effect"])
    if "Deny" in effects:
        return Verdict(EXPLICIT, tuple(sorted(missing)))
    if "Allow" in effects:
        return Verdict(ALLOWED, tuple(sorted(missing)))
    return Verdict(IMPLICIT, tuple(sorted(missing)))


def concerns(
    statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, list[str]]
) -> bool:
    """Whether a statement is about the action on the resource."""
    actions = listed(statement.get("Action", statement.get("NotAction", [])))
    named = any(like(pattern.lower(), action.lower()) for pattern in actions)
    patterns = listed(statement["Resource"])
    there = any(like(substituted(pattern, context), resource) for pattern in patterns)
    return named != ("NotAction" in statement) and there


def substituted(pattern: str, context: Mapping[str, list[str]]) -> str:
    """A pattern with the values of its variables, as ${aws:username}."""
    if "$" not in pattern:
        return pattern
    return re.sub(
        r"\$\{([^}]+)\}", lambda match: context.get(match[1].lower(), [match[0]])[0], pattern
    )


def holds(
    conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, list[str]], missing: set[str]
) -> bool:
    """Whether every operator holds for every key; keys without a value are noted as missing."""
    results = []
    for operator, keys in conditions.items():
        for key, wanted in keys.items():
            values = context.get(key.lower())
            if values is None:
                missing.add(key)
            results.append(compare(operator, values, listed(wanted)))
    return all(results)


def compare(operator: str, values: list[str] | None, wanted: list[Any]) -> bool:
    """One operator, as IAM's reference of condition operators has them."""
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in wanted]
    quantifier, _, name = operator.rpartition(":")
    if values is None:
        return quantifier == "ForAllValues" or "Not" in name
    each = [single(name, value, texts) for value in values]
    return all(each) if quantifier == "ForAllValues" or "Not" in name else any(each)


def single(name: str, value: str, wanted: list[str]) -> bool:
    """One value of the context against the values of a condition, of which one has to match."""
    if "Not" in name:
        return not single(name.replace("Not", ""), value, wanted)
    if name == "NumericLessThanEquals":
        return any(float(value) <= float(limit) for limit in wanted)
    if name == "Bool":
        return value.lower() in [each.lower() for each in wanted]
    if name in ("StringLike", "ArnLike"):
        return any(like(pattern, value) for pattern in wanted)
    if name == "StringEquals":
        return value in wanted
    raise ValueError(f"{name} is no condition that this evaluator knows")


def like(pattern: str, text: str) -> bool:
    """IAM's patterns: * and ?, and no other."""
    return bool(expression(pattern).fullmatch(text))


@functools.cache
def expression(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(re.sub(r"\[", "[[]", pattern)))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def without(policy: Mapping[str, Any], action: str) -> dict[str, Any]:
    """The policy, which does not allow the action."""
    statements = []
    for statement in policy["Statement"]:
        rest = [each for each in statement["Action"] if each != action]
        if rest:
            statements.append({**statement, "Action": rest})
    return {**policy, "Statement": statements}


def simulation(
    policies_of: Mapping[str, list[dict[str, Any]]],
    *,
    others: Iterable[Mapping[str, Any]] = (),
    scps: Iterable[Mapping[str, Any]] = (),
    boundaries: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """An answer to SimulatePrincipalPolicy by these policies: ARN of a user or role → documents.

    Args:
        policies_of: whoever is missing here has the policies of ``others``.
        others: none: they may do everything.
        scps: service control policies of the account; none: it is in no organisation.
        boundaries: ARN → permissions boundary.
    """
    scps, boundaries = list(scps), boundaries or {}

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        arn = arguments["PolicySourceArn"]
        context = {
            entry["ContextKeyName"]: entry["ContextKeyValues"]
            for entry in arguments.get("ContextEntries", [])
        }
        policies = policies_of.get(arn, others or [EVERYTHING])
        results = []
        for action in arguments["ActionNames"]:
            verdicts = {
                resource: limited(
                    evaluate(policies, action, resource, context),
                    scp=evaluate(scps, action, resource, context) if scps else None,
                    boundary=evaluate([boundaries[arn]], action, resource, context)
                    if arn in boundaries
                    else None,
                )
                for resource in arguments["ResourceArns"]
            }
            results.append(evaluation(action, verdicts))
        return {"EvaluationResults": results}

    return answer


def iam_of(answer: Any) -> Any:
    """A client of IAM with one page of a simulation's answer."""
    pages = SimpleNamespace(paginate=lambda **asked: [answer(asked)])
    return SimpleNamespace(get_paginator=lambda _: pages)


EVERYTHING = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}


def limited(verdict: Verdict, *, scp: Verdict | None, boundary: Verdict | None) -> Verdict:
    """A verdict of the identity's own policies within an SCP's and a boundary's.

    The keys that these two miss are not reported (API_EvaluationResult, MissingContextValues).
    """
    by_organisation = scp.decision == ALLOWED if scp else None
    by_boundary = boundary.decision == ALLOWED if boundary else None
    decision = verdict.decision
    if by_organisation is False:  # "the simulation ends" (EvalDecisionDetails)
        return Verdict(EXPLICIT, (), by_organisation)
    if by_boundary is False and decision == ALLOWED:
        decision = boundary.decision if boundary else decision
    return Verdict(decision, verdict.missing, by_organisation, by_boundary)


def evaluation(action: str, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """An EvaluationResult as AWS documents it since 2026: one for each action.

    Its decision is the most restrictive of all resources; each one's own is in
    ResourceSpecificResults, unless "*" was asked about. EvalResourceName is a template
    (API_EvaluationResult, API_ResourceSpecificResult).

    Args:
        action: as in s3:GetObject.
        verdicts: resource → what the policies decide.
    """
    most = max(verdicts.values(), key=lambda verdict: SEVERITY.index(verdict.decision))
    missing = {key for verdict in verdicts.values() for key in verdict.missing}
    result: dict[str, Any] = {
        "EvalActionName": action,
        "EvalResourceName": "arn:${Partition}:service:::${Name}",
        "EvalDecision": most.decision,
        "MissingContextValues": sorted(missing),
    }
    organisation = {verdict.by_organisation for verdict in verdicts.values()} - {None}
    if organisation:
        result["OrganizationsDecisionDetail"] = {"AllowedByOrganizations": all(organisation)}
    boundary = {verdict.by_boundary for verdict in verdicts.values()} - {None}
    if boundary:
        result["PermissionsBoundaryDecisionDetail"] = allowed_by_boundary(all(boundary))
    if "*" in verdicts:
        return result
    result["ResourceSpecificResults"] = [
        {
            "EvalResourceName": resource,
            "EvalResourceDecision": verdict.decision,
            "MissingContextValues": list(verdict.missing),
            **(
                {}
                if verdict.by_boundary is None
                else {"PermissionsBoundaryDecisionDetail": allowed_by_boundary(verdict.by_boundary)}
            ),
        }
        for resource, verdict in verdicts.items()
    ]
    return result


SEVERITY = (ALLOWED, IMPLICIT, EXPLICIT)


def allowed_by_boundary(allowed: bool) -> dict[str, bool]:
    return {"AllowedByPermissionsBoundary": allowed}
