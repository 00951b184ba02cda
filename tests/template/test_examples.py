"""The examples replace a project's own files; the contract holds, and each learns its task."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_projects import CONTRACT, assert_five_kills_change_no_bit, bake_example
from projects import TEMPLATE, Project

pytestmark = pytest.mark.long


@pytest.fixture(
    scope="module",
    params=["image-classification", "image-to-text", "language-model", "lora", "table"],
)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def example(name: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the files that an example's page copies, and a channel."""
    page = (TEMPLATE / "examples" / name / "README.md").read_text(encoding="utf-8")
    copies = [line for line in page.splitlines() if line.startswith("cp ")]
    folders = re.findall(r"examples/[\w-]+/(?:src|tests)\b", " ".join(copies))
    sources = [TEMPLATE / folder for folder in folders]
    made = bake_example(tmp_path_factory.mktemp(name), *sources)
    if name == "lora":  # the names that `make lock` would add: the rehearsal hides other packages
        locked = made.path / "src" / "requirements.txt"
        locked.write_text(f"{locked.read_text('utf-8')}peft==0.21.2\naccelerate==1.15.0\n", "utf-8")
    return made


def test_an_example_resumes_saves_and_answers(example: Project, name: str, tmp_path: Path) -> None:
    """The contract's tests of one rank."""
    slow = "reaches_one or ranks_agree or rehearsal or changes_something"
    if name == "lora":
        slow += " or best or preflight"  # the network is merged: tested below; peft is not locked
    example.run(*CONTRACT, str(tmp_path / "contract"), "-k", f"not ({slow})")


def test_an_example_passes_the_contracts_slow_tests(example: Project, tmp_path: Path) -> None:
    """On two ranks, with other options, and rehearsed on two hosts."""
    slow = "reaches_one_rank[2] or ranks_agree or rehearsal or changes_something"
    example.run(*CONTRACT, str(tmp_path / "contract"), "-k", slow)
    (report,) = tmp_path.rglob("report.json")
    checks = json.loads(report.read_text(encoding="utf-8"))["checks"]
    verdicts = {check["name"]: check["verdict"] for check in checks}
    for check in ("data-divided", "model-predicts", "weights-identical"):
        assert verdicts[check] == "passed", checks


TUNE = """
import sys
from pathlib import Path
import small
from smlightning_sagemaker.testing import runs
place = Path(sys.argv[1])
more = {**small.options(place), "model_name": str(place / "whole" / "outputs" / "model")}
print(runs.train(place / "tuned", more)[0]["losses"][0])
"""


MERGED = """
import json, sys
from pathlib import Path
import small
import torch
from peft import PeftModel
from smlightning_sagemaker.testing import runs
import model
place = Path(sys.argv[1])
options = small.options(place)
runs.train(place, options)
saved = place / "outputs" / "model"
net, batch, labels = model.load(saved)
base = model.build(options["model_name"], labels).unload().eval()
inputs = batch(["αβγ", "abc"])
with torch.inference_mode():
    found = [net(**inputs).logits, base(**inputs).logits]
    adapted = PeftModel.from_pretrained(base, saved / "adapter").eval()
    found.append(adapted(**inputs).logits)
print(json.dumps([each.tolist() for each in found]))
"""


@pytest.mark.parametrize("name", ["lora"], indirect=True)
def test_the_merged_network_answers_as_the_adapter_on_its_base(
    example: Project, tmp_path: Path
) -> None:
    path = os.pathsep.join((".", "src", "tests"))
    printed = example.run("python", "-c", MERGED, str(tmp_path), PYTHONPATH=path).stdout
    merged, base, adapted = (np.array(each) for each in json.loads(printed.splitlines()[-1]))
    assert abs(merged - adapted).max() < 1e-5
    assert abs(merged - base).max() > 1e-2


FSDP = """
import json, sys
from pathlib import Path
import small
from smlightning_sagemaker.testing import runs
place = Path(sys.argv[1])
options = {**small.options(place), "log_every": 1}
found = {}
for strategy in ("ddp", "fsdp"):
    options["strategy"] = strategy
    found[strategy], _ = runs.train(place / strategy, options, world_size=2)
print(json.dumps([found["ddp"]["losses"], found["fsdp"]["losses"]]))
"""


@pytest.mark.parametrize("name", ["language-model"], indirect=True)
def test_fsdp_has_the_losses_of_ddp(example: Project, tmp_path: Path) -> None:
    """A Llama on two ranks."""
    path = os.pathsep.join((".", "src", "tests"))
    printed = example.run("python", "-c", FSDP, str(tmp_path), PYTHONPATH=path).stdout
    ddp, fsdp = json.loads(printed.splitlines()[-1])
    assert fsdp == pytest.approx(ddp, abs=2e-5) and len(ddp) >= 12


REQUESTS = """
import json
import predict
for body in ('"a"', '["a", "b"]', '[1]'):
    try:
        print(json.dumps(predict.input_fn(body, "application/json")))
    except ValueError as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("name", ["language-model"], indirect=True)
def test_a_request_is_a_text_or_a_list_of_texts(example: Project) -> None:
    printed = example.run("python", "-c", REQUESTS, PYTHONPATH="src").stdout
    one, two, wrong = map(json.loads, printed.splitlines())
    assert one == ["a"] and two == ["a", "b"] and "expected a text or a list" in wrong


def test_five_kills_change_no_bit_and_the_saved_model_is_fine_tuned(
    example: Project, name: str, tmp_path: Path
) -> None:
    """On two ranks."""
    first = assert_five_kills_change_no_bit(example, tmp_path)
    if name == "table":  # has no option for a model to begin with
        return
    path = os.pathsep.join((".", "src", "tests"))
    printed = example.run("python", "-c", TUNE, str(tmp_path), PYTHONPATH=path).stdout
    assert float(printed.splitlines()[-1]) < first  # with the initial weights it would be equal


def train(example: Project, folder: Path, *options: str) -> str:
    """The output of train.py, whose results are in ``folder``."""
    values = ["--output_dir", str(folder), "--data_dir", str(folder / "prepared"), *options]
    return example.run("python", "src/train.py", *values, OMP_NUM_THREADS="1").stdout


PREDICT = """
import json, sys
from pathlib import Path
import predict
trained = predict.model_fn(sys.argv[1])
images = [image for path in sys.argv[2:]
          for image in predict.input_fn(Path(path).read_bytes(), "image/png")]
print(predict.output_fn(predict.predict_fn(images, trained), "application/json"))
"""


def answers(example: Project, folder: Path, *images: Path) -> list[Any]:
    """A deployed model's answers to images."""
    command = ["python", "-c", PREDICT, str(folder / "model"), *map(str, images)]
    return json.loads(example.run(*command, PYTHONPATH="src").stdout)


def assert_loads_without_code(example: Project, folder: Path) -> None:
    """Add a module to a trained model, for which transformers would ask standard input."""
    model = folder / "model"
    own = {"AutoConfig": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    own["AutoModelForImageClassification"] = "own.Own"
    for name in ("config.json", "tokenizer_config.json"):
        if (model / name).is_file():
            config = json.loads((model / name).read_text("utf-8"))
            config |= {"auto_map": own, "tokenizer_class": "Own"}
            if name == "config.json" and not (model / "tokenizer_config.json").is_file():
                config["model_type"] = "own"
            (model / name).write_text(json.dumps(config), "utf-8")
    (model / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n")
    program = f"import pathlib, model; model.load(pathlib.Path({str(model)!r}))"
    example.run("sh", "-c", f'yes y | (cd src && "$0" -c "{program}")', "python", check=False)
    assert not (folder / "executed").exists()


@pytest.mark.parametrize("name", ["image-classification"], indirect=True)
def test_the_classifier_reads_letters_in_unknown_typefaces(
    example: Project, tmp_path: Path
) -> None:
    printed = train(example, tmp_path, "--epochs", "10")
    assert float(printed.split()[-1]) > 0.5, "36 classes"
    draw = "import letters, sys; letters.draw('R', 'STIXGeneral').save(sys.argv[1])"
    image = tmp_path / "R.png"
    example.run("python", "-c", draw, str(image), PYTHONPATH="src")
    ((best, second, third),) = answers(example, tmp_path, image)
    assert best["label"] == "R" and best["score"] > second["score"] > third["score"]
    assert_loads_without_code(example, tmp_path)


WRITE = """
import sys
from pathlib import Path
import small
for split, copies in (("train", 64), ("validation", 1), ("test", 1)):
    small.write(Path(sys.argv[1], split), seed=0, count=4, copies=copies)
"""


@pytest.mark.parametrize("name", ["image-to-text"], indirect=True)
def test_a_batch_of_documents_is_learned_by_heart(example: Project, tmp_path: Path) -> None:
    """`generate` reads the four documents without error, the metric says so, the loss falls."""
    documents = tmp_path / "documents"
    example.run("python", "-c", WRITE, str(documents), PYTHONPATH="src:tests")
    values = ["--dataset", documents, "--height", 32, "--width", 64, "--batch_size", 8]
    values += ["--epochs", 16, "--lr", 3e-3, "--log_every", 32]
    printed = train(example, tmp_path, *map(str, values))
    losses = [float(loss) for loss in re.findall(r"train/loss=(\S+)", printed)]
    assert losses[-1] < 0.1 * losses[0]
    assert re.search(r"^test/exact_match +1.0000$", printed, re.M), printed
    lines = (documents / "test" / "metadata.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    images = [documents / "test" / row["file_name"] for row in rows]
    assert answers(example, tmp_path, *images) == [{"total": row["total"]} for row in rows]
    assert_loads_without_code(example, tmp_path)


@pytest.mark.parametrize("name", ["image-to-text"], indirect=True)
def test_fields_are_the_same_after_a_way_through_tags(example: Project) -> None:
    rows = [{"name": "tea", "price": "2.10"}, {"name": "cake"}]
    lines = ["import tags"]
    for value in ({"menu": rows, "total": "4.20"}, rows, "4.20", ["a", "b"]):
        lines.append(f"assert tags.parsed(tags.tagged({value!r})) == {value!r}")
    example.run("python", "-c", "\n".join(lines), PYTHONPATH="src")


TABLE = """
import csv, io, sys
import predict
trained = predict.model_fn(sys.argv[1])
print(predict.output_fn(predict.predict_fn(predict.input_fn(sys.argv[2], "text/csv"), trained), ""))
"""


@pytest.mark.parametrize("name", ["table"], indirect=True)
def test_a_tables_prices_are_learned_and_a_csv_gets_a_column(
    example: Project, tmp_path: Path
) -> None:
    """The lowest mean error is 16: the noise of the prices has a deviation of 20."""
    printed = train(example, tmp_path)
    assert 14 < float(printed.split()[-1]) < 25
    rows = "distance,age,kind,title,mine\n100,3.5,city,new tyres,x\n,10,tandem,unknown words,y\n"
    command = ["python", "-c", TABLE, str(tmp_path / "model"), rows]
    dear, cheap = json.loads(example.run(*command, PYTHONPATH="src").stdout)
    assert dear == pytest.approx(340 * 0.9**3.5 + 99.5, abs=30)
    assert cheap == pytest.approx(1200 * 0.9**10 + 50, abs=150)


@pytest.mark.parametrize("name", ["table"], indirect=True)
def test_classes_of_a_table_are_learned(example: Project, tmp_path: Path) -> None:
    options = ["--target", "kind", "--task", "classification", "--numbers", "price,age,distance"]
    printed = train(example, tmp_path, *options, "--texts", "title", "--epochs", "10")
    assert float(printed.split()[-1]) < 0.3, (
        "of five kinds, nearly one offer in five would be right"
    )
