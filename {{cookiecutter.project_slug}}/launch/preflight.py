"""What is wrong with a job before it is paid for: everything that can be known without asking AWS."""

import difflib
import functools
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from launch import ROOT, SRC, profiles, request
from launch.job import Job
from runtime.report import UserError

MAX_RUN_S = 28 * 86_400  # AWS's documentation of StoppingCondition; botocore's model has no ceiling
REQUIREMENTS = SRC / "requirements.txt"
MAX_SOURCE_MB = 50  # ample for code; every host downloads and unpacks it before training

SECRET = re.compile(r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|\b(hf_|gh[pousr]_|sk-)[A-Za-z0-9_-]{30,}")
SECRET_NAME = re.compile(r"(^|_)(secret|token|password|passwd|api_?key|access_key|credentials?)(_|$)", re.I)
SECRET_FILE = re.compile(r"\.env(\..+)?|.*\.(pem|key|p12)|id_(rsa|ed25519|ecdsa)|credentials(\.json)?|\.netrc", re.I)
DATA_FILE = re.compile(r".*\.(csv|tsv|jsonl|parquet|arrow|npy|npz|h5|zip|gz|ckpt|pth?|safetensors)", re.I)
NOT_TO_REPLACE = re.compile(r"(torch|torchvision|torchaudio|triton|pytorch-triton|(nvidia|cuda)-.*)$", re.I)
RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Finding:
    """One problem and its cure. An error refuses the job, a warning does not, skipped was not checked."""

    level: str  # error, warning, skipped
    key: str  # of job.toml, or a file
    problem: str
    cure: str

    def __str__(self) -> str:
        return " ".join(f"{self.level:<8}{self.key}: {self.problem}; {self.cure}".splitlines())


def error(key: str, problem: str, cure: str) -> Finding:
    return Finding("error", key, problem, cure)


def warning(key: str, problem: str, cure: str) -> Finding:
    return Finding("warning", key, problem, cure)


def skipped(key: str, problem: str, cure: str) -> Finding:
    return Finding("skipped", key, problem, cure)


def run(job: Job, *, offline: bool = False) -> list[Finding]:
    """All findings, errors first: the job, `src/`, its requirements, and the AWS account."""
    findings = [*quick(job), *requirements(job)]
    if not offline:
        from launch import account

        findings += account.check(job)
    return sorted(findings, key=lambda finding: ("error", "warning", "skipped").index(finding.level))


def quick(job: Job) -> list[Finding]:
    """What takes no network and less than a second; `submit` sends nothing that does not pass it."""
    return [*cluster(job), *limits(job), *consistency(job), *hyperparameters(job), *source(), *named_torch(job)]


def refused(findings: Iterable[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


def has_to_stand(findings: Iterable[Finding]) -> None:
    """Raises UserError if there is an error among the findings: what is refused is not sent."""
    if refused(findings):
        raise UserError("preflight refuses this job; mend what it calls an error, and begin again from the top")


def cluster(job: Job, *, today: date | None = None) -> Iterator[Finding]:
    """Region, instance, launcher and image, each against the others."""
    if job.region not in regions():
        yield error("region", f'"{job.region}" is no region of SageMaker', near(job.region, regions()))
    instance, launcher, kind = job.instance_type, profiles.launcher(job), profiles.family(job.instance_type)
    gpus, types = profiles.gpus(instance), shape("TrainingInstanceType").enum
    if instance not in types:
        yield error("instance_type", f'"{instance}" is no instance SageMaker trains on', near(instance, types))
        return
    if kind.startswith("trn") or kind == "p6e-gb200":
        yield error("instance_type", f"these images do not run on {instance}", "take a p or g instance (NVIDIA, x86)")
        return
    profile = profiles.profile(job)
    if profile is None and "/" not in job.image:
        known = ["auto", *profiles.PROFILES]
        yield error("image", f'"{job.image}" is neither a profile nor an image\'s URI', near(job.image, known))
        return

    torchrun = 'set distribution = "torch_distributed"'
    if launcher == "smddp" and instance not in profiles.SMDDP_INSTANCES:  # the SDK knows the list and never checks
        cure = f"{torchrun}, or instance_type to one of {', '.join(profiles.SMDDP_INSTANCES)}"
        yield error("distribution", f"SMDDP does not run on {instance}", cure)
    elif launcher == "pytorchddp" and gpus == 0:
        yield error("distribution", f"pytorchddp needs GPUs and {instance} has none", torchrun)
    elif launcher == "none" and job.instance_count > 1:
        yield error("distribution", f"none on {job.instance_count} hosts makes each believe it is rank 0", torchrun)
    elif launcher == "none" and gpus and gpus > 1:
        yield error("distribution", f"none starts one process, and {gpus - 1} of {gpus} paid GPUs would idle", torchrun)
    if gpus is None:
        yield skipped("instance_type", f"how many GPUs {instance} has is not known here", "torchrun uses all it finds")

    if profile is None:
        place = re.match(r"\d+\.dkr\.ecr\.([a-z0-9-]+)\.", job.image)
        if place and place[1] != job.region:
            yield error(
                "image", f"it lies in {place[1]} and the job in {job.region}", "name the one in the job's region"
            )
        yield skipped("image", "Python, torch and launcher of an image of your own are not known", "try them first")
        return
    if launcher not in profile.launchers:
        fit = [name for name, p in profiles.PROFILES.items() if launcher in p.launchers]
        yield error(
            "image", f"{profile.name} (torch {profile.torch}) cannot start {launcher}", f'set image = "{fit[0]}"'
        )
    elif gpus == 0 and not profile.cpu:
        yield error("image", f"{profile.name} is an image for GPUs and {instance} has none", 'set image = "auto"')
    # CUDA 12 dropped Kepler (p2), 13 Volta (p3); Blackwell (p6, g7) began with 12.8.
    cuda = f"CUDA {profile.cuda[0]}.{profile.cuda[1]} of {profile.name} does not support the GPUs of {kind}"
    if kind == "p2" or (kind.startswith("p3") and profile.cuda >= (13, 0)):
        yield error("image", cuda, "take a newer instance" + (', or image = "smddp"' if kind != "p2" else ""))
    elif kind.startswith(("p6", "g7")) and profile.cuda < (12, 8):
        yield error("image", cuda, 'set image = "current"')
    if (today or date.today()) > profile.patched_until:
        past = f"{profile.name} (torch {profile.torch}) has had no security patches since {profile.patched_until}"
        newer = f'{torchrun} and image = "current" if SMDDP is not worth it' if profile.name == "smddp" else "update it"
        yield warning("image", past, newer)


def limits(job: Job) -> Iterator[Finding]:
    """The job's values against lengths, counts, ranges and patterns of botocore's model of CreateTrainingJob."""
    where = job.checkpoint_s3 if job.checkpoint_s3 not in ("", "auto") else "s3://bucket"
    parts: dict[str, tuple[str, Any]] = {
        "name": ("TrainingJobName", request.job_name(job)),
        "hyperparameters": ("HyperParameters", {k: json.dumps(v) for k, v in request.hyperparameters(job).items()}),
        "environment": ("TrainingEnvironmentMap", job.environment),
        "tags": ("TagList", [{"Key": key, "Value": value} for key, value in job.tags.items()]),
        "channels": ("InputDataConfig", [{"ChannelName": name} for name in job.channels] or [{}]),
        "keep_alive_s": ("KeepAlivePeriodInSeconds", job.keep_alive_s),
        "volume_gb": ("VolumeSizeInGB", job.volume_gb),
        "checkpoint_s3": ("S3Uri", where),
        "network.subnets": ("Subnets", job.network.subnets or ["x"]),
        "network.security_groups": ("VpcSecurityGroupIds", job.network.security_groups or ["x"]),
        "src/options.py METRICS": ("MetricDefinitionList", request.metric_definitions()),
    }
    for key, (name, value) in parts.items():
        for path, problem in violations(value, shape(name)):
            cure = "change it; what is long belongs into a file of src/ or under [channels]"
            if key == "name":
                cure = f"at most {63 - len(value) + len(job.name)} letters, digits and hyphens: a timestamp is added"
            yield error(f"{key}{path}", problem, cure)
    if len(job.hyperparameters) > 92:
        yield error(
            "hyperparameters", f"{len(job.hyperparameters)} entries", "at most 92: the SDK adds 8 and AWS takes 100"
        )
    if job.max_run_s > MAX_RUN_S:
        yield error("max_run_s", f"{job.max_run_s} is more than 28 days", f"at most {MAX_RUN_S}")


def violations(value: Any, model: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """What of `value` is beyond the limits of a botocore shape: (path within it, problem)."""
    most, least, pattern = (model.metadata.get(key) for key in ("max", "min", "pattern"))
    size, unit = (value, "") if isinstance(value, int) else (len(value), " entries")
    if isinstance(value, str):
        unit = " characters"
    if most is not None and size > most:
        yield path, f"{size}{unit}, and AWS takes {most}"
    elif isinstance(value, str) and pattern and r"\p{" not in pattern and not re.fullmatch(pattern, value):
        yield path, f'"{value[:80]}" does not match {pattern}'
    if least is not None and size < least:
        yield path, f"{size}{unit}, and AWS wants {least}"
    if model.type_name == "map":
        for key, item in value.items():
            yield from violations(key, model.key, f"{path}.{key[:40]}")
            yield from violations(item, model.value, f"{path}.{key[:40]}")
    elif model.type_name == "list":
        for item in value:
            yield from violations(item, model.member, path)
    elif model.type_name == "structure":
        name = next((str(item) for item in value.values()), "")
        for key, item in value.items():
            yield from violations(item, model.members[key], f"{path}.{name[:40]}" if name else path)


def consistency(job: Job) -> Iterator[Finding]:
    """What AWS takes and would not do as meant."""
    if job.spot.enabled and job.spot.max_wait_s < job.max_run_s:
        problem = f"{job.spot.max_wait_s} is below max_run_s = {job.max_run_s}"
        yield error("spot.max_wait_s", problem, "it counts training and waiting: raise it, or lower max_run_s")
    if job.spot.enabled and not job.checkpoint_s3:
        yield error("checkpoint_s3", "spot without checkpoints loses all at each interruption", 'set it to "auto"')
    if job.spot.enabled and job.keep_alive_s:
        yield error("keep_alive_s", "spot machines cannot be kept", "set it to 0, or spot.enabled = false")
    if not re.fullmatch(r"(arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+|[\w+=,.@-]{1,64})?", job.role, re.ASCII):
        yield error("role", f'"{job.role}" is neither ARN nor name', "arn:aws:iam::<12 digits>:role/<name>")
    if not re.fullmatch(r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?", job.bucket):
        yield error("bucket", f'"{job.bucket}" is no bucket\'s name', "the name alone: no s3://, no folder")
    addresses = {f"channels.{name}": uri for name, uri in job.channels.items()} | {"checkpoint_s3": job.checkpoint_s3}
    for key, uri in addresses.items():
        if not s3_uri(uri) and (key, uri) not in (("checkpoint_s3", ""), ("checkpoint_s3", "auto")):
            yield error(key, f'"{uri}" is no S3 address', 'as in "s3://bucket/folder/"')
    for name in job.channels:
        if not re.fullmatch(r"\w+", name, re.ASCII):
            yield error(f"channels.{name}", f"SM_CHANNEL_{name.upper()} is no variable's name", "use underscores")
    if job.hyperparameters.get("dataset") == "training" and "training" not in job.channels:
        yield error("hyperparameters.dataset", "[channels] has no training", 'add training = "s3://bucket/folder/"')
    if job.spot.enabled and job.hyperparameters.get("resume", "auto") != "auto":
        yield error("hyperparameters.resume", "with spot, each restart would begin there again", 'set it to "auto"')
    for key in ("dataset", "model_name"):
        place = str(job.hyperparameters.get(key, "training"))
        if place.startswith("s3://") or (place != "training" and len(place) < 256 and Path(place).exists()):
            problem = f'"{place}" is nothing that a host in the cloud can open'
            yield warning(f"hyperparameters.{key}", problem, "put it into S3 and under [channels]")
    if "training" in job.channels and job.hyperparameters.get("dataset") != "training":
        yield warning("channels.training", "hyperparameters.dataset does not read it", 'set dataset = "training"')
    if bool(job.network.subnets) != bool(job.network.security_groups):
        problem = "one without the other, and the SDK drops both without a word"
        yield error("network.subnets, network.security_groups", problem, "give both, or neither")
    for key, value in {**job.hyperparameters, **job.environment}.items():
        if SECRET.search(str(value)) or (SECRET_NAME.search(key) and isinstance(value, str) and len(value) > 8):
            yield error(
                key, "looks like a secret, and the console shows it", "keep it in Secrets Manager, read it there"
            )
    for key in sorted(RANK_VARIABLES & job.environment.keys()):
        yield error(f"environment.{key}", "the launcher sets it, on each host another", "remove it")


def hyperparameters(job: Job) -> Iterator[Finding]:
    """Each hyperparameter, as the container would pass it, against what `src/options.py` declares."""
    from options import OPTIONS
    from runtime import command_line

    declared = command_line.declared(OPTIONS)
    for key, value in job.hyperparameters.items():
        name = f"hyperparameters.{key}"
        if key not in declared:
            yield error(name, "train.py has no such option", near(key, list(declared)))
            continue
        example = f"as in {key} = {json.dumps(declared[key].default)}"
        kinds = {bool: "true or false", int: "a whole number", float: "a number"}  # bool first: it is an int, too
        own = declared[key].type
        kind = next((words for base, words in kinds.items() if isinstance(own, type) and issubclass(own, base)), None)
        if isinstance(value, str) and kind:
            yield error(name, f'"{value}" is text, and train.py takes {kind}', f"no quotes, {example}")
            continue
        try:
            command_line.parse(OPTIONS, [f"--{key}={value}"])
        except UserError as problem:
            yield error(name, str(problem).removeprefix(f"--{key}: ").rstrip("."), example)


def source(folder: Path = SRC) -> Iterator[Finding]:
    """`src/` goes to S3 as it is: complete, small, and without data, secrets or links."""
    for needed in ("train.py", "requirements.txt"):
        if not (folder / needed).is_file():
            yield error(f"{folder.name}/{needed}", "is missing", "the container looks for it there")
    size = 0
    for path in sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts):
        name = path.relative_to(folder.parent).as_posix()
        if path.is_symlink():
            yield error(name, "is a link, which leads nowhere in the container", "put the file itself there")
        elif path.is_file():
            size += path.stat().st_size
            small = path.stat().st_size <= MAX_SOURCE_MB * 2**20  # more is refused below
            text = path.read_text(encoding="utf-8", errors="replace") if small else ""
            if SECRET_FILE.fullmatch(path.name) or SECRET.search(text):
                yield error(name, "looks like a secret, and would be uploaded", "move it out of src/")
            elif DATA_FILE.fullmatch(path.name):
                yield error(name, "is data, and would go to every host as code", "put it into S3 and under [channels]")
            elif path.suffix == ".ipynb" and '"output_type"' in text:
                yield error(name, "has outputs, which may hold data or secrets", "clear them, or move it out of src/")
    if size > MAX_SOURCE_MB * 2**20:
        yield error(
            f"{folder.name}/", f"{size / 2**20:.0f} MB as code", f"at most {MAX_SOURCE_MB}; data goes to [channels]"
        )


def named_torch(job: Job, path: Path = REQUIREMENTS) -> Iterator[Finding]:
    """A line of requirements.txt that asks for what the image brings."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        if NOT_TO_REPLACE.match(re.split(r"[^\w-]", line.strip())[0].replace("_", "-")):
            problem = f'"{line.strip()}" would replace {images_torch(job)}'
            yield error(f"{path.parent.name}/{path.name}", problem, "remove that line: the image brings it")


def images_torch(job: Job) -> str:
    profile = profiles.profile(job)
    return f"the image's torch {profile.torch if profile else ''}, and with it CUDA, NCCL, EFA and SMDDP"


def requirements(job: Job, path: Path = REQUIREMENTS) -> Iterator[Finding]:
    """Whether `pip install -r requirements.txt` in the image leaves the image's torch alone: pip's resolver says."""
    key, profile = f"{path.parent.name}/{path.name}", profiles.profile(job)
    if not path.is_file() or refused(named_torch(job, path)):
        return
    if profile is None:
        yield skipped(key, "not resolved: the image's versions are not known", "see that it does not replace torch")
        return
    try:
        installs = [item["metadata"] for item in resolve(path, profile)]
    except Unresolved as reason:
        if reason.unreachable:
            yield skipped(key, "pip reached no package index", "run preflight again with a network")
        else:
            yield error(key, f"pip finds no set for Python {profile.python}: {reason}", "change the pins")
        return
    for item in installs:
        if NOT_TO_REPLACE.match(item["name"]):
            wants = [
                i["name"]
                for i in installs
                if any(re.match(rf"{item['name']}\b", r) for r in i.get("requires_dist", []))
            ]
            by = f", as {wants[0]} asks," if wants else ""
            problem = f"{item['name']} {item['version']}{by} would replace {images_torch(job)}"
            yield error(key, problem, "pin what takes the image's torch")
            return


class Unresolved(Exception):
    """What pip said when it found no solution, and whether that was for want of a package index."""

    def __init__(self, said: str) -> None:
        super().__init__(
            " ".join(line.removeprefix("ERROR: ") for line in said.splitlines() if "WARNING" not in line)[-400:]
        )
        self.unreachable = bool(re.search(r"(?i)connection (broken|error)|timed out|no module named pip", said))


def resolve(path: Path, profile: profiles.Profile) -> list[dict[str, Any]]:
    """What pip would install into the image: its report's entries. Nothing is downloaded but metadata.

    pip is shown an environment that holds the image's torch and nothing else, and resolves for the image's Python and
    Linux. Environment markers are those of the interpreter that runs this, since pip has no option for them.

    Raises:
        Unresolved: there is no solution, or no package index.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home, with_pip=False, symlinks=sys.platform != "win32")
        python = next(p for p in (home / "bin/python", home / "Scripts/python.exe") if p.exists())
        site = next(home.glob("lib/python*/site-packages"), home / "Lib/site-packages")
        torch = site / f"torch-{profile.torch}.dist-info"
        torch.mkdir(parents=True)
        (torch / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {profile.torch}\n")
        command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
        command += ["--dry-run", "--quiet", "--report", str(home / "report.json"), "--requirement", str(path)]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={profile.python}"]
        command += [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in range(17, 36)]  # 2.35 is Ubuntu 22.04's
        done = subprocess.run([*command, "--retries=1", "--timeout=20"], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Unresolved(done.stderr)
        installs: list[dict[str, Any]] = json.loads((home / "report.json").read_text())["install"]
        return installs


def summary(job: Job) -> str:
    """What would run, in a line: hosts, launcher, image, ranks, and the batch that the learning rate meets."""
    profile, gpus, launcher = profiles.profile(job), profiles.gpus(job.instance_type), profiles.launcher(job)
    image = f"torch {profile.torch} on Python {profile.python}" if profile else job.image
    line = f"job     {job.instance_count} × {job.instance_type}, {launcher}, {image}"
    batch = job.hyperparameters.get("batch_size")
    if gpus is not None and isinstance(batch, int):
        world = job.instance_count * (1 if launcher == "none" else max(gpus, 1))
        line += f"; {world} ranks × batch_size {batch} = global batch {world * batch}"
    return line


def rehearsal(job: Job, path: Path = ROOT / "job.toml") -> list[str]:
    """The command that simulates the job of `path` here for some batches, with at most two hosts of two processes."""
    hosts, processes = min(job.instance_count, 2), min(profiles.gpus(job.instance_type) or 1, 2)
    command = [sys.executable, "-m", "rehearsal", "--hosts", str(hosts), "--processes", str(processes)]
    return [*command, "--distribution", profiles.launcher(job), "--job", str(path.resolve())]


def shape(name: str) -> Any:
    """A shape of botocore's model of SageMaker, with its limits."""
    return service_model().shape_for(name)


@functools.cache
def service_model() -> Any:
    import botocore.session

    return botocore.session.get_session().get_service_model("sagemaker")


@functools.cache
def regions() -> list[str]:
    import botocore.session

    session, partitions = botocore.session.get_session(), ("aws", "aws-cn", "aws-us-gov")
    return [name for partition in partitions for name in session.get_available_regions("sagemaker", partition)]


def s3_uri(text: str) -> bool:
    return bool(re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?", text))


def near(value: str, known: list[str]) -> str:
    """The cure of a name that does not exist."""
    found = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    return f"did you mean {found[0]}?" if found else f"known are {', '.join(known[:12])}"
