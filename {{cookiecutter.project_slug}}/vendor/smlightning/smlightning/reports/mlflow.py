"""Lightning's MLflow logger, for the server of MLFLOW_TRACKING_URI."""

from collections.abc import Mapping, MutableMapping
from typing import Any

from smlightning.errors import UserError, root_cause


def mlflow_loggers(options: Mapping[str, Any], env: MutableMapping[str, str]) -> list[Any]:
    """A logger for ``Trainer`` with the run's options and the job's name; none without a server.

    job.toml's key ``mlflow`` sets MLFLOW_TRACKING_URI.

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
    try:
        logger = MLFlowLogger(
            experiment, run_name=env.get("TRAINING_JOB_NAME"), tracking_uri=server
        )
        logger.log_hyperparams(dict(options))
    except ModuleNotFoundError:
        raise UserError(
            "MLFLOW_TRACKING_URI is set, but mlflow is not installed",
            "add sagemaker-mlflow, which brings mlflow, to src/requirements.txt, or unset it",
        ) from None
    except Exception as error:  # from mlflow, the network, or a store
        reason = root_cause(error).replace(server, "its address")  # it may hold a password
        raise UserError(
            f"MLFLOW_TRACKING_URI's server cannot be used ({reason})", "correct it, or unset it"
        ) from None
    return [logger]
