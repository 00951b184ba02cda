"""A model answers requests as predict.py does: SageMaker's inference toolkit, really run."""

import inspect
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import predict
from smlightning import project, serving
from smlightning.launch import deploy_plan, inference_images, model_archive

LABELS = ["greek", "latin", "cyrillic"]
WORDS = ["αβγδ", "abcd", "", "x" * 600, "\u2028"]
JSON, LINES, PLAIN = "application/json", "application/jsonlines", "text/plain"

# What the model server does in the container: it puts model/code on Python's path and runs the
# toolkit's handler.
SERVER = """
import json, sys
from sagemaker_pytorch_serving_container.handler_service import HandlerService

class Context:  # the model server's own, TorchServe's, needs Java
    def __init__(self, folder, headers):
        self.system_properties = {"model_dir": folder}
        self.headers = headers
        self.request_processor = [self]
        self.status = 200
    def get_request_properties(self):
        return self.headers
    def set_response_status(self, code, phrase):
        self.status = code
    def set_response_content_type(self, index, value):
        self.type = value

for folder in sys.argv[1:]:
    service = HandlerService()
    service.initialize(Context(folder, {}))
    for body, headers in json.load(open("requests.json")):
        context = Context(folder, headers)
        (answer,) = service.handle([{"body": bytes(body, "latin-1")}], context)
        print(json.dumps([context.status, getattr(context, "type", None), answer]))
"""


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
    (posted("[" * 100_000), 400, "the body is not valid application/json: it is nested too deeply"),
    (posted('"a"\n{\n', LINES), 400, "the body is not valid application/jsonlines: "),
    (posted(b"\xff\xfe", PLAIN), 400, "the body is not UTF-8"),
    (posted("[1]"), 400, "record 1 is neither a text nor"),
    (posted('["a", {"texts": "b"}]'), 400, "record 2 is neither a text nor"),
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


@pytest.fixture(scope="module")
def answers(
    tiny_bert: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[Any]]]:
    """Model → its folder, and the toolkit's answer to every request: status, content type, body."""
    place = tmp_path_factory.mktemp("container")
    requests = [*GOOD, *ONE, *NONE, *ODD, *(bad for bad, _, _ in BAD)]
    (place / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
    folders = {"bytecnn": saved("bytecnn", place / "a"), "bert": saved(tiny_bert, place / "b")}
    containers = []
    for name, folder in folders.items():
        with tarfile.open(place / "trained.tar.gz", "w:gz") as tar:
            tar.add(folder, ".")
        model_archive.pack(
            place / "trained.tar.gz",
            place / "model.tar.gz",
            project.find().src,
            inference_images.TOOLKIT,
        )
        with tarfile.open(place / "model.tar.gz") as tar:
            tar.extractall(place / name, filter="data")
        containers.append(str(place / name))
    env = os.environ | {
        "PYTHONPATH": f"{containers[0]}/code",
        "SAGEMAKER_PROGRAM": deploy_plan.HANDLERS["SAGEMAKER_PROGRAM"],
    }
    done = subprocess.run(
        [sys.executable, "-c", SERVER, *containers],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2 * len(requests)
    return {
        "bytecnn": (folders["bytecnn"], found[: len(requests)]),
        "bert": (folders["bert"], found[len(requests) :]),
    }


def test_the_inference_toolkit_answers_as_predict_does(answers):
    for folder, found in answers.values():
        check_good(folder, found)
        check_bad(found)


def check_good(folder: Path, found: list[Any]) -> None:
    import predict

    expected = [
        [{"label": label, "score": pytest.approx(p, abs=1e-5)} for label, p in each]
        for _, each in predict.predict(WORDS, predict.model_fn(folder))
    ]
    assert len(expected[0]) == 3
    for status, kind, body in found[: len(GOOD)]:
        lines = body.splitlines() if kind == LINES else []
        assert status == 200
        assert ([json.loads(line) for line in lines] if lines else json.loads(body)) == expected
    assert [kind for _, kind, _ in found[: len(GOOD)]] == [JSON, JSON, LINES, JSON]
    rest = found[len(GOOD) :]
    assert [json.loads(body) for _, _, body in rest[: len(ONE)]] == [[expected[0]]] * len(ONE)
    assert [json.loads(body) for _, _, body in rest[len(ONE) : len(ONE) + len(NONE)]] == [[]] * len(
        NONE
    )
    assert [status for status, _, _ in rest[len(ONE) + len(NONE) : -len(BAD)]] == [200] * len(ODD)


def check_bad(found: list[Any]) -> None:
    """A request that cannot be read is answered by its status and a sentence."""
    for (_, status, said), (given, _, body) in zip(BAD, found[-len(BAD) :], strict=True):
        assert given == status, body
        assert body.startswith(said) and "\n" in body, body  # the toolkit adds where it was raised


def test_each_worker_uses_the_gpu_that_the_model_server_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TorchServe starts one for each GPU; on a CPU it gives none, or no number."""
    given = [None, *(SimpleNamespace(system_properties={"gpu_id": gpu}) for gpu in (None, 0, 3))]
    assert {serving.worker_device(context) for context in given} == {"cpu"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    devices = [serving.worker_device(context) for context in given]
    assert devices == ["cuda:0", "cuda:0", "cuda:0", "cuda:3"]
    assert len(inspect.signature(predict.model_fn).parameters) == 2, "the toolkit passes a context"
