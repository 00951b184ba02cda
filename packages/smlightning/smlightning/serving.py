"""Request and response bodies of a SageMaker endpoint, whatever the task.

In AWS's inference image, ray_serving.py loads predict.py and calls its ``model_fn`` once, then for
each request `answer`, which calls ``input_fn``, ``predict_fn`` and ``output_fn``. ``input_fn`` and
``output_fn`` are here; predict.py imports them and adds the other two. For images, it imports
``image_input_fn`` under the name ``input_fn``.
"""

import io
import json
from typing import Any

JSON = "application/json"
JSON_LINES = "application/jsonlines"
PLAIN = "text/plain"
MOST_PIXELS = 50_000_000  # of an image: a small file may hold gigabytes of one colour


def worker_device(context: Any = None) -> str:
    """The device of this worker: a GPU, or a CPU. Ray Serve shows each worker one GPU.

    Args:
        context: of a model server that passes one to ``model_fn``; it is not read.
    """
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


class RejectedRequest(Exception):
    """A request that is answered with an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def rejected(status: int, sentence: str) -> Exception:
    """The error to raise in a handler so that a request is answered with this HTTP status.

    Any other error becomes a 500.
    """
    return RejectedRequest(status, sentence)


def answer(handlers: Any, model: Any, body: bytes, kind: str, accept: str) -> tuple[int, str, str]:
    """HTTP status, content type and body of the response to one request.

    Args:
        handlers: the module predict.
        model: as its ``model_fn`` returns it.
        body: of the request.
        kind: its content type.
        accept: content types that the client accepts.
    """
    try:
        answers = handlers.predict_fn(handlers.input_fn(body, kind), model)
        text, answer_type = handlers.output_fn(answers, accept)
    except RejectedRequest as error:
        return error.status, PLAIN, f"{error}\n"
    return 200, answer_type, text


def input_fn(body: str | bytes, content_type: str | None) -> list[Any]:
    """The records of a request: of JSON the items of a list, or the one value; else one a line.

    Raises:
        RejectedRequest: 415 for another content type, 400 for a body that does not match it.
    """
    kind = _media_type(content_type or "")
    if kind not in (JSON, JSON_LINES, PLAIN):
        raise rejected(
            415, f"found content type {kind or 'none'}; send {JSON}, {JSON_LINES} or {PLAIN}"
        )
    try:
        content = body if isinstance(body, str) else bytes(body).decode("utf-8")
        if kind == JSON:
            value = json.loads(content)
            return value if isinstance(value, list) else [value]
        lines = _lines(content)
        return [json.loads(line) for line in lines] if kind == JSON_LINES else list(lines)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested too deeply
        raise rejected(400, f"the body is not valid {kind}: {error}; correct it") from None


def read_image(source: Any) -> Any:
    """An image of PIL from a PNG or JPEG file, read whole.

    PIL knows other formats, and starts a program for some of them.

    Args:
        source: path, or open file.

    Raises:
        OSError: it is another file, damaged, or has more than MOST_PIXELS.
    """
    from PIL import Image

    try:
        with Image.open(source, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width} × {image.height}"
                raise OSError(f"it has {size} pixels, expected at most {MOST_PIXELS:,}")
            image.load()
            return image
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(str(error)) from error


def image_input_fn(body: bytes, content_type: str | None) -> list[Any]:
    """The one image of a request, as PIL's, whatever its content type.

    Raises:
        RejectedRequest: 400 if the body is not an image, as `read_image` says.
    """
    try:
        return [read_image(io.BytesIO(body))]
    except OSError:
        raise rejected(400, "the body is not an image; send a PNG or JPEG file") from None


def output_fn(answers: list[Any], accept: str) -> tuple[str, str]:
    """The body and its content type: a JSON list, or JSON lines with one line for each record.

    Raises:
        RejectedRequest: 406 if the request accepts neither.
    """
    for accepted in accept.split(","):
        kind = _media_type(accepted)
        if kind == JSON_LINES:
            # No line break at the end: batch transform adds it (AssembleWith).
            return "\n".join(json.dumps(answer) for answer in answers), JSON_LINES
        if kind in (JSON, "application/*", "*/*"):
            return json.dumps(answers), JSON
    raise rejected(406, f"the request accepts {accept}; answers are {JSON} or {JSON_LINES}")


def _media_type(text: str) -> str:
    """``text/plain`` of ``Text/Plain; charset=utf-8``."""
    return text.partition(";")[0].strip().lower()


def _lines(content: str) -> list[str]:
    """The lines of a body. Not splitlines(): a line may hold its other separators, as U+2028."""
    if not content:
        return []
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
