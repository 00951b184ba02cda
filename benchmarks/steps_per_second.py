"""The same training by hand and by others, in one run: milliseconds per step, and what ours takes
of each one's.

    python benchmarks/steps_per_second.py --ranks 1 2 --rounds 3 --chart docs/performance.png
    python -m pip install accelerate && python benchmarks/steps_per_second.py --bert

The same network, CLDR names in global batches of 64, a few steps at a time in turn (turns.py):

    stock parts    a loop of ten lines over `datasets`, a padding collator, DataLoader; DistributedDataParallel
    ideal loop     the same loop over our loader
    Lightning      stock, with Trainer's defaults (bar, summary, ModelCheckpoint, its logger, DDPStrategy on several
                   ranks) over our loader, and `self.log` of the loss in each step, as Lightning's own examples have it
    bare Trainer   nothing but Lightning's loop around the steps, with our strategy
    ours           train.py's callbacks but training_checks and ValidationSteps; what their thread has not written when
                   a turn ends is waited for

With --bert a small BERT of random weights, one token per letter, on rows of 2 to 12 words in
batches of 64 per rank, by ours and by the Hugging Face Trainer (hf; hf grouped with
`group_by_length`): its defaults, without reports and saving.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import stress
import turns

sys.path += stress.PATHS

SCRIPT = """
import json, os, sys
import datasets
import pytorch_lightning as pl, torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
import dist
from smlightning.reports import log
from smlightning.reports.history import MetricHistory
from smlightning.reports.lines import LogLines
from smlightning.reports.profiler import NoProfiler
from smlightning.reports.progress import ProgressReport
from smlightning.checkpoints.callback import Checkpoints
from smlightning.training.buckets import BucketOrder
from smlightning.training.seeds import StepSeed
from data import Data
from model import ByteCNN, Model
import turns
from smlightning.cluster.strategies import LauncherEnvironment
from smlightning.training.watchdog import HangWatchdog
from pathlib import Path

log.quiet()
BERT = os.environ["BERT"]
MAX_STEPS = int(os.environ["STEPS"])

class Sitting(pl.Callback):
    def __init__(self, seat, writer=None):
        self.seat, self.writer = seat, writer
    def on_train_batch_start(self, *_):
        if self.writer and self.seat.steps % turns.STEPS == 0:
            self.writer.finish()  # what is still being written belongs to this turn, not to the next one's
        self.seat.step()

class Logging(Model):
    def training_step(self, batch, i):
        loss = super().training_step(batch, i)
        self.log("train/loss", loss, prog_bar=True, batch_size=64)
        return loss

def opened():
    data = Data(batch_size=64 // cluster.world_size, data_dir="data", num_workers=0)
    data.prepare_data()
    data.setup()
    return data

def stock_parts(data):
    rows = data.splits["train"]
    arrays, at = rows.arrays, rows.index[:]
    spans = zip(arrays["starts"][at].tolist(), arrays["lengths"][at].tolist(), strict=True)
    lists = [arrays["ids"][start : start + length].tolist() for start, length in spans]
    stock = datasets.Dataset.from_dict({"input_ids": lists, "label": arrays["classes"][at].tolist()})
    def collate(samples):
        ids = pad_sequence([torch.tensor(s["input_ids"]) for s in samples], batch_first=True)
        label = torch.tensor([s["label"] for s in samples])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "label": label}
    sampler = torch.utils.data.DistributedSampler(stock, cluster.world_size, cluster.rank)
    return torch.utils.data.DataLoader(stock, data.batch_size, sampler=sampler, collate_fn=collate)

def loop(seat, parts):
    torch.manual_seed(0)
    data = opened()
    if parts:
        loader = stock_parts(data)
    else:
        data.trainer = type("Facts", (), {"global_rank": cluster.rank, "world_size": cluster.world_size,
                                          "accumulate_grad_batches": 1})
        loader = data.train_dataloader()
    plain = ByteCNN(len(data.labels))
    net = DistributedDataParallel(plain) if cluster.world_size > 1 else plain
    optimizer, schedule = turns.optimizer_and_schedule(plain, MAX_STEPS)
    loader.sampler.set_epoch(0)
    for number, batch in enumerate(loader):
        if number == MAX_STEPS:
            break
        seat.step()
        answers = net(batch["input_ids"], batch["attention_mask"])
        if parts:
            loss = F.cross_entropy(answers, batch["label"])
        else:
            losses = F.cross_entropy(answers, batch["label"], reduction="none")
            loss = (losses * batch["weight"]).sum() * batch["scale"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        schedule.step()

def fit(seat, kind, turn):
    strategy, devices, num_nodes = dist.get_initialization_info()
    options = dict(accelerator=cluster.accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes,
                   max_steps=MAX_STEPS, gradient_clip_val=1.0)
    what = {"dataset": "rows.csv", "model_name": "bert"} if BERT else {}
    batch_size = 64 if BERT else 64 // cluster.world_size
    data = Data(batch_size=batch_size, data_dir="data", num_workers=0, **what)
    outputs = Path(f"{kind}{turn}")
    if kind == "ours":
        kept = Checkpoints(outputs / "checkpoints", {"turn": turn}, 5.0, 0, monitor="val/accuracy")
        history = MetricHistory()
        mine = [Sitting(seat, kept.writer), HangWatchdog(60.0), StepSeed(0), BucketOrder(),
                ProgressReport(50, outputs, history), kept]
        loggers = [LogLines(history), pl.loggers.TensorBoardLogger(outputs, name="t", version="")]
        trainer = pl.Trainer(callbacks=mine, logger=loggers, profiler=NoProfiler(), enable_progress_bar=False, enable_model_summary=False,
                             num_sanity_val_steps=0, limit_val_batches=0, **options)
    elif kind == "bare Trainer":
        trainer = pl.Trainer(callbacks=[Sitting(seat)], use_distributed_sampler=False, num_sanity_val_steps=0,
                             logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, limit_val_batches=0, **options)
    else:
        if cluster.world_size > 1:  # its own, told of the ranks
            options |= {"strategy": "ddp", "plugins": [LauncherEnvironment(cluster)]}
        trainer = pl.Trainer(callbacks=[Sitting(seat)], use_distributed_sampler=False, num_sanity_val_steps=0,
                             default_root_dir=outputs, limit_val_batches=0, **options)
    model = {"model_name": "bert", "lr": 5e-5} if BERT else {}
    trainer.fit((Logging if kind == "Lightning" else Model)(**model), datamodule=data)

def hugging_face(seat, kind, turn):
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained("bert")
    rows = datasets.load_dataset("csv", data_files="rows.csv", split="train")
    names = sorted(set(rows["label"]))
    rows = rows.map(lambda row: {**tokenizer(row["text"]), "labels": names.index(row["label"])},
                    remove_columns=rows.column_names)
    class Sitting(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            seat.step()
    grouped = {"train_sampling_strategy": "group_by_length"} if kind == "hf grouped" else {}
    args = transformers.TrainingArguments(f"hf{turn}", per_device_train_batch_size=64, max_steps=MAX_STEPS,
                                          use_cpu=True, report_to="none", save_strategy="no", **grouped)
    transformers.Trainer(
        transformers.AutoModelForSequenceClassification.from_pretrained("bert"), args, train_dataset=rows,
        data_collator=transformers.DataCollatorWithPadding(tokenizer), callbacks=[Sitting()],
    ).train()

if BERT:
    rounds = {"ours": [], "hf": [], "hf grouped": []}
else:
    rounds = {"ours": [], "stock parts": [], "ideal loop": [], "bare Trainer": [], "Lightning": []}
ways = {"stock parts": lambda seat, *_: loop(seat, True), "ideal loop": lambda seat, *_: loop(seat, False),
        "hf": hugging_face, "hf grouped": hugging_face}
with dist.session() as cluster:
    for turn in range(int(os.environ["ROUNDS"])):
        found = turns.Turns({k: lambda seat, k=k: ways.get(k, fit)(seat, k, turn) for k in rounds}, turn).run()
        for kind, seconds in found.items():
            rounds[kind].append(seconds)
        print(f"round {turn + 1}", file=sys.stderr, flush=True)
    if cluster.rank == 0:
        json.dump(rounds, open("rounds.json", "w"))
sys.exit(0)
"""


COLOURS = "#31608f", "#a8480b", "#3f7a3f", "#6b4a8c"


def write_words_and_bert(folder: Path) -> None:
    """A BERT of two layers of 128 with a tokenizer of letters, and 8,000 rows of 2 to 12 words of
    3 to 8 letters.
    """
    from smlightning.testing.checkpoints import write_bert

    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(3, 8))) for _ in range(5000)]
    rows = [
        (" ".join(draw.choices(words, k=draw.randint(2, 12))), draw.choice("ab"))
        for _ in range(8000)
    ]
    (folder / "rows.csv").write_text(
        "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    )
    shape = {"num_attention_heads": 4, "intermediate_size": 512}
    write_bert(folder / "bert", f" {letters}", hidden=128, **shape)


def draw(path: Path, found: dict[str, dict[str, tuple[float, ...]]], title: str) -> None:
    """Write what ours takes of the others' time, with its interval, one group of bars for each
    number of ranks.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    names = [*next(iter(found.values()))]
    height = 0.8 / len(found)
    axis.axvline(1, color="black", linewidth=1)
    for number, (ranks, ratios) in enumerate(found.items()):
        at = [i + (number - (len(found) - 1) / 2) * height for i in range(len(names))]
        values, low, high = zip(*(ratios[name] for name in names), strict=True)
        spread = [
            [v - a for v, a in zip(values, low, strict=True)],
            [b - v for v, b in zip(values, high, strict=True)],
        ]
        axis.barh(
            at, values, height * 0.9, xerr=spread, capsize=3, label=ranks, color=COLOURS[number % 4]
        )
        for y, value in zip(at, values, strict=True):
            axis.text(0.01, y, f"{value:.3f}", va="center", fontsize=9, color="white")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel(
        "our step time divided by theirs, with its 95 % interval (below 1: ours is faster)",
        fontsize=9,
    )
    axis.set_title(title, fontsize=10)
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200, help="of a round")
    parser.add_argument("--bert", action="store_true", help="against the Hugging Face Trainer")
    parser.add_argument("--chart", type=Path, help="PNG or SVG to write")
    arguments = parser.parse_args()
    os.environ |= {
        "ROUNDS": str(arguments.rounds),
        "STEPS": str(arguments.steps),
        "BERT": "1" * arguments.bert,
    }
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for ranks in arguments.ranks:
        folder = Path(tempfile.mkdtemp(prefix="speed-"))
        if arguments.bert:
            write_words_and_bert(folder)
        job = stress.Job(folder, ranks, "forked", {}, SCRIPT)
        done = job.wait(1200)
        job.end()
        if done is None or not (folder / "rounds.json").exists():
            sys.exit(job.text[-3000:])
        rounds = json.loads((folder / "rounds.json").read_text())
        named = f"{ranks} rank{'s' * (ranks > 1)}"
        print(f"{named}, {arguments.rounds} rounds; ours over each:", flush=True)
        found[named] = {}
        for other in [name for name in rounds if name != "ours"]:
            pair = {other: rounds[other], "ours": rounds["ours"]}
            found[named][other] = turns.compare(pair, other)["ours"]
    if arguments.chart:
        draw(
            arguments.chart, found, f"{arguments.rounds} rounds of {arguments.steps} steps, in turn"
        )


if __name__ == "__main__":
    main()
