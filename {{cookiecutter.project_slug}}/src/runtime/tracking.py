"""Lightning's own logger of MLflow, where MLFLOW_TRACKING_URI names a server: job.toml's key `mlflow` sets it."""

from collections.abc import Mapping
from typing import Any

from runtime.report import UserError


def mlflow_loggers(options: Mapping[str, Any], env: Mapping[str, str]) -> list[Any]:
    """A logger for `Trainer` that has noted the run's options, named as the job; none where no server is named.

    Raises:
        UserError: mlflow is not installed.
    """
    if not (server := env.get("MLFLOW_TRACKING_URI")):
        return []
    from pytorch_lightning.loggers import MLFlowLogger

    experiment = env.get("MLFLOW_EXPERIMENT_NAME", "lightning_logs")
    try:
        logger = MLFlowLogger(experiment, run_name=env.get("TRAINING_JOB_NAME"), tracking_uri=server)
    except ModuleNotFoundError:
        cure = "add sagemaker-mlflow to src/requirements.txt, which brings mlflow, or unset it"
        raise UserError(f"MLFLOW_TRACKING_URI={server} is set, but mlflow is not installed; {cure}.") from None
    logger.log_hyperparams(dict(options))
    return [logger]
