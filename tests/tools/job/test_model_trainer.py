"""ModelTrainer of the SageMaker SDK's version 3 sends the one request."""

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from small_job import GOOD, PROJECT
from smlightning.errors import UserError
from smlightning_sagemaker.job import model_trainer, request
from smlightning_sagemaker.job.job import from_table

REQUESTS = Path(__file__).parent / "requests"
PACKAGE = Path(model_trainer.__file__).parents[2]

# Prints what `train()` sends for each job, or why it cannot; nothing leaves this machine.
SEND = """
import json, sys
from smlightning.errors import UserError
from smlightning_sagemaker.job import job, model_trainer

class Sent(Exception):
    pass

def keep(params, **_):
    raise Sent(params)

for case in json.load(sys.stdin):
    try:
        trainer = model_trainer.model_trainer(job.from_table(case["job"]), case["request"])
        events = trainer.sagemaker_session.boto_session.events
        events.register("provide-client-params.sagemaker.CreateTrainingJob", keep)
        trainer.train(wait=False)
    except Sent as sent:
        print("RESULT", json.dumps(sent.args[0]))
    except UserError as error:
        print("RESULT", json.dumps(error.problem))
"""


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, dict[str, Any]]]:
    """For each recorded job: version 3's request or error, and the request of job.toml."""
    folder = tmp_path_factory.mktemp("sdk-v3")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    packages = ["sagemaker-train", "jsonargparse[signatures]>=4.53", "rich>=14"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    names = [path.stem for path in sorted(REQUESTS.glob("*.json"))]
    cases = [json.loads((REQUESTS / f"{name}.json").read_text("utf-8")) for name in names]
    debugged = {**cases[-1]["request"], "DebugHookConfig": {"S3OutputPath": "s3://bucket/x"}}
    cases.append({"job": cases[-1]["job"], "request": debugged})
    smddp = {**cases[names.index("smddp_spot_vpc")]["job"], "forward_stop": False}
    cases.append({"job": smddp, "request": request.dry_run(from_table(smddp), PROJECT)})
    names += ["debugged", "smddp"]
    done = subprocess.run(
        [python, "-c", SEND],
        input=json.dumps(cases),
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE),
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        },
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    results = [json.loads(line.removeprefix("RESULT ")) for line in lines]
    requests = (case["request"] for case in cases)
    return dict(zip(names, zip(results, requests, strict=True), strict=True))


@pytest.mark.newest  # it takes 0.9 GB, and minutes to install
def test_model_trainer_sends_the_request(sent: dict[str, tuple[Any, dict[str, Any]]]) -> None:
    for name, (made, wanted) in sent.items():
        if name in ("forward_stop", "smddp_spot_vpc"):  # both have forward_stop
            assert made == "ModelTrainer has no parameter for container_entrypoint", name
        elif name == "debugged":
            assert made == "ModelTrainer has no parameter for debug_hook_config"
        else:
            assert wanted.pop("ProfilerConfig") == {"DisableProfiler": True}
            stem = wanted.pop("TrainingJobName").partition("-20")[0]
            assert made.pop("TrainingJobName").startswith(stem)
            assert made == wanted, name


def test_without_version_3_the_cure_is_its_environment() -> None:
    with pytest.raises(UserError, match="no version 3") as raised:
        model_trainer.model_trainer(GOOD, request.dry_run(GOOD, PROJECT))
    assert "sagemaker-train" in raised.value.cure
