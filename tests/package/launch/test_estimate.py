"""Sizes of a model and of a step: against counted bytes and what torch records; what fits."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import formulas
import host_records
import model_records
import pytest
import small
import torch
from model_records import MEDIUM, TINY
from small_job import GOOD, PROJECT, edited

from model import ByteCNN
from smlightning import adapters
from smlightning import project as projects
from smlightning.__main__ import main
from smlightning.launch import aws, instances, request
from smlightning.launch import job as jobs
from smlightning.launch.estimate import command, counting, known, sizes
from smlightning.launch.estimate import host as hosts
from smlightning.launch.estimate.fit import Fit, HostFit
from smlightning.launch.estimate.sizes import Length, Linear, Run, Sizes
from smlightning.launch.preflight.memory import memory as findings_of_memory
from smlightning.outline import outline

GIB = 2**30
MEMORY_ERROR = 0.2
HOST_ERROR = 0.15
SMALL_STEP = Sizes(
    parameters=250_000_000,
    trainable=250_000_000,
    parameter_bytes=10**9,
    gradient_bytes=10**9,
    optimizer_bytes=2 * 10**9,
    buffer_bytes=0,
    checkpoint_bytes=3 * 10**9,
    root_bytes=10**8,
    block_bytes=10**8,
    activations=Linear(0, 10**9),
    temporary=Linear(0, 10**8),
)
NONE = frozenset[tuple[str, object]]()


@pytest.mark.parametrize("name", [*TINY, *MEDIUM])
def test_the_formulas_have_every_parameter(name):
    config = {**TINY, **MEDIUM}[name]
    with torch.device("meta"):
        net = model_records.network(config)
    found = model_records.by_formula(config, 64)
    assert found.parameters == sum(parameter.numel() for parameter in net.parameters())
    counted = counting.sizes_of(net, 0, Linear(0, 0), Linear(0, 0))
    assert found.parameter_bytes == counted.parameter_bytes
    assert found.gradient_bytes == counted.gradient_bytes


@pytest.mark.parametrize("name", TINY)
def test_an_adapters_checkpoint_has_what_its_state_dict_has(name):
    config, rank = TINY[name], 4
    labels = model_records.labels(config)
    kind = "AutoModelForSequenceClassification" if labels else "AutoModelForCausalLM"
    with outline():
        net = adapters.add(model_records.network(config), rank, kind, "base")
    shape = formulas.shape(config)
    assert shape
    found = formulas.sizes(shape, formulas.Use(64, labels, lora_rank=rank))
    counted = counting.sizes_of(net, found.optimizer_bytes, Linear(0, 0), Linear(0, 0))
    assert found.trainable == pytest.approx(counted.trainable, rel=0.01)
    assert found.checkpoint_bytes == pytest.approx(counted.checkpoint_bytes, rel=0.01)
    assert counted.checkpoint_bytes < 0.2 * (counted.parameter_bytes + found.optimizer_bytes)


@pytest.mark.parametrize("name", TINY)
def test_activations_are_those_that_torch_records(name):
    """Of a batch four times as large as the one that is counted."""
    config = TINY[name]
    length, rows = 96, 8
    recorded, counted = model_records.activations(
        lambda: model_records.network(config),
        lambda rows: model_records.batch(config, rows, length),
        model_records.loss,
        rows,
    )
    formula = model_records.by_formula(config, length).activations.at(rows)
    assert counted == pytest.approx(recorded, rel=MEMORY_ERROR)
    assert formula == pytest.approx(recorded, rel=MEMORY_ERROR)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_activations_in_16_bits_and_computed_again(name, checkpointing):
    """Of few tokens, so that copies of weights in 16 bits are a large part."""
    config, length, rows = TINY[name], 32, 4
    net, inputs = model_records.network(config), model_records.batch(config, rows, length)
    if checkpointing:
        net.gradient_checkpointing_enable({"use_reentrant": False})

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # as Lightning's
            return model_records.loss(net, inputs)

    with counting.fused_attentions():
        kept = [*net.parameters(), *net.buffers(), *inputs.values()]
        counted = counting.step(loss, kept).activations
    shape = formulas.shape(config)
    assert shape
    labels = model_records.labels(config)
    use = formulas.Use(length, labels, mixed=True, checkpointing=checkpointing, mask_bytes=4)
    formula = formulas.activations(shape, use).at(rows)
    assert formula == pytest.approx(counted, rel=MEMORY_ERROR)


def test_attention_without_a_fused_kernel_keeps_its_scores():
    """As on a CPU with dropout in attention: length² numbers per head."""
    config = {**TINY["BERT, tiny"], "attention_probs_dropout_prob": 0.1}
    net, inputs = model_records.network(config), model_records.batch(config, 4, 192)
    recorded = model_records.recorded(
        lambda: model_records.loss(net, inputs), [*net.parameters(), *inputs.values()]
    )
    shape = formulas.shape(config)
    assert shape
    labels = model_records.LABELS
    use = formulas.Use(192, labels, fused=False, mask_bytes=4)
    found = formulas.activations(shape, use).at(4)
    assert found == pytest.approx(recorded, rel=MEMORY_ERROR)
    fused = formulas.activations(shape, replace(use, fused=True)).at(4)
    assert fused < (1 - MEMORY_ERROR) * recorded


def test_the_cnns_step_is_counted():
    def inputs(rows: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(1, 257, (rows, 60))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    recorded, counted = model_records.activations(
        lambda: ByteCNN(3), inputs, lambda net, given: net(**given).sum(), 16
    )
    assert counted == pytest.approx(recorded, rel=MEMORY_ERROR)


def test_every_gpu_has_its_memory():
    assert not instances._GPUS.keys() ^ instances._GPU_MEMORY_MIB.keys()
    assert instances.gpu_memory("ml.p4d.24xlarge") == 40 * GIB
    assert instances.gpu_memory("ml.m5.xlarge") is None
    assert instances.families_with(100 * GIB) == ["p5e", "p5en", "p6-b200", "p6-b300"]


def test_fsdp_divides_all_but_activations():
    alone = sizes.memory(SMALL_STEP, Run(4, ranks=4))
    divided = sizes.memory(SMALL_STEP, Run(4, ranks=4, shards=4))
    assert 4 * (divided.certain - divided.buffers) == alone.certain - alone.buffers
    assert divided.activations == alone.activations
    assert 0 < divided.gathered < alone.parameters


@pytest.mark.parametrize("shards", [1, 8])
@pytest.mark.parametrize("gpu_memory", [6 * GIB, 16 * GIB, 80 * GIB])
def test_the_largest_batch_is_the_largest(shards, gpu_memory):
    run = Run(8, ranks=8, shards=shards)
    batch = sizes.largest_batch(SMALL_STEP, run, gpu_memory)
    room = sizes.usable(gpu_memory)
    assert batch >= 1
    assert sizes.memory(SMALL_STEP, replace(run, batch_size=batch)).total <= room
    assert sizes.memory(SMALL_STEP, replace(run, batch_size=batch + 1)).total > room


def test_what_makes_it_fit_does():
    """The fewest changes that keep the batch, and a smaller batch with as large a global one."""
    checkpointed = replace(SMALL_STEP, activations=Linear(0, 10**8))
    adapters = replace(SMALL_STEP, gradient_bytes=10**7, optimizer_bytes=2 * 10**7)
    checkpointing, lora = ("gradient_checkpointing", True), ("lora_rank", 8)
    variants = {
        NONE: SMALL_STEP,
        frozenset([checkpointing]): checkpointed,
        frozenset([lora]): adapters,
        frozenset([checkpointing, lora]): replace(adapters, activations=Linear(0, 10**8)),
    }
    run = Run(16, ranks=8)
    found = sizes.ways(variants, run, 16 * GIB)
    assert [str(way) for way in found] == [
        "--gradient_checkpointing true",
        "--batch_size 8 --accumulate_grad_batches 2",
    ]
    # Weights and their state alone are too many: divided among the ranks, or adapters.
    found = sizes.ways(variants, Run(1, ranks=8), 4 * GIB)
    assert [way.options for way in found] == [{"strategy": "fsdp"}, {"lora_rank": 8}]
    (found,) = sizes.ways({NONE: SMALL_STEP}, Run(1, ranks=8, shards=2), 4 * GIB)
    assert found.options == {"shard_size": 0}
    assert not sizes.ways({NONE: SMALL_STEP}, Run(1, ranks=1), GIB)
    fit = Fit({NONE: SMALL_STEP}, Run(1, ranks=1), GIB)
    assert fit.is_certain and "g4dn" in fit.cure


def test_how_long_it_trains():
    length = Length(samples=1000, epochs=3)
    run = Run(batch_size=10, ranks=4, accumulate=2)
    assert length.steps(run) == 13 * 3
    assert length.hours(run, 100.0) == pytest.approx(30 / 3600)
    limited = replace(length, max_steps=13)
    assert limited.steps(run) == 13 and limited.hours(run, 100.0) == pytest.approx(10 / 3600)


def remember_formula(monkeypatch, config):
    """Let the last count be the formula's, with adapters and gradient checkpointing too."""
    shape = formulas.shape(config)
    assert shape

    def remembered(job, project, options):
        use = formulas.Use(
            options["max_length"],
            mixed=known.precision(job, options) == "bf16-mixed",
            fused=job.instance_type.startswith(("ml.g", "ml.p")),
        )
        variants = {
            frozenset(changed.items()): formulas.sizes(shape, replace(use, **chosen))
            for changed, chosen in (
                ({}, {}),
                ({"gradient_checkpointing": True}, {"checkpointing": True}),
                ({"lora_rank": 8}, {"lora_rank": 8}),
            )
        }
        return known.Known(variants, None, options["max_length"])

    monkeypatch.setattr(known, "remembered", remembered)
    return shape


@pytest.fixture
def llama(monkeypatch):
    """The options of Llama 3 8B, of which a step was counted."""
    config = {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "tie_word_embeddings": False,
    }  # fmt: skip
    found = formulas.sizes(remember_formula(monkeypatch, config), formulas.Use(2048))
    assert found.parameters == 8_030_261_248  # as its model card counts
    return {"model_name": "llama", "max_length": 2048, "batch_size": 1}


def test_preflight_names_a_job_that_cannot_fit_and_what_would(llama):
    hyperparameters = llama
    job = GOOD.replace(hyperparameters=hyperparameters, distribution="torch_distributed")
    (found,) = findings_of_memory(job, PROJECT)
    assert (found.level, found.key) == ("error", "memory")
    assert "--strategy fsdp" in found.cure and "p6-b300" in found.cure
    (found,) = findings_of_memory(job.replace(distribution="smddp"), PROJECT)
    assert "fsdp" not in found.cure, "SMDDP does not carry it"
    job = GOOD.replace(hyperparameters={**hyperparameters, "strategy": "fsdp"})
    assert not list(findings_of_memory(job, PROJECT))
    # More than fits, by activations, which are estimated.
    large = {**hyperparameters, "strategy": "fsdp", "batch_size": 64}
    (found,) = findings_of_memory(GOOD.replace(hyperparameters=large), PROJECT)
    assert found.level == "warning" and "--gradient_checkpointing true" in found.cure
    (found,) = findings_of_memory(job.replace(instance_type="ml.m5.xlarge"), PROJECT)
    assert found.level == "error" and "ml.m5.12xlarge" in found.cure, "a CPU's is main memory"


@pytest.fixture
def billion(monkeypatch):
    """The options of a Llama of 1.1 B parameters, of which a step fits into a GPU of 22 GiB."""
    config = {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 5632,
        "tie_word_embeddings": False,
    }  # fmt: skip
    remember_formula(monkeypatch, config)
    return {"model_name": "llama", "max_length": 128, "batch_size": 1}


def test_a_job_that_fits_the_gpu_and_not_the_host_is_an_error(billion):
    """As it was killed at its first checkpoint."""
    job = GOOD.replace(
        hyperparameters=billion, instance_type="ml.g5.xlarge", instance_count=1,
        distribution="none",
    )  # fmt: skip
    options = known.options_of(job, PROJECT)
    sizes_of = known.remembered(job, PROJECT, options)
    run = known.run_of(job, options)
    assert Fit(sizes_of.variants, run, instances.gpu_memory(job.instance_type)).fits
    fit = HostFit.of(job, options, sizes_of, run)
    assert fit.memory.snapshot >= 12 * sizes_of.sizes.parameters
    assert {"lora_rank": 8} in [way.options for way in fit.ways]
    (found,) = findings_of_memory(job, PROJECT)
    assert found.level == "error" and "main memory" in found.problem
    assert "ml.g5.2xlarge" in found.cure or "ml.g5.4xlarge" in found.cure
    larger = job.replace(instance_type="ml.g5.4xlarge")
    assert not list(findings_of_memory(larger, PROJECT))
    assert "main memory" in findings_text(job.replace(instance_type="ml.g6.xlarge"))
    assert "skipped" in findings_text(job.replace(instance_type="ml.m99.large"))


def findings_text(job):
    return "\n".join(map(str, findings_of_memory(job, PROJECT)))


def test_fewer_workers_and_fsdp_are_cures_where_they_are_enough():
    """Batches that workers have ready, and copies that rank 0 has of the whole state."""
    large_samples = replace(SMALL_STEP, sample_bytes=10**8, process_bytes=10**8)
    host = hosts.Host(ranks=1, workers=4, gpus=True)
    fit = HostFit({NONE: large_samples}, Run(16, ranks=1), host, "ml.g5.xlarge")
    assert [way.options for way in fit.ways] == [{"num_workers": 0}]
    large_state = replace(SMALL_STEP, checkpoint_bytes=16 * 10**9, process_bytes=10**8)
    host = hosts.Host(ranks=1, workers=0, gpus=True)
    fit = HostFit({NONE: large_state}, Run(4, ranks=8), host, "ml.g5.xlarge")
    assert not fit.fits and [way.options for way in fit.ways] == [{"strategy": "fsdp"}]
    assert not replace(fit, may_shard=False).ways


def test_what_ranks_of_a_host_hold_adds_up():
    whole = SMALL_STEP
    saved = whole.saved_weights
    one = hosts.host_memory(whole, Run(4, ranks=1), hosts.Host(1, 0, gpus=False))
    assert (one.snapshot, one.best) == (whole.checkpoint_bytes, saved)
    assert one.weights + one.gradients + one.optimizer == 4 * 10**9
    two = hosts.host_memory(whole, Run(4, ranks=2), hosts.Host(2, 0, gpus=False))
    assert two.weights == 2 * one.weights, "each has its own"
    assert (two.snapshot, two.best) == (one.snapshot, one.best), "rank 0 alone has copies"
    divided = hosts.host_memory(whole, Run(4, ranks=2, shards=2), hosts.Host(2, 0, gpus=False))
    assert (divided.snapshot, divided.best) == (one.snapshot, one.best), "both halves are here"
    half = hosts.host_memory(whole, Run(4, ranks=2, shards=2), hosts.Host(1, 0, gpus=False))
    assert (2 * half.snapshot, 2 * half.best) == (one.snapshot, one.best)
    gpu = hosts.host_memory(whole, Run(4, ranks=2), hosts.Host(2, 0, gpus=True))
    assert gpu.weights == 2 * whole.parameter_bytes and not gpu.optimizer
    replicas = hosts.host_memory(whole, Run(4, ranks=4, shards=2), hosts.Host(4, 0, gpus=True))
    assert replicas.best == 2 * replicas.snapshot * saved // whole.checkpoint_bytes


@pytest.mark.parametrize(
    ("size", "below", "from_2_13"),
    [(1000, 1024, 1024), (1024, 1024, 1024), (300 << 20, 512 << 20, 300 << 20), (0, 0, 0)],
)
def test_a_pinned_block_is_a_power_of_two_unless_it_is_large(size, below, from_2_13):
    assert sizes.pinned_block(size, math.inf) == below
    assert sizes.pinned_block(size) == from_2_13


def test_older_images_pin_more():
    job = GOOD.replace(image="smddp", distribution="smddp")
    options = known.options_of(job, PROJECT)
    run = known.run_of(job, options)
    assert not known.host_of(job, options, run).exact
    newer = known.host_of(
        job.replace(image="current", distribution="torch_distributed"), options, run
    )
    assert newer.exact and newer.ranks == 8 and newer.workers == 4
    small = replace(SMALL_STEP, pinned=1.1, pinned_below_2_13=1.9)
    exact, rounded = (
        hosts.host_memory(small, Run(4, ranks=8), hosts.Host(8, 0, True, exact=exact)).snapshot
        for exact in (True, False)
    )
    assert rounded / exact == pytest.approx(1.9 / 1.1)


def test_every_type_that_trains_on_torch_has_its_main_memory():
    kinds = aws.shape("TrainingInstanceType").enum
    unknown = {instances.family(kind) for kind in kinds if not instances.host_memory(kind)}
    assert unknown == {"trn1", "trn1n", "trn2", "p6e-gb200"}
    for kind, gib in [("g5.xlarge", 16), ("p5.4xlarge", 256), ("c4.xlarge", 7.5), ("m5.large", 8)]:
        assert instances.host_memory(f"ml.{kind}") == gib * GIB
    larger = instances.larger_hosts("ml.g5.xlarge", 17 * GIB, kinds)
    assert larger == [f"ml.g5.{number}xlarge" for number in (2, 4, 8, 16)], "of one GPU each"


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (1, 2)])
def test_the_host_takes_what_is_estimated(tmp_path, ranks, workers):
    """Processes, mostly: of larger models benchmarks/estimate.py tells."""
    options = {"max_steps": 20, "checkpoint_steps": 10, "num_workers": workers}
    record = host_records.train(tmp_path, options, ranks=ranks)
    assert abs(record.error) < HOST_ERROR, record


def test_a_checkpoint_whose_size_is_not_known_is_said():
    job = GOOD.replace(hyperparameters={"model_name": "somebody/large"})
    (found,) = findings_of_memory(job, PROJECT)
    assert found.level == "skipped" and "estimate" in found.cure
    assert not list(findings_of_memory(job.replace(instance_type="ml.m5.xlarge"), PROJECT))


@pytest.fixture(scope="module")
def estimated(tmp_path_factory):
    """A project whose job was estimated: its folder, and what was written."""
    folder = tmp_path_factory.mktemp("estimated")
    for name in ("src", "pyproject.toml"):
        (folder / name).symlink_to(PROJECT.root / name)
    options = small.options(folder)
    changes = {f"hyperparameters.{name}": value for name, value in options.items()}
    edited(folder / "job.toml", {**changes, "instance_type": "ml.g5.12xlarge"})
    report = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMLIGHTNING_PROJECT", str(folder))
        words = ["estimate", "--json", str(report), "--samples_per_second", "100"]
        assert main(words) == 0
    return folder, json.loads(report.read_text(encoding="utf-8"))


def test_the_projects_own_model_is_counted(estimated):
    _, report = estimated
    net = ByteCNN(len(small.ALPHABETS))
    parameters = sum(parameter.numel() for parameter in net.parameters())
    found = report["sizes"]
    assert report["fits"]
    assert found["parameters"] == found["trainable"] == parameters
    assert found["parameter_bytes"] == found["gradient_bytes"] == 4 * parameters
    assert found["optimizer_bytes"] == pytest.approx(8 * parameters, rel=0.05)
    assert found["activations"]["per_sample"] > 0
    assert report["host"]["fits"] and report["host"]["ranks"] == 4
    assert report["host"]["main_memory"] == 192 * GIB
    assert 0 < found["sample_bytes"] < 10**5 < 10**7 < found["process_bytes"] < GIB
    assert report["run"]["ranks"] == 8 and report["run"]["mixed"]
    rows = 45 * len(small.ALPHABETS)
    assert 0.7 * rows < report["samples"] < 0.9 * rows  # the others validate and test
    assert report["steps"] == 2 * -(-report["samples"] // (8 * 12))
    assert report["hours"] == pytest.approx(2 * report["samples"] / 100 / 3600)


def test_preflight_knows_what_was_counted_last(estimated, monkeypatch):
    folder, report = estimated
    project = projects.Project(folder)
    job = jobs.load(folder / "job.toml", project)
    assert not list(findings_of_memory(job, project))
    least = report["memory"]["total"]
    monkeypatch.setattr(instances, "gpu_memory", lambda kind: least - 1)
    (found,) = findings_of_memory(job, project)
    assert found.level == "warning" and "--strategy fsdp" in found.cure
    changed = job.replace(hyperparameters={**job.hyperparameters, "max_length": 77})
    assert not list(findings_of_memory(changed, project))  # nothing is known of other options
    data = Path(job.hyperparameters["dataset"])
    with data.open("a", encoding="utf-8") as file:
        file.write("a longer text of other data,greek\n")
    assert known.remembered(job, project, known.options_of(job, project)) is None
    (folder / known.FILE).write_text("{}", encoding="utf-8")
    assert not list(findings_of_memory(job, project))


def test_what_was_counted_is_of_its_checkpoint_and_of_its_channels_files(tmp_path):
    """Nothing is known any more once one of them is another."""
    checkpoint, channel = tmp_path / "checkpoint", tmp_path / "channel"
    for place in (checkpoint, channel):
        place.mkdir()
        (place / "file.json").write_text("{}", encoding="utf-8")
    root = tmp_path / "root"
    root.mkdir()
    (root / "src").symlink_to(PROJECT.src)
    project = projects.Project(root)
    hyperparameters = {"model_name": str(checkpoint), "dataset": "training"}
    job = GOOD.replace(hyperparameters=hyperparameters, channels={"training": "s3://bucket/a/"})
    options = known.options_of(job, PROJECT)
    counted = known.Known({NONE: SMALL_STEP}, None, 9)
    for changed in (checkpoint / "file.json", channel / "file.json", channel / "more.json", None):
        known.remember(counted, job, project, options, {"training": channel})
        assert known.remembered(job, project, options) == counted
        if changed:
            changed.write_text("{} ", encoding="utf-8")
        else:
            job = job.replace(channels={"training": "s3://bucket/b/"})
        assert known.remembered(job, project, options) is None


@pytest.mark.parametrize(("distribution", "share"), [("torch_distributed", 1), ("none", 4)])
def test_an_earlier_jobs_throughput_is_taken_rank_for_rank(monkeypatch, distribution, share):
    """Without a launcher it had a rank per host, and its other GPUs trained nothing."""
    hyperparameters = request.hyperparameters(GOOD.replace(distribution=distribution))
    described = {
        "HyperParameters": request.encoded(hyperparameters, "x", "us-east-1", ""),
        "FinalMetricDataList": [{"MetricName": "samples_per_second", "Value": 800.0}],
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2},
    }
    monkeypatch.setattr(command, "describe", lambda name, client: described)
    monkeypatch.setattr(command.aws, "client", lambda service, region: None)
    arguments = type("Arguments", (), {"samples_per_second": None, "like": "x", "job": None})
    assert command.throughput(arguments, PROJECT, Run(8, ranks=16)) == pytest.approx(1600.0 * share)


def test_other_variables_of_sagemaker_reach_no_count(monkeypatch, tmp_path):
    """They would send what it writes elsewhere; a channel's folder is told by its variable."""
    seen = {}

    def run(command, **more):
        seen.update(more["env"])
        return type("Ended", (), {"stdout": '{"problem": "none", "cure": "x"}', "stderr": ""})

    monkeypatch.setenv("SM_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(known.subprocess, "run", run)
    with pytest.raises(known.UserError, match="none"):
        known._ask({}, PROJECT, {"training": tmp_path})
    assert "SM_MODEL_DIR" not in seen and seen["SM_CHANNEL_TRAINING"] == str(tmp_path)
    assert str(Path(known.__file__).parents[3]) in seen["PYTHONPATH"].split(os.pathsep)


def test_a_channels_data_is_asked_for(tmp_path, monkeypatch, capsys):
    """train.py would ask for a path, which job.toml cannot take."""
    changes = {"hyperparameters.dataset": "training", "channels.training": "s3://bucket/a/"}
    path = edited(tmp_path / "job.toml", changes)
    assert main(["estimate", "--job", str(path)]) == 1
    assert "--channel training=FOLDER" in capsys.readouterr().err
