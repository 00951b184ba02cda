"""The archive that `deploy` makes, unpacked and served by Ray Serve from PyPI.

Ray's wheel has some 70 MB: `pip install "ray[serve]"` into the tests' environment. CI's scheduled
run (.github/workflows/newest.yml) does.
"""

import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_inference_toolkit import BAD, GOOD, JSON, LINES, NONE, ODD, ONE, WORDS, saved

import predict
from smlightning import project
from smlightning.launch import inference_images, model_archive
from smlightning.testing.processes import free_port

# What the image's entry point does once it has installed requirements.txt: Ray's head and Serve,
# then `serve run config.yaml` (scripts/docker/ray/sagemaker_entrypoint.sh). Here in one process.
SERVER = """
import sys, time
import ray, yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, _temp_dir=sys.argv[2])
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
from ray.serve.context import _get_global_client

config = ServeDeploySchema.model_validate(yaml.safe_load(open("config.yaml")))
_get_global_client().deploy_apps(config, _blocking=True)
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """The folder of a trained model, and the port at which it answers."""
    place = tmp_path_factory.mktemp("container")
    folder = saved("bytecnn", place / "a")
    (folder / "config.yaml").write_text("of: the model")  # which must not become Ray's
    with tarfile.open(place / "trained.tar.gz", "w:gz") as tar:
        tar.add(folder, ".")
    packed, top = place / "model.tar.gz", place / "model"
    source, server = project.find().src, inference_images.RAY
    model_archive.pack(place / "trained.tar.gz", packed, source, server)
    with tarfile.open(packed) as tar:
        tar.extractall(top, filter="data")
    port = free_port()
    # Linux allows 107 bytes for a socket's path.
    temporary = Path(f"/tmp/ray-{os.getpid()}")  # noqa: S108
    env = os.environ | {
        "PYTHONPATH": f"{top}:{top}/code",
        "SM_MODEL_DIR": str(top),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (place / "log").open("w+b") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), str(temporary)],
            cwd=top,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            ready = any(line.startswith(b"ready") for line in process.stdout or ())
            assert ready, (place / "log").read_text(errors="replace")[-4000:]
            yield folder, port
        finally:
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def ask(port: int, body: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Status, content type and body of one answer; the body as Latin-1, as `posted` has it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/", body.encode("latin-1"), {"Accept": JSON, **headers})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"].partition(";")[0], content


@pytest.mark.newest
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed in this Python; pip install 'ray[serve]' into it",
)
def test_ray_serve_answers_as_predict_does(served):
    folder, port = served
    expected: list[Any] = [
        [{"label": label, "score": pytest.approx(p, abs=1e-5)} for label, p in each]
        for _, each in predict.predict(WORDS, predict.model_fn(folder))
    ]
    kinds = []
    for body, headers in GOOD:
        status, kind, content = ask(port, body, headers)
        kinds.append(kind)
        lines = content.splitlines() if kind == LINES else []
        assert status == 200
        found = [json.loads(line) for line in lines] if lines else json.loads(content)
        assert found == expected
    assert kinds == [JSON, JSON, LINES, JSON]
    assert [json.loads(ask(port, *each)[2]) for each in ONE] == [[expected[0]]] * len(ONE)
    assert [json.loads(ask(port, *each)[2]) for each in NONE] == [[]] * len(NONE)
    assert [ask(port, *each)[0] for each in ODD] == [200] * len(ODD)
    for request, status, said in BAD:
        found, _, content = ask(port, *request)
        assert found == status and content.startswith(said), content
