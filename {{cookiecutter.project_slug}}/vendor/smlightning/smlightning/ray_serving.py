"""predict.py's handlers behind Ray Serve, as AWS's inference image with Ray Serve starts them.

The image runs ``serve run /opt/ml/model/config.yaml``, with /opt/ml/model/code on Python's path,
and passes requests of /invocations on to the application's root with their content type and
accepted types (scripts/docker/ray of github.com/aws/deep-learning-containers). `deploy` writes that
config.yaml and puts the trained model beside it.
"""

import asyncio
import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from smlightning.serving import JSON, Refusal

TRAINED = "trained"  # folder of the model that the job saved, beside config.yaml


def model_folder() -> Path:
    """Where the trained model is; an archive of another layout has it at the top."""
    top = Path(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
    return top / TRAINED if (top / TRAINED).is_dir() else top


class Handlers:
    """A loaded model that answers one request at a time, as a model need not be thread-safe."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            torch.set_num_threads(os.cpu_count() or 1)  # Ray sets OMP_NUM_THREADS to 1
        self.program = importlib.import_module("predict")
        self.model = self.program.model_fn(str(model_folder()))
        # Beside the event loop, which answers Ray's health checks meanwhile.
        self.worker = ThreadPoolExecutor(max_workers=1)

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        kind = request.headers.get("content-type", JSON)
        accept = request.headers.get("accept") or JSON
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.worker, self.answer, body, kind, accept)

    def answer(self, body: bytes, kind: str, accept: str) -> Response:
        """The response to one request."""
        program: Any = self.program
        try:
            answers = program.predict_fn(program.input_fn(body, kind), self.model)
            text, media_type = program.output_fn(answers, accept)
        except Refusal as refused:
            return PlainTextResponse(f"{refused}\n", refused.status)
        return Response(text, media_type=media_type)


app = serve.deployment(Handlers).bind()
