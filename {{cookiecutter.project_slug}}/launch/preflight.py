"""What is wrong with a job before it is paid for: job.toml, the request that would be sent, and `src/`."""

import inspect
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from launch import ROOT, SRC, aws, profiles, request, requirements, v3
from launch.findings import Finding, error, from_sentence, near, ordered, refused, skipped, warning
from launch.job import KEYS, MEMBERS, OWN_KEYS, TABLES, Job, home
from runtime import hub
from runtime.report import UserError

MAX_RUN_S = 28 * 86_400  # AWS's documentation of StoppingCondition; botocore's model has no ceiling
USUAL_INSTANCES, MOST_INSTANCES = 20, 1000  # AWS's default quota for one job; beyond the other it is a slip of the pen
MAX_SOURCE_MB = 50  # ample for code; every host downloads and unpacks it before training
S3_EXAMPLE = 'as in "s3://bucket/folder/"'
CHANNELS = "/opt/ml/input/data/"  # where the container finds them

SECRET = re.compile(
    r"A[KS]IA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|\bxox[abp]-"
    r"|\b(hf_|gh[pousr]_|github_pat_|sk-)[A-Za-z0-9_-]{30,}|://[^/\s:@]+:[^/\s@]+@"
)
SECRET_NAME = re.compile(r"(^|_)(secret|token|password|passwd|api_?key|access_key|credentials?)(_|$)", re.I)
SECRET_FILE = re.compile(r"\.env(\..+)?|.*\.(pem|key|p12)|id_(rsa|ed25519|ecdsa)|credentials(\.json)?|\.netrc", re.I)
DATA_FILE = re.compile(r".*\.(csv|tsv|jsonl|parquet|arrow|npy|npz|h5|zip|gz|ckpt|pth?|safetensors)", re.I)
# A text that can only be a path of this machine.
LOCAL = re.compile(rf"(?!\w+://|/opt/ml/)((\.\.?[/\\]|~|[a-z]:[/\\]).*|{DATA_FILE.pattern})", re.I)

# What the SDK takes and src/ cannot work with: key of [estimator] or of a channel → value (empty: any), problem, cure.
UNFIT = {
    "input_mode": ("Pipe", "a pipe holds no files, and src/ reads folders of files", 'take "File" or "FastFile"'),
    "distribution": ("ShardedByS3Key", "each host would get a part, and the ranks divide all data", "remove it"),
    "checkpoint_local_path": ("", "training keeps its checkpoints in /opt/ml/checkpoints", "remove it"),
}

# Where a value of the request comes from, for messages: member of CreateTrainingJob → key of job.toml.
SOURCES = {path: OWN_KEYS.get(key, f"estimator.{key}").strip("[]") for key, path in MEMBERS.items()}
SOURCES |= {"TrainingJobName": "name", "HyperParameters": "hyperparameters", "InputDataConfig": "channels"}


def run(
    job: Job, *, offline: bool = False, accept: Collection[str] = (), also: Iterable[Finding] = ()
) -> list[Finding]:
    """All findings, errors first: job.toml, the request, `src/`, its requirements, the AWS account, and `also`."""
    from launch import account

    found, made = offline_checks(job)
    found += [*also, *requirements.resolved(job)]
    if not offline and made:
        found += account.check(job, made)
    return ordered(found, accept)


def offline_checks(job: Job) -> tuple[list[Finding], dict[str, Any] | None]:
    """What takes no network, and the request if one can be made; `submit` sends nothing that is refused here."""
    found = [*cluster(job), *image(job), *misplaced(job), *fields(job), *network(job), *addresses(job)]
    found += [*reading(job), *hyperparameters(job), *source(), *requirements.named(job), *sdk_parameters(job)]
    made = None
    try:
        made = request.dry_run(job)
        found += [*limits(made), *visible(job, made), *keys(job, made)]
    except UserError as problem:
        if not refused(found):  # else it is one of these
            found.append(from_sentence("job.toml", str(problem)))
    return found, made


def cluster(job: Job) -> Iterator[Finding]:
    """Region, instances and launcher, each against the others."""
    import botocore.session

    session, partitions = botocore.session.get_session(), ("aws", "aws-cn", "aws-us-gov")
    regions = [name for each in partitions for name in session.get_available_regions("sagemaker", each)]
    if job.region not in regions:
        newer = "if AWS opened it later, pip install --upgrade boto3"
        yield error("region", f'"{job.region}" is not a region of SageMaker', f"{near(job.region, regions)}; {newer}")
    yield from limits({"ResourceConfig": {"InstanceType": job.instance_type}})  # the SDK may make no request of it
    instance, launcher, count = job.instance_type, profiles.launcher(job), job.instance_count
    gpus = profiles.gpus(instance)
    if profiles.family(instance).startswith(("trn", "p6e-gb200")):
        yield error("instance_type", f"these images do not run on {instance}", "take a p or g instance (NVIDIA, x86)")
        return
    if count > MOST_INSTANCES:
        yield error("instance_count", f"{count:,} instances", f"expected at most {MOST_INSTANCES:,}; correct it")
    elif count > USUAL_INSTANCES:
        problem = f"{count} is above AWS's default of {USUAL_INSTANCES} instances per job"
        yield warning("instance_count", problem, "see that your quota was raised")
    torchrun = 'set distribution = "torch_distributed"'
    if launcher == "smddp" and instance not in profiles.SMDDP_INSTANCES:
        cure = f"{torchrun}, or instance_type to one of {', '.join(profiles.SMDDP_INSTANCES)}"
        yield error("distribution", f"SMDDP does not run on {instance}", cure)
    elif launcher == "pytorchddp" and gpus == 0:
        yield error("distribution", f"pytorchddp needs GPUs and {instance} has none", torchrun)
    elif launcher == "none" and count > 1:
        yield error("distribution", f"none on {count} hosts makes each believe it is rank 0", torchrun)
    elif launcher == "none" and gpus and gpus > 1:
        yield error("distribution", f"none starts one process, and {gpus - 1} of {gpus} paid GPUs would idle", torchrun)
    if gpus is None:
        yield skipped("instance_type", f"how many GPUs {instance} has is not known here", "torchrun uses all it finds")


def image(job: Job, *, today: date | None = None) -> Iterator[Finding]:
    """The image against region, instance and launcher."""
    profile, launcher, gpus = profiles.profile(job), profiles.launcher(job), profiles.gpus(job.instance_type)
    if profile is None and "/" not in job.image:
        known = ["auto", *profiles.PROFILES]
        yield error("image", f'"{job.image}" is neither a profile nor an image\'s URI', near(job.image, known))
        return
    if profile is None:
        place = re.match(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com", job.image)
        if not place and job.estimator.get("training_repository_access_mode") != "Vpc":
            cure = 'push it to Amazon ECR; a registry in your VPC needs training_repository_access_mode = "Vpc"'
            yield error("image", f'"{job.image}" is not in Amazon ECR', f"{cure} in [estimator]")
        elif place and place[1] != job.region:
            yield error("image", f"it is in {place[1]} and the job in {job.region}", "name the one in the job's region")
        elif gpus != 0 and re.search(r"[:.-]cpu\b", job.image.rpartition("/")[2]):
            problem = f"its tag says CPU, and the GPUs of {job.instance_type} would idle"
            yield error("image", problem, "take a GPU image")
        yield skipped("image", "Python, torch and launcher of an image of your own are not known", "rehearse with them")
        return
    if launcher not in profile.launchers:
        fit = [name for name, p in profiles.PROFILES.items() if launcher in p.launchers]
        problem = f"{profile.name} (torch {profile.torch}) cannot start {launcher}"
        yield error("image", problem, f'set image = "{fit[0]}"')
    elif gpus == 0 and not profile.cpu:
        problem = f"{profile.name} is an image for GPUs and {job.instance_type} has none"
        yield error("image", problem, 'set image = "auto"')
    # CUDA 12 dropped Kepler (p2), 13 Volta (p3); Blackwell (p6, g7) began with 12.8.
    kind = profiles.family(job.instance_type)
    cuda = f"CUDA {profile.cuda[0]}.{profile.cuda[1]} of {profile.name} does not support the GPUs of {kind}"
    if kind == "p2" or (kind.startswith("p3") and profile.cuda >= (13, 0)):
        yield error("image", cuda, "take a newer instance" + (', or image = "smddp"' if kind != "p2" else ""))
    elif kind.startswith(("p6", "g7")) and profile.cuda < (12, 8):
        yield error("image", cuda, 'set image = "current"')
    if (today or date.today()) > profile.patched_until:
        past = f"{profile.name} (torch {profile.torch}) has had no security patches since {profile.patched_until}"
        newer = 'set distribution = "torch_distributed" and image = "current" if SMDDP is not worth it'
        yield warning("image", past, newer if profile.name == "smddp" else "update this project")


def misplaced(job: Job) -> Iterator[Finding]:
    """Keys and options that were written below another [table], and so belong to it."""
    for table, entries in (("tags", job.tags), ("environment", job.environment)):
        for key in filter(home, entries):
            # A tag is likelier to be called seed or environment on purpose than max_run_s.
            level = warning if table == "tags" and (key not in KEYS or key in TABLES) else error
            cure = f"{home(key)}, or pass --accept {table}.{key} if it is meant"
            yield level(f"{table}.{key}", f"{key} stands in [{table}] and has a place of its own", cure)


def fields(job: Job) -> Iterator[Finding]:
    """Single values, which AWS would refuse or take otherwise than meant."""
    if job.max_run_s > MAX_RUN_S:
        yield error("max_run_s", f"{job.max_run_s} is more than 28 days", f"at most {MAX_RUN_S}")
    if job.spot.enabled and job.spot.max_wait_s < job.max_run_s:
        problem = f"{job.spot.max_wait_s} is below max_run_s = {job.max_run_s}"
        yield error("spot.max_wait_s", problem, "it counts training and waiting: raise it, or lower max_run_s")
    if job.spot.enabled and not job.checkpoint_s3:
        yield error("checkpoint_s3", "spot without checkpoints loses all at each interruption", 'set it to "auto"')
    if job.spot.enabled and job.keep_alive_s:
        yield error("keep_alive_s", "spot instances cannot be kept", "set it to 0, or spot.enabled = false")
    if job.spot.enabled and job.hyperparameters.get("resume", "auto") != "auto":
        yield error("hyperparameters.resume", "with spot, each restart would begin there again", 'set it to "auto"')
    if not re.fullmatch(r"(arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+|[\w+=,.@-]{1,64})?", job.role, re.ASCII):
        yield error("role", f'"{job.role}" is neither ARN nor name', "arn:aws:iam::<12 digits>:role/<name>")
    if not re.fullmatch(r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?", job.bucket):
        yield error("bucket", f'"{job.bucket}" is not the name of a bucket', "the name alone: no s3://, no folder")
    if not re.fullmatch(r"(arn:[\w-]+:sagemaker:[\w-]+:\d{12}:mlflow-(app|tracking-server)/.+)?", job.mlflow):
        yield error("mlflow", f'"{job.mlflow}" names no server', "give the ARN of your MLflow tracking server or app")
    elif job.mlflow and not requirements.lists("sagemaker-mlflow"):
        yield error("mlflow", "the container has no client for it", "add sagemaker-mlflow to src/requirements.txt")
    if not re.fullmatch(r"(ssm:[\w./:-]+|(?!ssm:)[\w/+=.@:-]+)?", job.hub_token_secret, re.ASCII):
        yield error("hub_token_secret", f'"{job.hub_token_secret}" names no secret', 'a name, an ARN, or "ssm:NAME"')
    if job.checkpoint_s3 not in ("", "auto"):
        if not aws.s3_uri(job.checkpoint_s3):
            yield error("checkpoint_s3", f'"{job.checkpoint_s3}" is not an S3 address', S3_EXAMPLE)
        elif not re.fullmatch(r"s3://[^/]+/.*[^/].*", job.checkpoint_s3):
            problem = f"{job.checkpoint_s3} is a whole bucket, and every host would download it"
            yield error("checkpoint_s3", problem, "name a folder in it")


def network(job: Job) -> Iterator[Finding]:
    """IDs of subnets and groups. The SDK drops one without the other."""
    kinds = {"subnets": (job.network.subnets, "subnet-"), "security_groups": (job.network.security_groups, "sg-")}
    for key, (identifiers, start) in kinds.items():
        for each in identifiers:
            if not re.fullmatch(rf"{start}[0-9a-f]{{8,17}}", each):
                yield error(f"network.{key}", f'"{each}" is not one\'s ID', f"as in {start}0123456789abcdef0")
    if bool(job.network.subnets) != bool(job.network.security_groups):
        problem = "subnets and security_groups one without the other, and the SDK silently drops both"
        yield error("network", problem, "give both, or neither")


def addresses(job: Job) -> Iterator[Finding]:
    """Names and addresses of channels, each by itself, against each other and against the checkpoints."""
    for name, given in job.channels.items():
        key, table = f"channels.{name}", given if isinstance(given, dict) else {"s3_data": given}
        known, address = inspect.signature(request.channel_class(table)).parameters, str(table.get("s3_data", ""))
        for unknown in table.keys() - known:
            yield error(f"{key}.{unknown}", "the SDK's inputs have no such parameter", near(unknown, known))
        if "file_system_id" in table:
            if not job.network.subnets:
                yield error(key, "a file system can be reached in your VPC alone", "fill [network]")
        elif not aws.s3_uri(address):
            yield error(key, f'"{address}" is not an S3 address', S3_EXAMPLE)
        elif aws.s3_uri(job.checkpoint_s3):
            data, kept = f"{address.rstrip('/')}/", f"{job.checkpoint_s3.rstrip('/')}/"
            if data.startswith(kept) or kept.startswith(data):
                problem = f"it and {key} overlap, and checkpoints would be data"
                yield error("checkpoint_s3", problem, "name another folder")
        variable = f"SM_CHANNEL_{name.upper()}"
        if not re.fullmatch(r"\w+", name, re.ASCII):
            yield error(key, f"{variable} is not a valid variable name", "use letters, digits and underscores")
        elif twin := next((other for other in job.channels if other < name and other.upper() == name.upper()), ""):
            yield error(key, f"{twin} sets {variable} as well", "rename one of them")


def reading(job: Job) -> Iterator[Finding]:
    """Every channel is read by an option or in `src/`, and what an option reads is a channel's or in the image."""
    from options import OPTIONS
    from runtime import command_line

    declared = command_line.declared(OPTIONS)
    options = {key: each.default for key, each in declared.items()} | job.hyperparameters
    read = {key: value for key, value in options.items() if isinstance(value, str)}
    own_code = "".join(path.read_text(encoding="utf-8", errors="replace") for path in SRC.glob("*.py"))
    for name in job.channels:
        by_path = any(f"{value}/".startswith(f"{CHANNELS}{name}/") for value in read.values())
        by_name = name in read.values() and (name == "training" or "SM_CHANNEL_" in own_code)
        if not (by_name or by_path or f"SM_CHANNEL_{name.upper()}" in own_code):
            cure = 'set hyperparameters.dataset = "training"'
            if name != "training":
                folder = f'give an option its folder, "{CHANNELS}{name}"'
                cure = folder if "training" in job.channels else f"name it training and {cure}"
            problem = "every host would download it and no option reads it"
            yield error(f"channels.{name}", problem, f"{cure}, or remove it")
    for option, value in read.items():
        key, needed = f"hyperparameters.{option}", "training" if value == "training" else ""
        if value.startswith(CHANNELS):
            needed = value.removeprefix(CHANNELS).split("/")[0]
        twin = next((name for name in job.channels if name.lower() == needed.lower()), "")
        # A name alone, such as outputs, is not meant as a path. Path.exists raises where a text is too long for one.
        path = f"{Path.home()}{value[1:]}" if value.startswith("~/") else value
        exists = (LOCAL.fullmatch(value) or "/" in value) and os.path.exists(path)  # noqa: PTH110
        # An option that is neither of data nor of weights may name a folder for output, which need not be there.
        output = option in declared and declared[option].resume in ("free", "path") and option != "resume"
        written = output and not (exists and os.path.isfile(path))  # noqa: PTH113
        everywhere = value.startswith("/opt/ml/") or value.strip("/.") in ("", "tmp", "dev/shm")
        if needed and needed not in job.channels:
            cure = f"rename {twin}: case counts" if twin else f'add {needed[:80]} = "s3://bucket/folder/"'
            yield error(key, f"[channels] has no {needed[:80]} to read", cure)
        elif value.startswith("s3://"):
            problem = f'"{value[:80]}" is an address, and the training job reads files'
            yield warning(key, problem, "name it under [channels], and the channel here")
        elif (exists or LOCAL.fullmatch(value)) and not (needed or written or everywhere):
            problem = f'"{value[:80]}" is a path of this machine, which the training job cannot read'
            cure = "upload it to S3, name that under [channels], and the channel here"
            yield (error if exists else warning)(key, problem, cure)


def hyperparameters(job: Job) -> Iterator[Finding]:
    """Each hyperparameter, as the container would pass it, against what `src/options.py` declares."""
    from options import OPTIONS
    from runtime import command_line

    declared, profile = command_line.declared(OPTIONS), profiles.profile(job)
    old_torchrun = profiles.launcher(job) == "torch_distributed" and (profile is None or profile.python == "3.11")
    for key, value in job.hyperparameters.items():
        name = f"hyperparameters.{key}"
        if key not in declared:
            yield error(name, "train.py has no such option", home(key) or near(key, declared))
        elif old_torchrun and (clash := profiles.abbreviates(key)):
            problem = f"torchrun on Python 3.11 takes --{key} for one of its own ({', '.join(clash)}) and exits"
            yield error(name, problem, "rename the option in src/options.py")
        else:
            try:
                command_line.parse(OPTIONS, [f"--{key}={value}"])
            except UserError as problem:
                example = f"as in {key} = {json.dumps(declared[key].default)}"
                yield error(name, str(problem).removeprefix(f"--{key}: ").rstrip("."), example)
            except ValueError:  # Python writes no number of more than 4,300 digits
                yield error(name, "a number of thousands of digits", "shorten it")


def visible(job: Job, made: dict[str, Any]) -> Iterator[Finding]:
    """Environment and tags as they would be sent, and secrets in what the AWS console shows."""
    environment = {str(key): value for key, value in made.get("Environment", {}).items()}  # [estimator] may hold any
    for key in (key for key in environment if key.startswith(profiles.RESERVED_VARIABLES)):
        yield error(f"environment.{key}", "the launcher or SageMaker's toolkit sets it on each host", "remove it")
    if environment.get("NCCL_DEBUG", "WARN") != "WARN" and profiles.launcher(job) in ("torch_distributed", "none"):
        problem = f"the toolkit sets NCCL_DEBUG to WARN under {profiles.launcher(job)}"
        yield warning("environment.NCCL_DEBUG", problem, "remove it; under mpirun it arrives")
    tags = {str(tag["Key"]): tag["Value"] for tag in made.get("Tags", [])}
    for key in (key for key in tags if key.lower().startswith("aws:")):
        yield error(f"tags.{key}", "AWS keeps tags that begin with aws: to itself", "rename it")
    shown = {"hyperparameters": job.hyperparameters, "environment": environment, "tags": tags}
    for path, value in texts({**shown, "estimator": job.estimator}):
        named = SECRET_NAME.search(path.rpartition(".")[2]) and path != f"environment.{hub.SECRET}" and len(value) > 8
        if SECRET.search(value) or named:
            cure = "keep it in Secrets Manager and read it there (of the Hugging Face hub: hub_token_secret)"
            if path == f"environment.{hub.SECRET}":
                path, cure = "hub_token_secret", "keep it in Secrets Manager, and give the name of that secret here"
            yield error(path, "looks like a secret, and the AWS console shows it", cure)


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in tables and lists, and the names of the tables and the key that lead to it."""
    if isinstance(value, str):
        yield path, value
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from texts(item, f"{path}.{key}" if path else str(key))
    for item in value if isinstance(value, list) else ():
        yield from texts(item, path)


def sdk_parameters(job: Job) -> Iterator[Finding]:
    """[estimator] holds what the SDK's estimator takes and job.toml has no key of its own for."""
    known = request.parameters() if job.estimator else []
    for key in job.estimator:
        if key in OWN_KEYS:
            yield error(f"estimator.{key}", "job.toml has a key of its own for it", f"set {OWN_KEYS[key]}")
        elif key not in known:
            sdk = "SDK v3, which is installed here (v2 may have it)," if v3.installed() else "the SDK's estimator"
            problem = f"[estimator] cannot hold it: {sdk} has no such parameter for a job"
            yield error(f"estimator.{key}", problem, home(key) or near(key, known))
    for key in job.estimator.keys() & {"output_path", "code_location"}:
        if not aws.s3_uri(str(job.estimator[key])):
            yield error(f"estimator.{key}", f'"{job.estimator[key]}" is not an S3 address', S3_EXAMPLE)
    for path, text in texts({"channels": job.channels, "estimator": job.estimator}):
        value, problem, cure = UNFIT.get(path.rpartition(".")[2], (None, "", ""))
        if value in ("", text):
            yield error(path, problem, cure)
    if job.estimator.get("enable_network_isolation") and requirements.lists(""):
        problem = "an isolated container reaches no package index, so pip cannot install src/requirements.txt"
        yield error("estimator.enable_network_isolation", problem, "take an image that holds them, and empty the file")


def limits(made: dict[str, Any]) -> Iterator[Finding]:
    """The request against botocore's model of CreateTrainingJob: types, lengths, counts, ranges, patterns, names."""
    for path, problem, cure in aws.violations(made, aws.shape("CreateTrainingJobRequest")):
        key = key_of(path)
        if key == "name":
            cure = "use letters, digits and hyphens, at most 47: a timestamp is added"
        if key == "instance_type":
            cure += "" if cure.endswith("?") else "."
            cure += " If it is newer than that: pip install --upgrade boto3, or --accept instance_type"
        yield error(key, problem, cure)


def key_of(path: str) -> str:
    """A member of the request as job.toml has it."""
    member = next((each for each in SOURCES if f"{path}.".startswith(f"{each}.")), None)
    return SOURCES[member] + path[len(member) :] if member else path


def keys(job: Job, made: dict[str, Any]) -> Iterator[Finding]:
    """ARNs are of the job's region and partition (China and GovCloud have their own), and the disk takes the key."""
    mine, places = aws.partition(job.region), ("RoleArn", "OutputDataConfig", "ResourceConfig")
    for path, arn in texts({"mlflow": job.mlflow, **{place: made[place] for place in places}}):
        key = key_of(path)
        found = re.match(r"arn:(aws[a-z-]*):[\w-]*:([\w-]*):", arn)
        if found and found[1] != mine:
            problem = f'"{arn}" is of partition {found[1]}, and {job.region} is in {mine}'
            yield error(key, problem, "take one from there")
        elif found and found[2] not in ("", job.region) and key != "mlflow":  # which is asked where it is
            yield error(key, f'"{arn}" is in {found[2]}, and the job in {job.region}', "take one of the job's region")
    key, disk = "estimator.volume_kms_key", str(made["ResourceConfig"].get("VolumeKmsKeyId", ""))
    if disk and profiles.nvme(job.instance_type):
        yield error(key, f"{job.instance_type} encrypts its own NVMe disks, and AWS refuses a key", "remove it")
    elif "alias/" in disk:
        yield error(key, f'"{disk}" is an alias, which AWS takes for output_kms_key alone', "give the key's ID or ARN")


def source(folder: Path = SRC) -> Iterator[Finding]:
    """`src/` goes to S3 as it is: complete, small, and without data, secrets or links."""
    for needed in ("train.py", "requirements.txt"):
        if not (folder / needed).is_file():
            yield error(f"{folder.name}/{needed}", "is missing", "the container looks for it there")
    from options import METRICS, MONITOR

    if MONITOR not in METRICS:
        cure = "correct one of them: a run whose validation does not log it ends before it trains"
        yield warning("src/options.py", f"MONITOR, {MONITOR}, is not among METRICS", cure)
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
        cure = f"at most {MAX_SOURCE_MB}; data goes to [channels]"
        yield error(f"{folder.name}/", f"{size / 2**20:.0f} MB as code", cure)


def summary(job: Job) -> str:
    """What would run, in a line: hosts, launcher, image, ranks, and the batch that the learning rate meets."""
    from options import OPTIONS
    from runtime import command_line

    profile, gpus, launcher = profiles.profile(job), profiles.gpus(job.instance_type), profiles.launcher(job)
    image = f"torch {profile.torch} on Python {profile.python}" if profile else job.image
    line = f"job     {job.instance_count} × {job.instance_type}, {launcher}, {image}"
    default = command_line.declared(OPTIONS).get("batch_size")
    batch = job.hyperparameters.get("batch_size", default and default.default)
    if gpus is not None and isinstance(batch, int):
        world = job.instance_count * (1 if launcher == "none" else max(gpus, 1))
        line += f"; {world} ranks × batch_size {batch} = global batch {world * batch}"
    return line


def rehearsal(job: Job, path: Path = ROOT / "job.toml") -> list[str]:
    """The command that simulates the job of `path` here for some batches, with at most two hosts of two processes."""
    hosts, processes = min(job.instance_count, 2), min(profiles.gpus(job.instance_type) or 1, 2)
    command = [sys.executable, "-m", "rehearsal", "--hosts", str(hosts), "--processes", str(processes)]
    return [*command, "--distribution", profiles.launcher(job), "--job", str(path.resolve())]
