"""predict.py's handlers behind Ray Serve, as AWS's inference image with Ray Serve starts them.

The image runs ``serve run /opt/ml/model/config.yaml``, with /opt/ml/model/code on Python's path,
and passes requests of /invocations on to the application's root with their content type and
accepted types (scripts/docker/ray of github.com/aws/deep-learning-containers). `deploy` writes that
config.yaml and puts the trained model next to it.
"""

import asyncio
import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from smlightning import serving

FOLDER = "/opt/ml/model"


class Handlers:
    """A loaded model that answers one request at a time, as a model need not be thread-safe."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            torch.set_num_threads(os.cpu_count() or 1)  # Ray sets OMP_NUM_THREADS to 1
        self.predict = importlib.import_module("predict")
        folder = Path(os.environ.get("SM_MODEL_DIR", FOLDER), "trained")
        self.model = self.predict.model_fn(str(folder))
        # In a thread, so that the event loop answers Ray's health checks meanwhile.
        self.worker = ThreadPoolExecutor(max_workers=1)

    async def __call__(self, request: Request) -> Response:
        given = (
            self.predict,
            self.model,
            await request.body(),
            request.headers.get("content-type", serving.JSON),
            request.headers.get("accept") or serving.JSON,
        )
        loop = asyncio.get_running_loop()
        status, kind, text = await loop.run_in_executor(self.worker, serving.answer, *given)
        return Response(text, status, media_type=kind)


app = serve.deployment(Handlers).bind()
