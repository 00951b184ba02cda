"""The files that `deploy` uploads, served by Ray Serve from PyPI.

Ray's wheel has some 70 MB: `pip install "ray[serve]"` into the tests' environment. CI's scheduled
run (.github/workflows/newest.yml) does.
"""

import http.client
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_serving import JSON, check_answers, saved

from smlightning_sagemaker import project
from smlightning_sagemaker.job import model_archive
from smlightning_sagemaker.testing.processes import free_port

# The image's entry point installs requirements.txt, starts Ray's head and Serve, then calls
# `serve run config.yaml` (scripts/docker/ray/sagemaker_entrypoint.sh). Here one process does it.
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
    top = place / "model"
    folder = saved("bytecnn", top / model_archive.TRAINED)
    (folder / "config.yaml").write_text("of: the model")  # which must not become Ray's
    model_archive.add_code(top, project.find().src)
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
def test_ray_serve_answers_with_the_predictions(served):
    folder, port = served
    check_answers(folder, lambda *request: ask(port, *request))
