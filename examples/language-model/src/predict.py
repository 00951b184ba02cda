"""Continue texts: `python src/predict.py "def main("`, or texts on standard input.

SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`. A request is
a text or a list of texts in JSON; the answer to each is a text.
"""

import json
import sys
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning import predictions
from smlightning.errors import run_command

MAX_TOKENS = 200  # of a continuation


def model_fn(model_dir: str | Path) -> Any:
    """The trained model in a folder, on a GPU if there is one."""
    import torch

    import model

    net, tokens = model.load(Path(model_dir))
    return net.to("cuda" if torch.cuda.is_available() else "cpu"), tokens


def predict(text: str, trained: Any, temperature: float = 0.8, seed: int = 0) -> str:
    """The continuation of a text: MAX_TOKENS, or fewer if the network ends it.

    Args:
        temperature: 0 chooses the likeliest token each time.
    """
    import torch

    from text_tokens import mark

    net, tokens = trained
    torch.manual_seed(seed)
    ids = [mark(tokens), *tokens(text, add_special_tokens=False)["input_ids"]]
    given = torch.tensor([ids[-net.config.max_position_embeddings // 2 :]], device=net.device)
    room = net.config.max_position_embeddings - given.shape[1]
    sampling: Any = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 50}
    with torch.inference_mode():
        (row,) = net.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=min(MAX_TOKENS, room),
            pad_token_id=mark(tokens),
            **sampling,
        )
    return tokens.decode(row[given.shape[1] :], skip_special_tokens=True)


def input_fn(body: str | bytes, content_type: str) -> list[str]:
    """The texts of a request.

    Raises:
        ValueError: the body is not JSON, or holds something else than texts.
    """
    found = json.loads(body)
    texts = found if isinstance(found, list) else [found]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('expected a text or a list of texts, as in ["def main("]')
    # JSON may contain half of a surrogate pair.
    return [text.encode("utf-8", "replace").decode() for text in texts]


def predict_fn(texts: list[str], trained: Any) -> list[str]:
    """The continuation of each text."""
    return [predict(text, trained) for text in texts]


def output_fn(answers: list[str], accept: str) -> str:
    return json.dumps(answers)


def main() -> int:
    parser = predictions.parser(__doc__, "text", SAMPLE)
    parser.add_argument("--temperature", type=float, default=0.8, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    arguments = parser.parse_args()

    def answer() -> None:
        texts = predictions.texts(arguments)
        trained = model_fn(arguments.model_dir)
        for text in texts:
            continuation = predict(text, trained, arguments.temperature, arguments.seed)
            print(text + continuation, flush=True)

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
