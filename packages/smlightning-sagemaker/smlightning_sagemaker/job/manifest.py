"""The Kubernetes manifest of a job: Kubeflow's PyTorchJob, or HyperPod's HyperPodPyTorchJob.

torchrun and hyperpodrun start training: in a PyTorchJob's pod, RANK is the number of the pod, and
these two set the ranks of processes. Sources: kubeflow/training-operator at release-1.9
(manifests/base/crds/kubeflow.org_pytorchjobs.yaml, pkg/controller.v1/pytorch/envvar.go,
pkg/webhooks/pytorch/pytorchjob_webhook.go); from PyPI, hyperpod-pytorch-job-template 1.5.0,
sagemaker-hyperpod 3.12.0 and hyperpod-elastic-agent 1.1.3 (its README and run.py).
"""

import re
from pathlib import PurePosixPath
from typing import Any

from smlightning import hub
from smlightning.errors import UserError
from smlightning_sagemaker.findings import each_of, error
from smlightning_sagemaker.job import images, instances, launchers, request
from smlightning_sagemaker.job.job import Job, JobError
from smlightning_sagemaker.preflight import paths
from smlightning_sagemaker.preflight.hyperparameters import conflicts, hyperparameters
from smlightning_sagemaker.preflight.secrets import visible
from smlightning_sagemaker.project import Project

CODE = "/opt/ml/code"  # of the image: src/ and the package, where SageMaker's toolkit unpacks them
VOLUME = "/mnt/volume"
GRACE_SECONDS = 120  # between SIGTERM and SIGKILL, as SageMaker has it
RESTARTS = 3
# Pods and their services add "-worker-<number>", and a label has 63 characters. PyTorchJob's
# webhook wants a letter first (DNS-1035).
NAME = re.compile(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?")
CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
AGENT_RUNS = ((2, 4), (2, 12))  # the first torch of hyperpod-elastic-agent 1.1.3, and the end


def manifest(
    job: Job, project: Project, *, volume: str, image: str = "", hyperpod: bool = False
) -> dict[str, Any]:
    """The manifest, for `kubectl apply`.

    Args:
        job: the content of job.toml.
        project: its src/options.py declares the options.
        volume: name of a PersistentVolumeClaim, or a folder of the nodes, for checkpoints and
            results.
        image: that holds src/ and the package; empty: the image of job.toml.
        hyperpod: for HyperPod's operator instead of Kubeflow's.

    Raises:
        UserError: Kubernetes cannot run the job, or an option is wrong.
    """
    image = image or images.image_uri(job)
    check(job, project, volume=volume, image=image, hyperpod=hyperpod)
    name, hosts = job.name.lower(), job.instance_count
    processes = 1 if launchers.launcher(job) == "none" else instances.gpus(job.instance_type) or 1
    run_policy: dict[str, Any] = {"activeDeadlineSeconds": job.max_run_s}
    if hyperpod:
        command = [
            "hyperpodrun",
            f"--nnodes={hosts}",
            f"--nproc-per-node={processes}",
            "--shutdown-signal=SIGTERM",
            f"--shutdown-timeout={GRACE_SECONDS - 20}",
        ]
        template = pod(job, command, volume=volume, image=image, hyperpod=True)
        return {
            "apiVersion": "sagemaker.amazonaws.com/v1",
            "kind": "HyperPodPyTorchJob",
            "metadata": {"name": name},
            "spec": {
                "nprocPerNode": str(processes),
                "runPolicy": {**run_policy, "jobMaxRetryCount": RESTARTS},
                "replicaSpecs": [{"name": "pod", "replicas": hosts, "template": template}],
            },
        }
    replicas = {
        kind: {
            "replicas": count,
            "restartPolicy": "OnFailure",
            "template": pod(job, ["torchrun"], volume=volume, image=image),
        }
        for kind, count in (("Master", 1), ("Worker", hosts - 1))
        if count
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": str(processes),  # torchrun reads PET_NPROC_PER_NODE, PET_NNODES, …
            "runPolicy": {**run_policy, "backoffLimit": RESTARTS},
            "pytorchReplicaSpecs": replicas,
        },
    }


def pod(
    job: Job, command: list[str], *, volume: str, image: str, hyperpod: bool = False
) -> dict[str, Any]:
    """The template of the job's pods; each takes a whole node."""
    kind = job.instance_type
    amounts = {
        "nvidia.com/gpu": instances.gpus(kind),
        "vpc.amazonaws.com/efa": instances.efa_interfaces(kind),
    }
    amounts = {resource: count for resource, count in amounts.items() if count}
    source = {"persistentVolumeClaim": {"claimName": volume}}
    if volume.startswith("/"):
        source = {"hostPath": {"path": volume}}
    container = {
        "name": "pytorch",
        "image": image,
        "workingDir": CODE,
        "command": [*command, "train.py", *options(job)],
        "env": variables(job, hyperpod=hyperpod),
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "volumeMounts": [
            {"name": "volume", "mountPath": VOLUME},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    # HyperPod's nodes have SageMaker's names of instance types, others have EC2's.
    label = kind if hyperpod else kind.removeprefix("ml.")
    return {
        "spec": {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "nodeSelector": {"node.kubernetes.io/instance-type": label},
            "containers": [container],
            "volumes": [
                {"name": "volume", **source},
                # Loader workers need more than the 64 MiB that a container has.
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
    }


def options(job: Job) -> list[str]:
    """The command line of train.py; all results go to the job's folder on the volume."""
    folder = f"{VOLUME}/{job.name.lower()}"
    values = {**job.hyperparameters, "output_dir": folder}
    return [literal(f"--{name}={value}") for name, value in values.items()]


def variables(job: Job, *, hyperpod: bool) -> list[dict[str, Any]]:
    """The container's variables; secrets come from one Secret of Kubernetes."""
    kind = job.instance_type
    values = images.EFA_VARIABLES if instances.efa(kind) else {}
    values = {**values, **request.environment(job.replace(secrets={}, hub_token_secret=""))}
    if hyperpod:
        values["NNODES"] = str(job.instance_count)  # hyperpodrun requires it
    secrets = [*job.secrets, *([hub.TOKEN] if job.hub_token_secret else [])]
    name = f"{job.name.lower()}-secrets"
    return [
        *({"name": key, "value": literal(value)} for key, value in values.items()),
        *(
            {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
            for key in secrets
        ),
    ]


def literal(text: str) -> str:
    """A text that Kubernetes passes unchanged: in commands and variables it expands $(NAME) and $$.

    Source: Kubernetes' API reference, Container.command and EnvVar.value.
    """
    return text.replace("$", "$$")


def is_missing(option: str, path: str, project: Project) -> bool:
    """Whether it is a path of this machine that no pod has; an absolute one may be in the image."""
    may_be_there = path.startswith("/") or paths.travels(project, path)
    return paths.is_local(option, path) and not may_be_there


def check(job: Job, project: Project, *, volume: str, image: str, hyperpod: bool) -> None:
    """Reject a job that Kubernetes cannot run, or whose options train.py does not take."""
    launcher, hosts = launchers.launcher(job), job.instance_count
    kind = job.instance_type
    family = None if image != images.image_uri(job) else images.profile(job)
    reserved = next(filter(launchers.reserves, {**job.environment, **job.secrets}), "")
    request_keys = sorted({*job.request} - {"ResourceConfig"})
    given = {name: str(value) for name, value in job.hyperparameters.items()}
    local = next((name for name, value in given.items() if is_missing(name, value, project)), "")
    is_folder = PurePosixPath(volume).is_absolute() and volume.strip("/")
    if not CLAIM.fullmatch(volume) and not is_folder:
        raise UserError(
            f'--volume "{volume}" is neither the name of a claim nor a folder of the nodes',
            "write a name as in checkpoints, or a path as in /fsx/team",
        )
    wrong = [
        *each_of(
            (
                launcher in ("smddp", "pytorchddp"),
                error(
                    "distribution",
                    f"{launcher} needs mpirun, and a pod starts torchrun",
                    'set it to "torch_distributed"',
                ),
            ),
            (
                launcher == "none" and hosts > 1,
                error(
                    "distribution",
                    f'"none" starts one process, and the job has {hosts} hosts',
                    'set it to "torch_distributed", or instance_count to 1',
                ),
            ),
            (
                None in (instances.gpus(kind), instances.efa_interfaces(kind)),
                error(
                    "instance_type",
                    f"GPUs or EFA interfaces of {kind} are not known here",
                    "choose another type",
                ),
            ),
            (
                not NAME.fullmatch(job.name.lower()),
                error(
                    "name",
                    f'"{job.name}" is not a name of Kubernetes',
                    "use at most 47 letters, digits and hyphens, a letter first and no hyphen last",
                ),
            ),
            (
                job.channels,
                error(
                    "channels",
                    "SageMaker copies channels, Kubernetes does not",
                    f"put the data on the volume ({VOLUME} in the pod), and set dataset to its "
                    "path, in a second job.toml (--job FILE)",
                ),
            ),
            (
                local,
                error(
                    f"hyperparameters.{local}",
                    f'"{given.get(local)}" is a path of this machine, and no pod has it',
                    f"put the data on the volume ({VOLUME} in the pod), and set its path there, in "
                    "a second job.toml (--job FILE)",
                ),
            ),
            (
                job.spot.enabled,
                error(
                    "spot.enabled",
                    "the cluster chooses the nodes",
                    "set it to false, and let the cluster have spot nodes",
                ),
            ),
            (
                request_keys,
                error(
                    "request",
                    f"{', '.join(request_keys)} is for CreateTrainingJob",
                    "remove it in a second job.toml (--job FILE)",
                ),
            ),
            (
                job.checkpoint_s3 not in ("auto", ""),
                error(
                    "checkpoint_s3",
                    "checkpoints are on the volume",
                    'copy them there, and set it to "auto"',
                ),
            ),
            (
                reserved,
                error(
                    "environment",
                    f"the launcher sets {reserved} in each pod",
                    "give it another name",
                ),
            ),
            (
                hyperpod and family and not AGENT_RUNS[0] <= family.version < AGENT_RUNS[1],
                error(
                    "image",
                    f"hyperpodrun needs torch 2.4 to 2.11, and {job.image} is another one",
                    'set it to "mpirun", or pass --image',
                ),
            ),
            (
                image.endswith("/"),
                error(
                    "image",
                    f"{job.image} has no image without GPUs",
                    'set it to "current", or pass --image',
                ),
            ),
        ),
        *visible(job, {"Environment": job.environment}, project),
        *hyperparameters(job, project),
        *conflicts(job, project),
    ]
    if wrong:
        raise JobError(wrong)
