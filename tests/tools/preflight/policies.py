"""A small evaluator of policies, as far as those in infra/ go: they only allow.

It follows IAM/latest/UserGuide/reference_policies_evaluation-logic.html for the policies of one
identity. Only AWS's own simulator can prove its answers.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

Policy = Mapping[str, Any]


def allows(policy: Policy, action: str, resource: str, context: Mapping[str, str]) -> bool:
    """Whether a statement of the policy allows the action on the resource."""
    return any(
        action in statement["Action"]
        and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        and all(
            holds(operator, context.get(key), listed(wanted))
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
        for statement in policy["Statement"]
    )


def holds(operator: str, value: str | None, wanted: list[str]) -> bool:
    """Whether one key of the context fulfils a condition; ForAllValues holds without a value."""
    if value is None:
        return operator.startswith("ForAllValues:")
    if operator == "StringEquals":
        return value in wanted
    if operator == "NumericLessThanEquals":
        return any(float(value) <= float(most) for most in wanted)
    assert operator.removeprefix("ForAllValues:") == "StringLike"
    return any(fnmatchcase(value, pattern) for pattern in wanted)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def simulation(policy: Policy) -> Any:
    """An answer to SimulatePrincipalPolicy by this policy."""

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        entries = arguments["ContextEntries"]
        context = {entry["ContextKeyName"]: entry["ContextKeyValues"][0] for entry in entries}
        (action,) = arguments["ActionNames"]
        return evaluation(
            action,
            {
                name: "allowed" if allows(policy, action, name, context) else "implicitDeny"
                for name in arguments["ResourceArns"]
            },
        )

    return answer


def evaluation(action: str, decisions: Mapping[str, str], **details: Any) -> dict[str, Any]:
    """SimulatePrincipalPolicy's answer as AWS documents it: one result for each action.

    Each resource's decision is in ResourceSpecificResults; EvalResourceName is a template
    (API_EvaluationResult, API_ResourceSpecificResult).
    """
    denied = [decision for decision in decisions.values() if decision != "allowed"]
    result = {
        "EvalActionName": action,
        "EvalResourceName": "arn:${Partition}:service:::${Name}",
        "EvalDecision": denied[0] if denied else "allowed",
        "ResourceSpecificResults": [
            {"EvalResourceName": name, "EvalResourceDecision": decision}
            for name, decision in decisions.items()
        ],
        **details,
    }
    return {"EvaluationResults": [result]}
