"""Use a trained model: `python src/predict.py "def main("` continues a text.

On SageMaker (`python -m smlightning deploy JOB`) the inference image calls this file's `model_fn`,
`input_fn`, `predict_fn` and `output_fn`. A request holds texts as JSON ("…", {"text": "…",
"max_tokens": 50, "temperature": 0.8, "top_k": 50, "seed": 0}, or a list of these), JSON lines, or
plain lines; the answer to each is {"continuation": "…"}.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning.errors import UserError, discard_stdout
from smlightning.serving import input_fn, output_fn, refusal
from smlightning.training import imports

__all__ = ["input_fn", "main", "model_fn", "output_fn", "predict", "predict_fn"]

INCOMPLETE = "\ufffd"  # what stands for a character of which bytes are missing


@dataclass(frozen=True)
class Sampling:
    """How each token is drawn."""

    max_tokens: int = 200
    temperature: float = 0.8  # 0: always the likeliest
    top_k: int = 50  # of the likeliest alone; 0: of all
    seed: int = 0


def model_fn(model_dir: str | Path) -> Any:
    """The trained model in a folder, on the GPU where there is one; raises UserError."""
    imports.lightning()
    import torch

    import model

    network, tokens = model.load(Path(model_dir))
    return network.to("cuda" if torch.cuda.is_available() else "cpu"), tokens


def predict(text: str, trained: Any, sampling: Sampling | None = None) -> Iterator[str]:
    """The continuation of a text, piece by piece, until the document or `max_tokens` ends.

    Of a model trained with `--prompt_column`: the answer to it.
    """
    import torch

    network, tokens = trained
    sampling = sampling or Sampling()
    random = torch.Generator().manual_seed(sampling.seed)
    ids = tokens.beginning(text)
    first, said = len(ids), ""
    following = next_logits(network, ids)
    for _ in range(sampling.max_tokens):
        token = draw(next(following), sampling, random)
        if token in (tokens.start, *tokens.end):
            break
        ids.append(token)
        whole = tokens.decode(ids[first:])
        if not whole.endswith(INCOMPLETE):
            yield whole[len(said) :]
            said = whole
    yield tokens.decode(ids[first:])[len(said) :]


def next_logits(network: Any, ids: list[int]) -> Iterator[Any]:
    """The logits of what follows ``ids``, to which the caller appends a token each time."""
    import torch

    import model

    device = next(network.parameters()).device
    cache, seen = None, 0
    while True:
        with torch.inference_mode():
            if isinstance(network, model.ByteTransformer):
                window = torch.tensor([ids[-network.config["max_length"] :]], device=device)
                places = torch.arange(window.shape[1], device=device)[None]
                out = model.logits(network, window, places)
            else:  # a cache holds what was computed of the tokens before
                given = torch.tensor([ids[seen:]], device=device)
                answer = network(input_ids=given, past_key_values=cache, use_cache=True)
                out, cache, seen = answer.logits, answer.past_key_values, len(ids)
        yield out[0, -1].float().cpu()


def draw(logits: Any, sampling: Sampling, random: Any) -> int:
    """A token, drawn from its logits."""
    import torch

    if sampling.temperature == 0:
        return int(logits.argmax())
    if 0 < sampling.top_k < len(logits):
        lowest = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    probabilities = (logits / sampling.temperature).softmax(0)
    return int(torch.multinomial(probabilities, 1, generator=random))


def predict_fn(records: list[Any], trained: Any) -> list[dict[str, str]]:
    """The answer to each record of a request; status 400 where one holds no text."""
    names = {field.name for field in fields(Sampling)}
    answers = []
    for number, record in enumerate(records, 1):
        values = record if isinstance(record, dict) else {"text": record}
        text, others = values.get("text"), {k: v for k, v in values.items() if k != "text"}
        numeric = all(isinstance(value, int | float) for value in others.values())
        if not isinstance(text, str) or not numeric or others.keys() - names:
            raise refusal(
                400,
                f"record {number} is neither a text nor an object of text and of numbers: "
                f"{', '.join(sorted(names))}; send one of these",
            )
        # JSON may hold half of a surrogate pair.
        text = text.encode("utf-8", "replace").decode()
        answers.append({"continuation": "".join(predict(text, trained, Sampling(**others)))})
    return answers


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python src/predict.py", description=__doc__)
    add = parser.add_argument
    add("text", nargs="*", help="texts to continue; without any, one a line on standard input")
    add("--model_dir", type=Path, default=Path("outputs/model"), help="default: %(default)s")
    add("--sample", action="store_true", help=f"the project's sample text: {SAMPLE}")
    for field in fields(Sampling):
        kind = type(field.default)
        add(f"--{field.name}", type=kind, default=field.default, help="default: %(default)s")
    arguments = parser.parse_args()
    for name in ("max_tokens", "temperature", "top_k", "seed"):
        if getattr(arguments, name) < 0:
            parser.error(f"argument --{name}: found {getattr(arguments, name)}, expected 0 or more")
    return arguments


def main() -> int:
    arguments = parse()
    texts = [*arguments.text, SAMPLE] if arguments.sample else arguments.text
    # A byte that is no UTF-8 ends no stream.
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    names = [field.name for field in fields(Sampling)]
    sampling = Sampling(**{name: getattr(arguments, name) for name in names})
    try:
        trained = model_fn(arguments.model_dir)
        for text in texts or (line.rstrip("\r\n") for line in sys.stdin):
            print(text, end="\n" if trained[1].prompted else "", flush=True)
            for piece in predict(text, trained, sampling):
                print(piece, end="", flush=True)
            print()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has read enough
        discard_stdout()
    return 0


if __name__ == "__main__":
    sys.exit(main())
