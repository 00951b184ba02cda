"""A start imports no part of torchmetrics and torch that it does not use, and nobody can tell.

Each test runs a script in a fresh process, since an import cannot be taken back.
"""

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import _use_grad_for_differentiable

import checkout
from lightning_copy import copy_lightning
from smlightning import lazy_dynamo, lazy_imports

HEAVY = ("transformers", "scipy", "matplotlib", "torch._dynamo", "torch.distributed.tensor")
# Lightning with the finder, as every script of a project has it.
START = f"""
import sys
import smlightning
import pytorch_lightning as pl
import torch
def loaded(*names):
    return [name for name in names or {HEAVY} if name in sys.modules]
"""
SERIES = torch.__version__.split("+")[0]


def run(script: str, start: str = START, **variables: str) -> str:
    """What a script prints, after Lightning is imported; AssertionError if it fails."""
    paths = os.pathsep.join(map(str, checkout.PATHS))
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not result.returncode, result.stdout + result.stderr
    return result.stdout


def test_training_and_predicting_import_nothing_heavy() -> None:
    run(
        """
        assert not loaded(), loaded()
        from lightning_utilities.core.rank_zero import rank_zero_only
        from pytorch_lightning.demos.boring_classes import BoringModel
        from torch.nn.parallel import DistributedDataParallel
        optimizers = [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor]
        for make in optimizers:
            class Model(BoringModel):
                def configure_optimizers(self):
                    optimizer = make(self.parameters(), lr=0.1)
                    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
                    return [optimizer], [schedule]
            trainer = pl.Trainer(
                accelerator="cpu", devices=1, max_steps=2, limit_val_batches=1, logger=False,
                enable_checkpointing=False, enable_progress_bar=False, deterministic=True,
                enable_model_summary=False, gradient_clip_val=1.0)
            trainer.fit(Model())
            optimizer = trainer.optimizers[0]
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        net = DistributedDataParallel(torch.nn.Linear(2, 2))
        net(torch.ones(2, 2)).sum().backward()
        torch.distributed.destroy_process_group()
        assert not loaded(), loaded()
        """
    )


@pytest.mark.long
def test_the_first_compilation_gives_torch_its_own_code_again() -> None:
    """Steps before and after it, and a compiled step, give the weights that they give without."""
    script = """
        step = torch.optim.SGD.step
        net = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(net.weight)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        torch.use_deterministic_algorithms(True)
        def train(model, step):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).square().mean().backward()
            step()
        train(net, optimizer.step)
        assert bool(loaded("torch._dynamo")) is not LAZY
        compiled = torch.compile(net, backend="aot_eager")
        train(compiled, optimizer.step)
        train(compiled, torch.compile(lambda: optimizer.step(), backend="aot_eager"))
        train(net, optimizer.step)
        print(net.weight.tolist())
        import torch._inductor.config
        assert torch._inductor.config.deterministic is True
        torch.use_deterministic_algorithms(False)
        assert torch._inductor.config.deterministic is False

        from lightning_fabric.wrappers import _unwrap_compiled
        from pytorch_lightning.utilities.compile import OptimizedModule
        assert isinstance(compiled, OptimizedModule) and not isinstance(net, OptimizedModule)
        assert issubclass(type(compiled), OptimizedModule)
        assert _unwrap_compiled(compiled)[0] is net
        from torch.optim import Optimizer
        from torch.nn.parallel import DistributedDataParallel
        for function in (Optimizer.zero_grad, Optimizer.state_dict, Optimizer.add_param_group):
            disabled = getattr(function.__wrapped__, "__dynamo_disable", None)
            assert disabled is None or disabled._torchdynamo_disable
        if LAZY:
            from smlightning import lazy_dynamo
            assert not lazy_dynamo._undo
        assert "torch._dynamo" in step.__code__.co_names
        assert "_dynamo" in DistributedDataParallel.__init__.__code__.co_names
        for function in (torch.use_deterministic_algorithms, DistributedDataParallel.__init__):
            names = function.__code__.co_names
            assert not any("not_loaded" in name for name in names), names
        """
    lazy = run("LAZY = True" + textwrap.dedent(script))
    plain = START.replace("import smlightning\n", "") + "print(loaded())\n"
    imported, weights = run("LAZY = False" + textwrap.dedent(script), start=plain).splitlines()
    assert lazy.strip() == weights
    # Else lazy_imports.py has nothing to do: remove it.
    assert {"torch._dynamo", "matplotlib", "scipy"} <= {*ast.literal_eval(imported)}


def test_every_way_to_compile_works_after_a_start() -> None:
    """torch's own, and Lightning's, after steps that nobody compiled; DDP's as well."""
    run(
        """
        import torch.utils.checkpoint
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        optimizer = torch.optim.AdamW(net.parameters())
        inputs = torch.ones(3, 2)
        expected = net(inputs)
        checkpointed = torch.utils.checkpoint.checkpoint(net, inputs, use_reentrant=False)
        checkpointed.sum().backward()
        optimizer.step()
        expected = net(inputs)
        assert torch.equal(torch.jit.trace(net, inputs)(inputs), expected)
        assert torch.equal(torch.export.export(net, (inputs,)).module()(inputs), expected)
        net.compile(backend="aot_eager")
        assert torch.allclose(net(inputs), expected)
        calls = []
        @torch.compiler.disable
        def eager():
            calls.append(torch.compiler.is_compiling())
        @torch.compile(backend="eager")
        def both(x):
            eager()
            return x + 1
        assert both(inputs).sum() == 12 and calls == [False]

        from pytorch_lightning.demos.boring_classes import BoringModel
        class Model(BoringModel):
            def configure_model(self):
                self.layer.compile(backend="aot_eager")
            def training_step(self, batch, batch_idx):
                loss = super().training_step(batch, batch_idx)["loss"]
                self.log("loss", loss, prog_bar=True)
                return loss
        def fit(model, **options):
            trainer = pl.Trainer(
                accelerator="cpu", devices=1, max_steps=2, limit_val_batches=1, logger=False,
                enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, **options)
            trainer.fit(model)
            return trainer
        fit(BoringModel())
        fit(Model())
        trainer = fit(torch.compile(BoringModel(), backend="aot_eager"))
        assert trainer.model is not None
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        compiled = torch.compile(net, backend="aot_eager")
        compiled(torch.ones(2, 2)).sum().backward()
        assert net.module.weight.grad is not None and not net._use_python_reducer
        torch.distributed.destroy_process_group()
        """
    )


def test_all_of_torchmetrics_works_as_without_the_finder() -> None:
    """Names, modules, pickles and pictures; a thread that comes second waits for all names."""
    run(
        """
        import pickle
        import threading
        import torchmetrics
        assert torchmetrics.__version__ == torchmetrics.__about__.__version__
        from torchmetrics import Metric, MetricCollection
        assert not loaded(), loaded()
        found = []
        def ask():
            found.append((torchmetrics.Accuracy, torchmetrics.functional.text))
        threads = [threading.Thread(target=ask) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
        assert len(set(found)) == 1 and len(found) == 4
        assert not loaded("transformers", "torch._dynamo", "matplotlib")
        metric = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        assert metric(torch.eye(3), torch.arange(3)) == 1
        again = pickle.loads(pickle.dumps(metric))
        assert isinstance(again, Metric) and again.compute() == 1
        assert not hasattr(torchmetrics, "Nonsense")
        assert "Accuracy" in dir(torchmetrics) and torchmetrics.__file__ and torchmetrics.__path__
        import importlib.resources
        import inspect
        import pytorch_lightning.utilities.compile
        assert "Accuracy" in inspect.getsource(torchmetrics)
        assert "_dynamo" in inspect.getsource(pytorch_lightning.utilities.compile)
        assert importlib.resources.files("torchmetrics").joinpath("py.typed").is_file()

        import matplotlib
        matplotlib.use("agg")
        from matplotlib.axes import Axes
        from torchmetrics.collections import _AX_TYPE
        import torchmetrics.utilities.plot
        figure, axis = metric.plot()
        assert isinstance(axis, Axes) and isinstance(axis, _AX_TYPE)
        assert not isinstance(figure, _AX_TYPE)
        assert torchmetrics.utilities.plot._AX_TYPE is Axes
        confusion = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=3)
        confusion(torch.eye(3), torch.arange(3))
        confusion.plot(ax=axis)
        collection = MetricCollection([metric])
        try:
            collection.plot(ax="no axis", together=True)
            raise AssertionError("an axis that is none")
        except ValueError:
            pass
        roc = torchmetrics.ROC(task="binary")
        roc(torch.rand(9), torch.arange(9) % 2)
        roc.plot()

        from torchmetrics.text import WordErrorRate
        from torchmetrics.audio import SignalNoiseRatio
        from torchmetrics.segmentation import MeanIoU
        assert WordErrorRate()(["a b"], ["a c"]) == 0.5
        assert SignalNoiseRatio()(torch.ones(4), torch.ones(4)) > 50
        """
    )


FIRST = (
    "from torchmetrics.metric import Metric; import torchmetrics.classification as c; c.BinaryROC",
    "from torchmetrics import *; Accuracy; MeanMetric; functional",
    "import torchmetrics.functional as F; F.accuracy; F.text.bleu_score",
    "from torchmetrics.functional.text import *; bleu_score",
    "from torchmetrics.utilities.plot import plot_curve, plt; assert plot_curve and plt",
    "import importlib as i, torchmetrics as t; i.reload(t).Accuracy; i.reload(t).Accuracy",
    "import importlib as i, torchmetrics as t; t.Accuracy; i.reload(t).Accuracy",
    "import torch._inductor.config; assert torch._dynamo.OptimizedModule",
)


@pytest.mark.long
def test_each_first_import_works() -> None:
    """Each in a process of its own, forked when only what torchmetrics imports is there."""
    script = f"""
        import os
        import matplotlib.pyplot, scipy.signal, sympy, torch
        # What torchmetrics.text imports; with it transformers has all that it needs of itself.
        from transformers import AutoModelForMaskedLM, AutoTokenizer, CLIPModel, CLIPProcessor
        import smlightning
        failed = []
        for code in {FIRST}:
            child = os.fork()
            if not child:
                try:
                    exec(code)
                    os._exit(0)
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
            if os.waitpid(child, 0)[1]:
                failed.append(code)
        assert not failed, failed
        """
    run(script, start="")


def test_an_owners_transformers_and_bertscore_load_whole() -> None:
    run(
        """
        import transformers
        from torchmetrics.text import BERTScore
        from torchmetrics.functional.text import bert_score
        from torchmetrics.functional.text.bert import _TRANSFORMERS_GREATER_EQUAL_4_4
        assert transformers.BertConfig().hidden_size and _TRANSFORMERS_GREATER_EQUAL_4_4
        assert BERTScore.__module__ == "torchmetrics.text.bert" and callable(bert_score)
        """
    )


def test_workers_that_start_anew_unpickle_metrics(tmp_path: Path) -> None:
    """With spawn and forkserver a worker imports all anew, by the names in a pickle."""
    (tmp_path / "rows.py").write_text(
        textwrap.dedent("""
        import sys
        import smlightning
        import torch
        import torchmetrics

        class Rows(torch.utils.data.Dataset):
            def __init__(self):
                self.metric = torchmetrics.MeanMetric()

            def __len__(self):
                return 2

            def __getitem__(self, row):
                assert "transformers" not in sys.modules and "torch._dynamo" not in sys.modules
                return self.metric(torch.tensor(float(row)))
        """)
    )
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import sys
        from rows import Rows
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            for method in sys.argv[1:]:
                loader = DataLoader(Rows(), num_workers=1, multiprocessing_context=method)
                assert [float(row) for row in loader] == [0, 1]
        """)
    )
    paths = os.pathsep.join([str(tmp_path), *map(str, checkout.PATHS)])
    subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), "spawn", "forkserver"],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        timeout=200,
    )


def test_the_package_lightning_starts_without_heavy_imports_too(tmp_path: Path) -> None:
    """`lightning` is `pytorch_lightning` under other names, which the loaders know."""
    paths = [copy_lightning(tmp_path), *checkout.PATHS]
    run(
        f"""
        import sys
        import smlightning
        import lightning.pytorch as pl
        import torch
        assert not [name for name in {HEAVY} if name in sys.modules]
        from lightning.pytorch.demos.boring_classes import BoringModel
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_steps=1, limit_val_batches=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(BoringModel())
        assert "torch._dynamo" not in sys.modules
        trainer.fit(torch.compile(BoringModel(), backend="eager"))
        assert "torch._dynamo" in sys.modules
        """,
        start="",
        PYTHONPATH=os.pathsep.join(map(str, paths)),
    )


def test_what_is_replaced_in_torch_is_there() -> None:
    """lazy_dynamo.py; in another version, read these functions again and add it to PROVEN."""
    assert SERIES.startswith(lazy_dynamo.PROVEN)
    assert version("torchmetrics").startswith(lazy_imports.PROVEN)
    factory = inspect.getsource(_use_grad_for_differentiable)
    assert factory.count("torch._dynamo") == 3 and factory.count("_dynamo.graph_break()") == 2
    disable = inspect.getsource(torch._compile)
    assert disable.count("__dynamo_disable") == 2 and disable.count("import torch._dynamo\n") == 1
    ddp = inspect.getsource(torch.nn.parallel.DistributedDataParallel.__init__)
    assert ddp.count("torch._dynamo") == 3 and ddp.count("get_optimize_ddp_mode()") == 1
    flags = inspect.getsource(torch.use_deterministic_algorithms)
    assert flags.count("_inductor") == int("_inductor.config" in flags)


@pytest.mark.newest
def test_the_newest_torch_and_torchmetrics_are_proven() -> None:
    for requirement, proven in (
        ("torch", lazy_dynamo.PROVEN),
        ("torchmetrics", lazy_imports.PROVEN),
    ):
        assert version(requirement).startswith(proven), requirement
