"""Blocks of the pages: a program of this checkout knows each command, key and name in them.

Fenced blocks without a language hold commands as they are typed; `output` is what a program prints.
"""

import ast
import re
import runpy
import shlex
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from cookiecutter.main import cookiecutter

from projects import TEMPLATE, Project, bake, commit_all, copy_template, git, need
from smlightning.options import read_command_line
from smlightning.training.options import TrainerOptions
from smlightning_sagemaker import preflight
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.__main__ import parser
from smlightning_sagemaker.job import aws, job, request
from smlightning_sagemaker.rehearsal import command as rehearsal
from smlightning_sagemaker.rehearsal import plan

SOURCE = next(TEMPLATE.glob("{{*}}"))
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/*/*.md", "{{*/*.md", "{{*/docs/*.md")
    for path in TEMPLATE.glob(pattern)
    if path.name != "CHANGELOG.md"
)
BLOCK = re.compile(r"(?ms)^( *)```(\w*)\n(.*?)^ *```")
# Programs of the system, which no test here runs with these arguments.
SYSTEM = """
cd cookiecutter cp cruft export gh git kubectl pip printf python rm sbatch source srun tensorboard
""".split()  # noqa: SIM905
# Of the lines that make would run, those that start a program of the project.
OF_PROJECT = re.compile(r"@?\S+(python\" src/|smlightning\" )")
# Words of troubleshooting.md that AWS, torch and Lightning print.
FOREIGN = """
Bus error|Expected to have finished reduction|Expected 2 fields in line 3, saw 3|MaxWaitTimeExceeded
No module named|PermanentRedirect|PutObject|ResourceLimitExceeded|SMDDP does not support
SM_CHANNEL_MY-DATA|Unable to locate credentials|framework_version|new_group|requires accelerate
Invalid scalar type|context has already been set|CUDA out of memory|shapes cannot be multiplied
must have the same dtype|expected scalar type|Found dtype Double|expected target dtype to be Long
does not require grad and does not have a grad_fn|tensors to be on the same device|is out of bounds
Torch not compiled with CUDA enabled|index out of range in self|device-side assert
grad can be implicitly created only for scalar outputs|backward through the graph a second time
channels, but got|different to the input size|Expected more than 1 value per channel
in eval mode at the start|mutable default <class|sampler has shuffling enabled
before Module.__init__|SyncBatchNorm layers only work with GPU modules
no kernel image is available|smddp|the label is Json|the label is Value|--compile
"""
# Commands that the AWS command line adds to those of the services' models.
OF_AWS = {"configure sso", "cloudformation deploy", "s3 cp", "s3 rm"}


def blocks(path: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [textwrap.dedent(text) for _, language, text in found if language in languages]


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each command, without comments and variables of the shell before it."""
    for block in blocks(path, "", "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = next((i for i, word in enumerate(words) if word in ("&&", "|")), len(words))
                command, words = words[:end], words[end + 1 :]
                while command and re.match(r"[A-Z_]+=", command[0]):
                    command.pop(0)
                if command:
                    yield command


def page_name(path: Path) -> str:
    return str(path.relative_to(TEMPLATE)).replace(SOURCE.name, "project")


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_a_program_knows_each_command(path: Path, project: Project) -> None:
    src = path.parent / "src" if (path.parent / "src").exists() else SOURCE / "src"
    of_template = path.parent in (TEMPLATE, TEMPLATE / "docs")
    for command in commands(path):
        if command[0] != "make":
            know(command, src)
        elif of_template and defined(command[1], TEMPLATE):
            pass
        else:
            assert defined(command[1], SOURCE), command
            for line in project.make("-n", *command[1:]).stdout.replace("\\\n", " ").splitlines():
                if OF_PROJECT.match(line):
                    know(shlex.split(line.lstrip("@")), src)


def defined(target: str, folder: Path) -> bool:
    """Whether the Makefile of a folder has the target."""
    text = (folder / "Makefile").read_text(encoding="utf-8")
    return re.search(rf"(?m)^{target}:", text) is not None


def know(command: list[str], src: Path) -> None:
    """Fail unless a program accepts these words, options of train.py as src/options.py has them."""
    program, words = Path(command[0]).name, command[1:]
    if program in ("python", "torchrun", "srun") and "src/train.py" in words:
        given = words[words.index("src/train.py") + 1 :]
        options = src if (src / "options.py").exists() else SOURCE / "src"
        cls = runpy.run_path(str(options / "options.py"))["Options"]
        read_command_line(cls, [word for word in given if word != "--help"])
    elif program == "smlightning" and words[0] == "rehearse":
        rehearsal.parser().parse_args(words[1:])
    elif program == "smlightning":
        parser().parse_args(words)
    elif program == "aws":
        know_call(words)
    elif program == "python" and words[0] != "-m":
        assert (src.parent / words[0]).exists() or (TEMPLATE / words[0]).exists(), command
    else:
        assert program in SYSTEM, command


def know_call(words: list[str]) -> None:
    """Fail unless botocore's model has this call of AWS and its arguments."""
    if " ".join(words[:2]) in OF_AWS:
        return
    service, operation, *arguments = words
    model = botocore.session.get_session().get_service_model(service)
    names = {name.lower(): name for name in model.operation_names}
    shape = model.operation_model(names[operation.replace("-", "")]).input_shape
    members = {each.lower() for each in shape.members} if shape else set()
    given = {each[2:] for each in arguments if each.startswith("--")}
    given -= {"output", "query", "cli-binary-format"}  # of the command line itself
    assert {each.replace("-", "") for each in given} <= members, words


def jobs(project: Project) -> Iterator[job.Job]:
    """The project's job with each block of TOML pasted into it."""
    for block in (block for path in PAGES for block in blocks(path, "toml")):
        given = tomllib.loads(project.read("job.toml"))
        for key, value in tomllib.loads(block).items():
            given[key] = {**given[key], **value} if isinstance(value, dict) else value
        yield job.from_table(given)


def test_each_block_of_toml_makes_a_request(project: Project) -> None:
    for wanted in jobs(project):
        aws.reject(request.dry_run(wanted, projects.Project(project.path)))


@pytest.mark.long
def test_preflight_accepts_each_block_of_toml(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what an isolated container lacks: the page says what it needs."""
    monkeypatch.chdir(project.path)
    for wanted in jobs(project):
        found = map(str, preflight.run(wanted, projects.Project(project.path), offline=True))
        assert [each for each in found if re.match("error(?!.*isolated)", each)] == []


def test_each_block_of_python_is_python() -> None:
    for block in (block for path in PAGES for block in blocks(path, "python")):
        ast.parse(textwrap.dedent(block))


@pytest.mark.parametrize("name", ["reference.py", "messages.py"])
def test_the_page_of_options_and_that_of_messages_are_those_of_the_code(name: str) -> None:
    """If it fails: `make reference`."""
    written = runpy.run_path(str(TEMPLATE / "docs" / name))
    assert written["PAGE"].read_text(encoding="utf-8") == written["page"]()


def constant(path: Path, name: str) -> Any:
    """A constant of a file, which is not imported: that takes seconds."""
    (value,) = re.findall(rf"(?m)^{name} = (.*?)(?:  #.*)?$", path.read_text(encoding="utf-8"))
    return ast.literal_eval(value)


def test_the_figures_in_the_text_are_those_of_the_code() -> None:
    names = [constant(SOURCE / "src/data.py", f"{kind}_COLUMNS") for kind in ("TEXT", "LABEL")]
    columns = [", ".join(f"`{name}`" for name in each) for each in names]
    largest = constant(TEMPLATE / "packages/smlightning/smlightning/data/splits.py", "LARGEST")
    options = TrainerOptions()
    figures: dict[str, Any] = {
        "data.md": [f"at most {largest:,} rows", *columns],
        "checkpoints.md": [
            f"`--checkpoint_minutes` ({options.checkpoint_minutes:g})",
        ],
        "distributed.md": [f"`--hang_seconds` ({options.hang_seconds:g})"],
        "rehearsal.md": [
            f"at most {plan.BATCHES} batches",
            f"up to {plan.INTERRUPTED_BATCHES} batches",
        ],
    }
    for name, texts in figures.items():
        page = " ".join((SOURCE / "docs" / name).read_text(encoding="utf-8").split())
        assert [text for text in texts if text not in page] == [], name
    questions = runpy.run_path(str(TEMPLATE / "tests/checkout.py"))["ANSWERS"]
    install = (TEMPLATE / "docs/install.md").read_text(encoding="utf-8")
    assert f"| {questions['instance_type']}, {questions['instance_count']} |" in install


def test_each_message_of_troubleshooting_is_one_of_the_code() -> None:
    """The longest text in it without values; Python's parts of a string are joined."""
    files = [*TEMPLATE.glob("packages/**/*.py"), *SOURCE.glob("src/*.py")]
    code = " ".join(path.read_text(encoding="utf-8") for path in files)
    code = re.sub(r"\s+", " ", re.sub(r'"\s+f?"', "", code))
    lacking = []
    for row in (SOURCE / "docs/troubleshooting.md").read_text(encoding="utf-8").splitlines():
        for message in re.findall(r"`([^`]+)`", re.split(r"(?<!\\)\|", f"{row}||")[1]):
            text = max((part.strip() for part in re.split(r"…|[\d()\[\]:']", message)), key=len)
            if text not in code and text not in FOREIGN:
                lacking.append(message)
    assert lacking == []


def test_the_pages_command_fetches_the_templates_train_py(tmp_path: Path) -> None:
    need("git")
    template = copy_template(tmp_path / "template")
    git(template, "init")
    commit_all(template, "first")
    made = Project(Path(cookiecutter(str(template), no_input=True, output_dir=str(tmp_path))))
    theirs = (made.path / "src/train.py").read_bytes()
    (made.path / "src/train.py").write_text("# mine\n")
    fetch = blocks(SOURCE / "docs/update.md", "")[1]
    made.run("bash", "-c", fetch.replace(".venv/bin/python", sys.executable))
    assert (made.path / "src/train.py").read_bytes() == theirs


@pytest.mark.long
def test_the_pages_data_model_and_predictions_train_on_two_ranks(tmp_path: Path) -> None:
    made = bake(tmp_path)
    for page, heading, name in (
        ("data.md", "Write `data.Data`", "data.py"),
        ("model.md", "Write `model.Model`", "model.py"),
        ("model.md", "Write `predict.py`", "predict.py"),
    ):
        section = (SOURCE / "docs" / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1]
        code = BLOCK.search(section)
        assert code
        (made.path / "src" / name).write_text(code[3], encoding="utf-8")
    shutil.rmtree(made.path / "tests")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = ["--epochs", "3", "--lr", "0.01", "--batch_size", "32"]
    out = made.run("python", *torchrun, "src/train.py", *options, OMP_NUM_THREADS="1").stdout
    assert float(out.split()[-1]) > 0.9 and "inexact" not in out
    assert (
        made.run("python", "src/predict.py", "0.1,0.2", "0.9,0.9").stdout
        == "0.1,0.2\t1\n0.9,0.9\t0\n"
    )
    wrong = made.run("python", "src/predict.py", "0.1", check=False)
    assert wrong.stderr == "error: '0.1' is no point; write two numbers, such as 0.1,0.2\n"
    made.run("python", "-m", "ruff", "check", "src")


@pytest.mark.long
def test_the_pages_table_trains_and_predicts(tmp_path: Path) -> None:
    made = bake(tmp_path)
    data, network, options, predict = blocks(SOURCE / "docs/table.md", "python")
    for name, code in (("data.py", data), ("model.py", network), ("predict.py", predict)):
        (made.path / "src" / name).write_text(code, encoding="utf-8")
    inherited = made.read("src/options.py").partition("\nMETRICS = ")[0]
    (made.path / "src/options.py").write_text(f"{inherited}\n{options}", encoding="utf-8")
    rows = ["city,age,income,price,bought"]
    for number in range(400):
        city, age = ("Turin", "Oslo", "Lima")[number % 3], 20 + number % 50
        rows.append(f"{city},{age},{1000 * age},{age / 10 + number % 3},{int(age > 60)}")
    (made.path / "rows.csv").write_text("\n".join(rows), encoding="utf-8")
    train = ["src/train.py", "--dataset", "rows.csv", "--batch_size", "20", "--lr", "0.01"]
    out = made.run("python", *train, "--epochs", "20", OMP_NUM_THREADS="1").stdout
    assert float(out.split()[-1]) < 0.8, out  # 2.5 for a mean and a coin
    (made.path / "two.csv").write_text("age,income,city\n65,65000,Rome\n25,25000,Turin\n")
    words = ["src/predict.py", "Turin,65,65000", "Turin,25,25000", "two.csv"]
    lines = [line.split("\t") for line in made.run("python", *words).stdout.splitlines()]
    assert [bought for _, bought in lines] == ["1", "0", "1", "0"]
    assert lines[1] == lines[3] and abs(float(lines[1][0]) - 2.5) < 1
    wrong = made.run("python", "src/predict.py", "Turin,old,1", check=False)
    assert re.match(r"error: 'Turin,old,1' cannot be read \(.*\); give a csv, or", wrong.stderr)
    made.run("python", "-m", "ruff", "check", "src")


@pytest.mark.long
def test_the_commands_of_the_first_run_work(words: Path, tmp_path: Path) -> None:
    """As they are typed, with the words in place of a file that the reader writes."""
    made = bake(tmp_path)
    shutil.copy(words, made.path / "my.csv")
    for command in commands(SOURCE / "docs/first_run.md"):
        if command[0] == "make" and command[1:] != ["rehearse"]:  # test_rehearsal.py has it
            made.make(*command[1:])
