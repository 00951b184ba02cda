"""Use a trained model: `python src/predict.py "def main("` continues a text.

On SageMaker (`smlightning deploy JOB`) the inference image calls this file's `model_fn`,
`input_fn`, `predict_fn` and `output_fn`. A request holds texts as JSON ("…", {"text": "…",
"max_tokens": 50, "temperature": 0.8, "top_k": 50, "seed": 0}, or a list of these), JSON lines, or
plain lines; the answer to each is {"continuation": "…"}. The texts of a request may have 2048
`max_tokens` in all, or its status is 400. SageMaker waits 60 s for an answer: after 50 s each
continuation ends, and its answer has "incomplete": true.
"""

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from smlightning import predictions
from smlightning.errors import UserError, run_command
from smlightning.serving import input_fn, output_fn, rejected, worker_device
from smlightning.training import imports

from options import SAMPLE

__all__ = ["input_fn", "main", "model_fn", "output_fn", "predict", "predict_fn"]

INCOMPLETE = "\ufffd"  # a character whose bytes are incomplete
MOST_TOKENS = 2048  # per request
SECONDS = 50.0  # per request; SageMaker's limit is 60 s (API: InvokeEndpoint)


@dataclass(frozen=True)
class Sampling:
    """Options for choosing each token; a wrong value raises a UserError."""

    max_tokens: int = 200
    temperature: float = 0.8  # 0: always the likeliest
    top_k: int = 50  # the likeliest tokens to choose from; 0: all
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), field.name != "temperature"
            is_number = type(value) is int or (type(value) is float and not whole)
            if not is_number or not 0 <= value < 2**63:
                expected = "whole number" if whole else "number"
                raise UserError(f"{field.name} is {value!r}", f"use a {expected}, 0 or more")


def model_fn(model_dir: str | Path, context: Any = None) -> Any:
    """The trained model in a folder, on the worker's GPU if it has one; raises UserError."""
    imports.lightning()
    import model

    network, tokens = model.load(Path(model_dir))
    return network.to(worker_device(context)), tokens


def predict(
    text: str, trained: Any, sampling: Sampling | None = None, deadline: float = math.inf
) -> Generator[str, None, bool]:
    """The continuation of a text, piece by piece, until the document ends or `max_tokens` or the
    checkpoint's positions are reached. A model trained with `--prompt_column` answers the text.

    Args:
        deadline: a time of `time.monotonic`, after which no token is computed.

    Returns:
        Whether the deadline ended it.

    Raises:
        UserError: the text is too long for the checkpoint.
    """
    import torch

    network, tokens = trained
    sampling = sampling or Sampling()
    random = torch.Generator().manual_seed(sampling.seed)
    ids = tokens.beginning(text)
    first = len(ids)
    longest = getattr(network.config, "max_position_embeddings", None) or sys.maxsize
    if first > longest:
        raise UserError(f"the text has {first} tokens; the maximum is {longest}", "shorten it")
    following = next_logits(network, ids)
    # ids[before:given] were the latest piece. They are decoded again with the tokens after them:
    # blanks between tokens depend on both.
    before = given = first
    late = False
    for _ in range(min(sampling.max_tokens, longest - first + 1)):
        late = time.monotonic() > deadline
        if late:
            break
        token = draw(next(following), sampling, random)
        if token in (tokens.start, *tokens.end):
            break
        ids.append(token)
        piece = tokens.decode(ids[before:])
        if not piece.endswith(INCOMPLETE):
            yield piece[len(tokens.decode(ids[before:given])) :]
            before, given = given, len(ids)
    yield tokens.decode(ids[before:])[len(tokens.decode(ids[before:given])) :]
    return late


def next_logits(network: Any, ids: list[int]) -> Iterator[Any]:
    """The logits of the token after ``ids``, to which the caller appends a token each time.

    A cache keeps the results for earlier tokens.
    """
    import torch

    import model

    device = next(network.parameters()).device
    cache, seen = None, 0
    known: list[list[Any]] = []
    while True:
        with torch.inference_mode():
            if isinstance(network, model.ByteTransformer):
                logits = network.following(ids, known)
            else:
                given = torch.tensor([ids[seen:]], device=device)
                answer = network(input_ids=given, past_key_values=cache, use_cache=True)
                logits, cache, seen = answer.logits[0, -1], answer.past_key_values, len(ids)
        yield logits.float().cpu()


def draw(logits: Any, sampling: Sampling, random: Any) -> int:
    """A random token by its logits."""
    import torch

    if sampling.temperature == 0:
        return int(logits.argmax())
    if 0 < sampling.top_k < len(logits):
        lowest = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    probabilities = ((logits - logits.max()).double() / sampling.temperature).softmax(0)
    return int(torch.multinomial(probabilities, 1, generator=random))


def predict_fn(records: list[Any], trained: Any) -> list[dict[str, Any]]:
    """The answer to each record of a request; status 400 if a record is wrong."""
    deadline = time.monotonic() + SECONDS
    requests = []
    for number, record in enumerate(records, 1):
        with bad_request(f"record {number}: "):
            requests.append(parsed(record))
    most = sum(sampling.max_tokens for _, sampling in requests)
    if most > MOST_TOKENS:
        raise rejected(
            400,
            f"max_tokens of {len(requests)} records is {most} in all, and the maximum of a request "
            f"is {MOST_TOKENS}; lower it, or send fewer records at a time",
        )
    answers = []
    for number, (text, sampling) in enumerate(requests, 1):
        with bad_request(f"record {number}: "):
            answers.append(answer(predict(text, trained, sampling, deadline)))
    return answers


def answer(pieces: Generator[str, None, bool]) -> dict[str, Any]:
    """The continuation of `predict`, marked if the deadline ended it."""
    text = []
    while True:
        try:
            text.append(next(pieces))
        except StopIteration as end:
            late = {"incomplete": True} if end.value else {}
            return {"continuation": "".join(text), **late}


@contextlib.contextmanager
def bad_request(beginning: str) -> Iterator[None]:
    """Turn a UserError into the answer with status 400."""
    try:
        yield
    except UserError as error:
        raise rejected(400, f"{beginning}{error}") from None


def parsed(record: Any) -> tuple[str, Sampling]:
    """The text of a record, and its sampling; raises UserError."""
    values = dict(record) if isinstance(record, dict) else {"text": record}
    text = values.pop("text", None)
    names = [field.name for field in fields(Sampling)]
    if not isinstance(text, str) or values.keys() - set(names):
        problem = "expected a text, or an object with text and some of " + ", ".join(names)
        raise UserError(problem, "send one of these")
    # JSON may contain half of a surrogate pair.
    return text.encode("utf-8", "replace").decode(), Sampling(**values)


def parse() -> argparse.Namespace:
    parser = predictions.parser(__doc__, "text", SAMPLE)
    for field in fields(Sampling):
        name, kind = f"--{field.name}", type(field.default)
        parser.add_argument(name, type=kind, default=field.default, help="default: %(default)s")
    arguments = parser.parse_args()
    names = [field.name for field in fields(Sampling)]
    try:
        arguments.sampling = Sampling(**{name: getattr(arguments, name) for name in names})
    except UserError as error:
        parser.error(f"argument --{error}")
    return arguments


def main() -> int:
    arguments = parse()

    def answer() -> None:
        texts = predictions.texts(arguments)
        trained = model_fn(arguments.model_dir)
        for text in texts:
            print(text, end="\n" if trained[1].prompted else "", flush=True)
            for piece in predict(text, trained, arguments.sampling):
                print(piece, end="", flush=True)
            print()

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
