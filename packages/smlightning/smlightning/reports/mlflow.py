"""Lightning's MLflow logger, for the server of MLFLOW_TRACKING_URI."""

from collections.abc import Mapping, MutableMapping
from typing import Any

from smlightning.errors import UserError, root_cause
from smlightning.reports.tracking import RunIds


def mlflow_loggers(
    options: Mapping[str, Any], env: MutableMapping[str, str], ids: RunIds
) -> list[Any]:
    """A logger for ``Trainer`` with the run's options and the job's name; none without a server.

    A run that resumes goes on in its MLflow run, whose options stay those of its start: MLflow
    lets nobody change them. job.toml's key ``mlflow`` sets MLFLOW_TRACKING_URI.

    Raises:
        UserError: mlflow is not installed, or the server cannot be used.
    """
    server = env.get("MLFLOW_TRACKING_URI")
    if not server:
        return []
    from pytorch_lightning.loggers import MLFlowLogger

    # By default mlflow waits minutes for a slow server, and training would seem to hang.
    env.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    env.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    experiment = env.get("MLFLOW_EXPERIMENT_NAME", "lightning_logs")
    known = ids.known("mlflow")
    cure = "correct it, or unset it"
    if known:
        cure = f"{cure}, or remove {ids.file('mlflow')} to begin another run there"
    try:
        kind = _without_options(MLFlowLogger) if known else MLFlowLogger
        logger = kind(
            experiment,
            run_name=env.get("TRAINING_JOB_NAME"),
            tracking_uri=server,
            run_id=known or None,
        )
        logger.log_hyperparams(dict(options))
        if known:
            logger.experiment.update_run(known, status="RUNNING")
        run_id = logger.run_id  # None on other ranks than 0
    except ModuleNotFoundError:
        raise UserError(
            "MLFLOW_TRACKING_URI is set, but mlflow is not installed",
            "add sagemaker-mlflow, which brings mlflow, to src/requirements.txt, or unset it",
        ) from None
    except Exception as error:  # from mlflow, the network, or a store
        reason = root_cause(error).replace(server, "its address")  # it may hold a password
        raise UserError(f"MLFLOW_TRACKING_URI's server cannot be used ({reason})", cure) from None
    if run_id and not known:
        ids.keep("mlflow", run_id)
    return [logger]


def _without_options(kind: Any) -> Any:
    """A logger that leaves the run's options, and those of the model, as they are."""

    class Resumed(kind):  # type: ignore[misc]
        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            """Does nothing."""

    return Resumed
