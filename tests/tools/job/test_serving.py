"""Requests that predict.py's handlers answer, and those that they reject."""

import json
from pathlib import Path
from typing import Any

import pytest

import predict
from smlightning import serving

LABELS = ["greek", "latin", "cyrillic"]
WORDS = ["αβγδ", "abcd", "", "x" * 600, "\u2028"]
JSON, LINES, PLAIN = "application/json", "application/jsonlines", "text/plain"


def posted(
    body: str | bytes, content_type: str = JSON, accept: str | None = None
) -> tuple[str, dict[str, str]]:
    raw = body if isinstance(body, bytes) else body.encode()
    return raw.decode("latin-1"), {"Content-Type": content_type} | (
        {"Accept": accept} if accept else {}
    )


LINED = "".join(json.dumps(word) + "\n" for word in WORDS)
GOOD = [
    posted(json.dumps(WORDS)),
    posted(
        json.dumps([{"text": word} for word in WORDS]), "application/json; charset=utf-8", "*/*"
    ),
    posted(LINED, LINES, LINES),
    posted("".join(f"{word}\r\n" for word in WORDS), PLAIN, "text/csv, application/json"),
]
ONE = [posted('"αβγδ"'), posted('{"text": "αβγδ", "label": "greek"}'), posted("αβγδ", PLAIN)]
NONE = [posted("[]"), posted("", PLAIN), posted("", LINES)]
ODD = [posted('"\\ud800"')]  # half of a surrogate pair, which JSON can hold and UTF-8 cannot
BAD = [
    (posted("{"), 400, "the body is not valid application/json: "),
    (posted("[" * 100_000), 400, "the body is not valid application/json: "),
    (posted('"a"\n{\n', LINES), 400, "the body is not valid application/jsonlines: "),
    (posted(b"\xff\xfe", PLAIN), 400, "the body is not valid text/plain: 'utf-8' codec"),
    (posted("[1]"), 400, "record 1: expected a text"),
    (posted('["a", {"texts": "b"}]'), 400, "record 2: expected a text"),
    (posted("a,b", "text/csv"), 415, "found content type text/csv; send application/json"),
    (
        posted("a", "application/x-npy"),
        415,
        "found content type application/x-npy; send application/json",
    ),
    (
        posted('"a"', JSON, "text/csv"),
        406,
        "the request accepts text/csv; answers are application/json",
    ),
]


def saved(name: str, folder: Path) -> Path:
    """A model of the example, saved as training saves it."""
    import lightning_first  # noqa: F401  not above: who only collects this test needs neither
    import model

    made = model.Model(model_name=name)
    made.labels = LABELS
    made.net = model.build(name, LABELS)
    made.save(folder)
    return folder


@pytest.fixture(params=["bytecnn", "bert"])
def folder(request: pytest.FixtureRequest, tiny_bert: str, tmp_path: Path) -> Path:
    return saved(tiny_bert if request.param == "bert" else request.param, tmp_path)


def test_requests_get_the_predictions_as_answers(folder: Path) -> None:
    model = predict.model_fn(folder)
    check_answers(folder, lambda *request: ask(model, *request))


def ask(model: Any, body: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Status, content type and body of one answer."""
    kind, accept = headers["Content-Type"], headers.get("Accept", JSON)
    return serving.answer(predict, model, body.encode("latin-1"), kind, accept)


def check_answers(folder: Path, ask: Any) -> None:
    """The answers to all requests are the predictions of the model in a folder."""
    expected: list[Any] = [
        [{"label": label, "score": pytest.approx(p, abs=1e-5)} for label, p in each]
        for _, each in predict.predict(WORDS, predict.model_fn(folder))
    ]
    kinds = []
    for request in GOOD:
        status, kind, content = ask(*request)
        kinds.append(kind)
        lines = content.splitlines() if kind == LINES else []
        assert status == 200
        assert ([json.loads(line) for line in lines] if lines else json.loads(content)) == expected
    assert kinds == [JSON, JSON, LINES, JSON]
    assert [json.loads(ask(*each)[2]) for each in ONE] == [[expected[0]]] * len(ONE)
    assert [json.loads(ask(*each)[2]) for each in NONE] == [[]] * len(NONE)
    assert [ask(*each)[0] for each in ODD] == [200] * len(ODD)
    for request, status, said in BAD:
        found, _, content = ask(*request)
        assert found == status and content.startswith(said), content
