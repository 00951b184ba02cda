"""A job is watched while it runs: checkpoints in S3, the network of NCCL, the way to a shell."""

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from moto_account import REGION, record, refusal
from sent_job import console, log
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.follow import follow
from smlightning_sagemaker.follow.job_log import Line
from smlightning_sagemaker.follow.nccl_network import Networks
from smlightning_sagemaker.follow.stored_checkpoints import Checkpoint, Checkpoints
from smlightning_sagemaker.job.resources import Group

pytest_plugins = ("moto_account", "sent_job")

MINUTE = 60  # seconds
URI = "s3://language-id/checkpoints"


def name_of(number: int, step: int) -> str:
    return f"{number:06d}-step{step:06d}-0123456789abcdef.ckpt"


def written(number: int, step: int, folder: str = "/opt/ml/checkpoints", more: str = "") -> str:
    """The line that training prints for a checkpoint."""
    return f"checkpoint: {folder}/{name_of(number, step)}{more}"


def store(aws: Any, *names: str) -> None:
    for name in names:
        aws.client("s3").put_object(Bucket="language-id", Key=f"checkpoints/{name}", Body=b"x")


def job_of(**members: Any) -> dict[str, Any]:
    """DescribeTrainingJob's answer for a job that trains since 1970."""
    return {
        "SecondaryStatus": "Training",
        "CreationTime": datetime.fromtimestamp(0, UTC),
        "CheckpointConfig": {"S3Uri": URI},
        **members,
    }


def ends_after(looks: int, sent: Any, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job run until `follow` has waited so often."""
    sent.training_job_status, sent.secondary_status = "InProgress", "Training"
    waits = itertools.count(1)

    def wait(seconds: float) -> None:
        if next(waits) == looks:
            sent.training_job_status = sent.secondary_status = status

    monkeypatch.setattr("time.sleep", wait)


@pytest.mark.parametrize("command", ["attach", "why"])
def test_a_running_job_prints_the_loss_of_a_stop(aws, sent, monkeypatch, capsys, command):
    ends_after(2, sent, "Completed", monkeypatch)
    store(aws, name_of(6, 300), name_of(7, 390), "finished", "000008-step000410-ff.ckpt.tmp")
    lines = ["step=1 epoch=1 train/loss=2", written(6, 300), written(7, 390)]
    log(aws, sent.training_job_name, "algo-1", *lines, "step=415 epoch=1 train/loss=1.5")
    monkeypatch.setattr(follow, "PROGRESS_S", 0)
    main([command, sent.training_job_name, "--region", REGION])
    text = capsys.readouterr().out
    assert "checkpoint of step 390 in S3, 0 min old, a stop now loses 25 steps" in text
    assert ("train/loss 1.5" in text) == (command == "attach")  # of METRICS in src/options.py
    assert "warning" not in text


def test_attach_warns_once_of_checkpoints_that_do_not_arrive(aws, sent, monkeypatch):
    ends_after(4, sent, "Stopped", monkeypatch)
    store(aws, name_of(6, 300))
    name, screen = sent.training_job_name, console()
    for number, minute in ((6, -12), (7, -7), (8, -2)):
        lines = [f"step={50 * number} epoch=1", written(number, 50 * number)]
        log(aws, name, "algo-1", *lines, at=minute * MINUTE * 1000)
    log(aws, name, "algo-1", "step=420 epoch=1")
    monkeypatch.setattr(follow, "STORED_S", 0)
    monkeypatch.setattr(follow, "PROGRESS_S", 0)
    follow.follow(name, REGION, console=screen)
    text = screen.file.getvalue()
    assert text.count("warning ") == 1 and f"{name_of(7, 350)} was written" in text
    assert f'checkpoint_s3 = "{URI}"' in text and "a stop now loses 120 steps" in text
    assert f"Its newest checkpoint in S3 is {name_of(6, 300)}; {name_of(8, 400)} was" in text


def test_why_prints_the_steps_that_a_failure_lost(aws, sent, capsys):
    sent.training_job_status = sent.secondary_status = "Failed"
    log(aws, sent.training_job_name, "algo-1", "step=415 epoch=1 train/loss=1.5")
    for names, expected in ((), "no checkpoint of it"), ([name_of(7, 390)], name_of(7, 390)):
        store(aws, *names)
        main(["why", sent.training_job_name, "--region", REGION])
        text = capsys.readouterr().out
        assert expected in text and f"the last {25 if names else 415} steps" in text


WRITTEN = (15, written(7, 350))  # and not in S3
FIRST = (5, "step=1 epoch=1")
OWN_INTERVAL = {"HyperParameters": {"checkpoint_minutes": "30.0"}}


@pytest.mark.parametrize(
    ("lines", "now", "facts", "expected"),
    [
        ([WRITTEN], 19, {}, ""),  # within an interval
        ([WRITTEN], 20, {}, name_of(7, 350)),
        ([WRITTEN, (20, written(8, 400))], 21, {}, name_of(7, 350)),
        ([(15, written(7, 350, "/opt/ml/mine"))], 16, {}, "LocalPath"),
        ([WRITTEN, (19, "launcher: torchrun; torch 2.13.0")], 30, {}, ""),  # restarted
        ([(1, "step=1 epoch=1"), (19, "step=400 epoch=1")], 19, {}, ""),  # not yet two intervals
        ([(1, "step=1 epoch=1"), (19, "step=400 epoch=1")], 20, {}, "has come to"),
        ([(10, written(6, 300)), (19, "step=300 val/loss=1")], 99, {}, ""),  # nothing is lost
        ([(19, "step=400 epoch=1")], 28, {}, ""),  # S3 holds an earlier job's
        ([(19, "step=400 epoch=1")], 29, {}, "a long validation"),
        # Without a checkpoint in S3.
        ([FIRST, (14, "step=90 epoch=1")], 14, {"stored": None}, ""),
        ([FIRST, (14, "step=90 epoch=1")], 15, {"stored": None}, URI),
        # Without a log, the age of the newest checkpoint counts.
        ([], 20, {"has_log": False}, "has come to"),
        ([], 20, {"has_log": False, "stored": None}, "has come to"),
        ([], 20, {"has_log": False, "stored": 15}, ""),
        ([], 20, {}, ""),
        # The interval is the job's, or the project's.
        ([WRITTEN], 44, {"job": OWN_INTERVAL}, ""),
        ([WRITTEN], 45, {"job": OWN_INTERVAL}, name_of(7, 350)),
        ([WRITTEN], 34, {"minutes": 20}, ""),
        ([WRITTEN], 35, {"minutes": 20}, name_of(7, 350)),
        # A job that does not train, and one whose checkpoints have no address.
        ([WRITTEN], 99, {"job": {"SecondaryStatus": "Restarting"}}, ""),
        ([FIRST], 5, {"job": {"CheckpointConfig": {}}}, '"auto"'),
    ],
)
def test_checkpoints_that_stop_are_reported_within_two_intervals(lines, now, facts, expected):
    """S3 has the checkpoint of step 300 since minute 10."""
    checkpoints = Checkpoints(facts.get("minutes", 5))
    for minute, text in lines:
        checkpoints.add(Line(int(minute * MINUTE * 1000), "algo-1", text))
    if stored := facts.get("stored", 10):
        checkpoints.stored = Checkpoint(6, 300, name_of(6, 300), stored * MINUTE)
    job, has_log = job_of(**facts.get("job", {})), facts.get("has_log", True)
    found = checkpoints.warning(job, now * MINUTE, has_log=has_log)
    assert expected in str(found or "") and bool(found) == bool(expected)


def test_a_sharded_checkpoint_counts_once_all_its_shards_arrived(aws, sent):
    checkpoints = Checkpoints(5)
    for number, step in ((6, 300), (7, 390)):
        checkpoints.add(Line(0, "algo-1", written(number, step, more=", 2 shards")))
    shards = [f"{number:06d}-0000{rank}-of-00002-0123456789abcdef.shard" for number, rank in SHARDS]
    store(aws, name_of(6, 300), name_of(7, 390), *shards[:3])
    checkpoints.look(job_of(), REGION)
    assert checkpoints.stored and checkpoints.stored.step == 300
    store(aws, shards[3])
    checkpoints.look(job_of(), REGION)
    assert checkpoints.stored.step == 390 and not checkpoints.missing


SHARDS = [(6, 0), (6, 1), (7, 0), (7, 1)]


@pytest.mark.parametrize("command", ["attach", "why"])
def test_a_bucket_that_cannot_be_listed_is_reported(aws, sent, monkeypatch, capsys, command):
    sent.training_job_status = sent.secondary_status = "Stopped"
    record(monkeypatch, ListObjectsV2=lambda _: refusal("AccessDenied", "ListObjectsV2"))
    main([command, sent.training_job_name, "--region", REGION])
    text = capsys.readouterr().out
    assert text.count("may not call ListObjectsV2") == 1 and "newest checkpoint" not in text


# Lines in the form of NCCL and aws-ofi-nccl: their sources (src/init.cc, src/plugin/net.cc,
# src/transport/net_socket.cc of NCCL 2.21 to 2.30; src/nccl_ofi_net.cpp of aws-ofi-nccl 1.11 to
# 1.21), compared with logs of p4d and p5en in aws/aws-ofi-nccl#715 and NVIDIA/nccl#1597, and of
# g-instances without a working plug-in in aws-samples/aws-do-eks#54.
EFA = """
{0}:118:402 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)
{0}:118:402 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v10 symbol.
{0}:118:402 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.17.1
{0}:118:402 [0] NCCL INFO NET/OFI Setting provider_filter to efa
{0}:118:402 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
{0}:118:402 [0] NCCL INFO Initialized NET plugin Libfabric
{0}:118:402 [0] NCCL INFO Assigned NET plugin Libfabric to comm
"""
OLD_EFA = """
{0}:17775:18134 [2] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
{0}:17775:18134 [2] NCCL INFO Using network AWS Libfabric
"""
SOCKETS = """
{0}:118:402 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.17.1

[2026-01-02 10:24:27] {0}:118:402 [0] int nccl_net_ofi_create_plugin(nccl_net_ofi_plugin_t**):208 \
NCCL WARN NET/OFI Failed to initialize sendrecv protocol

[2026-01-02 10:24:27] {0}:118:402 [0] int nccl_net_ofi_create_plugin(nccl_net_ofi_plugin_t**):353 \
NCCL WARN NET/OFI aws-ofi-nccl initialization failed
{0}:118:402 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
{0}:118:402 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.227.37<0>
{0}:118:402 [0] NCCL INFO Initialized NET plugin Socket
{0}:118:402 [0] NCCL INFO Assigned NET plugin Socket to comm
{0}:118:402 [0] NCCL INFO Using network Socket
"""
NO_PLUGIN = """
{0}:75:75 [0] NCCL INFO Bootstrap : Using eth0:10.0.227.37<0>
{0}:75:75 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
{0}:75:75 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.227.37<0>
{0}:75:75 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
"""
UNDER_MPIRUN = OLD_EFA.replace("{0}:", "[1,mpirank:8,{0}]<stdout>:{0}:")
TCP_PROVIDER = EFA.replace("provider is efa, fabric is efa", "provider is tcp, fabric is 10.0.0.0")


def network(kind: str, *logs: str, hosts: int = 2) -> str:
    """The sentence for hosts of a type that log this, in turn."""
    networks = Networks()
    for number, text in enumerate(logs, 1):
        for line in text.format(f"algo-{number}").splitlines():
            networks.add(Line(0, "algo-1", line))
    return networks.sentence((Group("", kind, hosts),))


@pytest.mark.parametrize("text", [EFA, OLD_EFA, UNDER_MPIRUN])
def test_efa_is_reported_with_its_bandwidth(text):
    said = network("ml.p4d.24xlarge", text, text)
    assert not said.startswith("warning") and "EFA" in said and "400 Gbit/s" in said
    assert "Gbit" not in network("ml.p6-new.48xlarge", text, text)


def test_only_the_network_of_the_newest_attempt_counts():
    said = network("ml.p4d.24xlarge", SOCKETS, f"launcher: torchrun; torch 2.13.0\n{EFA}")
    assert "EFA" in said and not said.startswith("warning")


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ((SOCKETS, SOCKETS), ("TCP sockets on algo-1, algo-2", "initialize sendrecv")),
        ((EFA, SOCKETS), ("TCP sockets on algo-2",)),
        ((NO_PLUGIN, NO_PLUGIN), ("TCP sockets on algo-1, algo-2", "libnccl-net.so")),
        ((TCP_PROVIDER, TCP_PROVIDER), ("provider tcp",)),
    ],
)
def test_hosts_with_efa_that_use_another_network_are_a_warning(logs, words):
    said = network("ml.p5.48xlarge", *logs)
    assert said.startswith("warning") and "expected EFA, up to 3200 Gbit/s" in said
    assert all(word in said for word in (*words, "FI_PROVIDER", "security group"))


def test_sockets_without_efa_are_no_warning():
    said = network("ml.g5.12xlarge", NO_PLUGIN, NO_PLUGIN)
    assert "TCP sockets" in said and "40 Gbit/s" in said and not said.startswith("warning")
    assert "Gbit" not in network("ml.g5.xlarge", NO_PLUGIN, NO_PLUGIN)


def test_one_host_and_a_log_without_nccl_have_no_network():
    assert network("ml.p4d.24xlarge", SOCKETS, hosts=1) == ""
    assert network("ml.p4d.24xlarge", "algo-1:1:1 [0] NCCL INFO Bootstrap : Using eth0") == ""


@pytest.mark.parametrize("command", ["attach", "why"])
def test_the_network_of_a_job_is_printed_once(aws, sent, monkeypatch, capsys, command):
    ends_after(3, sent, "Completed", monkeypatch)
    for host in ("algo-1", "algo-2"):
        log(aws, sent.training_job_name, host, *filter(None, SOCKETS.format(host).splitlines()))
    main([command, sent.training_job_name, "--region", REGION])
    assert capsys.readouterr().out.count("warning network: NCCL uses TCP sockets") == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_attach_prints_the_way_to_a_shell(aws, sent, monkeypatch, capsys, enabled):
    sent.training_job_status, sent.secondary_status = "InProgress", "Training"
    name = sent.training_job_name
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
    job["RemoteDebugConfig"] = {"EnableRemoteDebug": enabled}
    ended = job | {"TrainingJobStatus": "Completed", "SecondaryStatus": "Completed"}
    record(monkeypatch, DescribeTrainingJob=[job, job, ended, ended])
    main(["attach", name, "--region", REGION])
    command = f"aws ssm start-session --target sagemaker-training-job:{name}_algo-1"
    assert capsys.readouterr().out.count(command) == enabled
