"""Request and response bodies of a SageMaker endpoint or batch transform, whatever the task.

SageMaker's inference image loads predict.py and calls `model_fn` once, then for each request `input_fn`, `predict_fn`
and `output_fn`. The first and the last of these three are here; predict.py imports them and adds the other two.
"""

import json
from http import HTTPStatus
from typing import Any

JSON, JSON_LINES, PLAIN = "application/json", "application/jsonlines", "text/plain"


def refusal(status: int, sentence: str) -> Exception:
    """What a handler raises to answer a request with this HTTP status and sentence; anything else becomes a 500."""
    from sagemaker_inference.errors import GenericInferenceToolkitError  # in the inference image alone

    error: Exception = GenericInferenceToolkitError(status, sentence, HTTPStatus(status).phrase)
    return error


def input_fn(body: str | bytes, content_type: str | None) -> list[Any]:
    """The records of a request: of JSON each item of a list, or the one value; else one for each line.

    Raises:
        GenericInferenceToolkitError: 415 for another content type; 400 for a body that is not what its type says.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()  # without "; charset=utf-8"
    if kind not in (JSON, JSON_LINES, PLAIN):
        raise refusal(415, f"found content type {kind or 'none'}; send {JSON}, {JSON_LINES} or {PLAIN}")
    try:
        content = body if isinstance(body, str) else bytes(body).decode("utf-8")
        if kind == JSON:
            value = json.loads(content)
            return value if isinstance(value, list) else [value]
        # Not splitlines(): JSON and plain lines may hold its other separators, such as U+2028.
        lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")] if content else []
        return [json.loads(line) for line in lines] if kind == JSON_LINES else lines
    except UnicodeDecodeError:
        raise refusal(400, "the body is not UTF-8; encode it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise refusal(400, f"the body is not valid {kind}: {said}; correct it") from None


def output_fn(answers: list[Any], accept: str) -> tuple[str, str]:
    """The body, and its content type: a JSON list, or where the request asks for JSON lines one line for each record.

    Raises:
        GenericInferenceToolkitError: 406 if the request accepts neither.
    """
    for wanted in accept.split(","):
        kind = wanted.partition(";")[0].strip().lower()
        if kind == JSON_LINES:  # no line break at the end: batch transform adds it (AssembleWith)
            return "\n".join(json.dumps(answer) for answer in answers), JSON_LINES
        if kind in (JSON, "application/*", "*/*"):
            return json.dumps(answers), JSON
    raise refusal(406, f"the request accepts {accept}; answers are {JSON} or {JSON_LINES}")
