"""Request and response bodies of a SageMaker endpoint or batch transform, whatever the task.

In SageMaker's inference images, SageMaker's toolkit or ray_serving.py loads predict.py and calls
``model_fn`` once, then for each request ``input_fn``, ``predict_fn`` and ``output_fn``.
``input_fn`` and ``output_fn`` are here; predict.py imports them and adds the other two.
"""

import json
import sys
from http import HTTPStatus
from typing import Any

JSON = "application/json"
JSON_LINES = "application/jsonlines"
PLAIN = "text/plain"


def worker_device(context: Any = None) -> str:
    """The device of this worker: the GPU that the model server gives it, else the first, or a CPU.

    Args:
        context: the model server's, which starts a worker for each GPU.
    """
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    given = context.system_properties.get("gpu_id") if context else None
    return f"cuda:{given or 0}"


class Refusal(Exception):
    """A request that is answered with an HTTP status and a sentence, where Ray Serve answers."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def refusal(status: int, sentence: str) -> Exception:
    """The error to raise in a handler so that a request is answered with this HTTP status.

    Any other error becomes a 500. SageMaker's toolkit, where it is what calls the handler, knows an
    error of its own alone.
    """
    if "sagemaker_inference" not in sys.modules:
        return Refusal(status, sentence)
    from sagemaker_inference.errors import GenericInferenceToolkitError

    error: Exception = GenericInferenceToolkitError(status, sentence, HTTPStatus(status).phrase)
    return error


def input_fn(body: str | bytes, content_type: str | None) -> list[Any]:
    """The records of a request: of JSON the items of a list, or the one value; else one a line.

    Raises:
        Refusal, or the toolkit's error: 415 for another content type; 400 for a body that is not
            what its type says.
    """
    kind = _media_type(content_type or "")
    if kind not in (JSON, JSON_LINES, PLAIN):
        raise refusal(
            415, f"found content type {kind or 'none'}; send {JSON}, {JSON_LINES} or {PLAIN}"
        )
    try:
        content = body if isinstance(body, str) else bytes(body).decode("utf-8")
        if kind == JSON:
            value = json.loads(content)
            return value if isinstance(value, list) else [value]
        lines = _lines(content)
        return [json.loads(line) for line in lines] if kind == JSON_LINES else list(lines)
    except UnicodeDecodeError:
        raise refusal(400, "the body is not UTF-8; encode it as UTF-8") from None
    except RecursionError:
        raise refusal(
            400, f"the body is not valid {kind}: it is nested too deeply; correct it"
        ) from None
    except ValueError as error:
        raise refusal(400, f"the body is not valid {kind}: {error}; correct it") from None


def output_fn(answers: list[Any], accept: str) -> tuple[str, str]:
    """The body and its content type: a JSON list, or JSON lines with one line for each record.

    Raises:
        Refusal, or the toolkit's error: 406 if the request accepts neither.
    """
    for accepted in accept.split(","):
        kind = _media_type(accepted)
        if kind == JSON_LINES:
            # No line break at the end: batch transform adds it (AssembleWith).
            return "\n".join(json.dumps(answer) for answer in answers), JSON_LINES
        if kind in (JSON, "application/*", "*/*"):
            return json.dumps(answers), JSON
    raise refusal(406, f"the request accepts {accept}; answers are {JSON} or {JSON_LINES}")


def _media_type(text: str) -> str:
    """``text/plain`` of ``Text/Plain; charset=utf-8``."""
    return text.partition(";")[0].strip().lower()


def _lines(content: str) -> list[str]:
    """The lines of a body. Not splitlines(): a line may hold its other separators, as U+2028."""
    if not content:
        return []
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
