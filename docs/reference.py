"""Write the page of options, keys, images and commands from the code: `make reference`.

A test compares {{cookiecutter.project_slug}}/docs/options.md with what this script would write.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import options
from smlightning.options import declared_options, describe_type
from smlightning_sagemaker import commands
from smlightning_sagemaker.job import images, job
from smlightning_sagemaker.rehearsal import command as rehearsal

PAGE = next(Path(__file__).resolve().parents[1].glob("{{*}}")) / "docs" / "options.md"

HEAD = """\
# Options, keys, images and commands

A command of the template writes this page from the code. In your project,
`python src/train.py --help` and `smlightning COMMAND --help` print what applies there.

## Options of train.py

Write `--name value` on the command line, and `name = value` under `[hyperparameters]` of
`job.toml`. The last column says whether a run may [resume](checkpoints.md) with another value;
*path* means only with `--resume PATH`.
"""
OPTIONS = "| option | default | values | | resume |\n|---|---|---|---|---|"
RESUME = {"free": "yes", "path": "path", "optimizer": "no", "data": "no"}
KEYS = """
## Keys of job.toml

Write any other member of [CreateTrainingJob][create] under `[request]`, by AWS's name.

[create]: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html

| key | default | values | | member that it sets |
|---|---|---|---|---|"""
PAGES = {  # key of job.toml, or its table → what to read about it
    "distribution": "distributed.md#choose-a-launcher",
    "image": "#images",
    "role": "first_job.md#2-create-role-and-bucket",
    "checkpoint_s3": "jobs.md#keep-or-delete-checkpoints",
    "forward_stop": "checkpoints.md#lose-less-when-sagemaker-stops-a-job",
    "channels": "jobs.md#read-data-from-s3",
    "spot": "jobs.md#use-spot-capacity",
    "network": "jobs.md#train-in-a-vpc",
    "secrets": "jobs.md#pass-secrets",
}
KINDS = {str: "text", int: "whole number", float: "number", bool: "true, false"}
IMAGES = """
## Images

`image = "auto"` selects the image with the newest torch that has the launcher.

| `image` | torch | Python | launchers | patched until | AWS's tag |
|---|---|---|---|---|---|"""
COMMANDS = """
## Commands

Each command takes `--job FILE`, and each except `rehearse` takes `--profile NAME`. Values in
brackets are defaults. The exit status is 0 for success, 1 for a failed check, a failed job or an
error, 2 for a mistake on the command line, and 130 after Ctrl-C."""
REHEARSE = """
### smlightning rehearse

Simulate the cluster on this machine: [rehearsal](rehearsal.md).
"""
TABLE = "| option | |\n|---|---|"


def page() -> str:
    """The whole page."""
    return "\n".join(
        [HEAD, *_options(), KEYS, *_keys(), IMAGES, *_images(), COMMANDS, *_commands()]
    )


def row(*cells: object) -> str:
    """A row of a table of Markdown."""
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def shown(value: object) -> str:
    """A default as job.toml and the command line write it."""
    if value in ("", [], {}):
        return "empty"
    return str(value).lower() if isinstance(value, bool) else f"`{value}`"


def _options() -> Iterator[str]:
    declared = declared_options(options.Options)
    own = [name for name in declared if name in options.Options.__annotations__]
    others = [name for name in declared if name not in own]
    for title, names in (("the example, in `src/options.py`", own), ("every project", others)):
        yield f"### Options of {title}\n\n{OPTIONS}"
        for name in names:
            each = declared[name]
            kind = describe_type(each.type)
            yield row(f"`--{name}`", shown(each.default), kind, each.help, RESUME[each.resume])
        yield ""


def _keys() -> Iterator[str]:
    for key in job.KEYS:
        table, _, name = key.path.rpartition(".")
        models: dict[str, Any] = {"": job.Job, "spot": job.Spot, "network": job.Network}
        if key.path not in models:
            field = models[table].model_fields[name]
            link = PAGES.get(key.path) or PAGES.get(table)
            text = f"{field.description}; [more]({link})" if link else field.description
            default = "" if field.is_required() else shown(key.default)
            yield row(f"`{key.path}`", default, values(field), text, key.member)


def values(field: Any) -> str:
    """The values that a key takes."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind):
        return "texts" if get_origin(kind) is list else "table"
    limits = {
        name: getattr(each, name)
        for each in field.metadata
        for name in vars(type(each))
        if name in ("ge", "le")
    }
    least = f" from {limits['ge']}" if "ge" in limits else ""
    most = f" to {limits['le']}" if limits.get("le", job.MOST) != job.MOST else ""
    return f"{KINDS[kind]}{least}{most}"


def _images() -> Iterator[str]:
    for each in images.PROFILES.values():
        launchers = ", ".join(each.launchers)
        yield row(each.name, each.torch, each.python, launchers, each.patched_until, each.gpu)


def _commands() -> Iterator[str]:
    for name, each in commands.COMMANDS.items():
        yield f"\n### smlightning {name}\n\n{each.help[0].upper()}{each.help[1:]}.\n"
        flags = [(f"{flag} {more.get('metavar', '')}", more) for flag, more in each.options]
        yield from _table((flag, more["help"]) for flag, more in flags if flag.startswith("--"))
    yield REHEARSE
    actions = [each for each in rehearsal.parser()._actions if each.dest != "help"]
    yield from _table(
        (" ".join([*each.option_strings, str(each.metavar)]), each.help or "") for each in actions
    )
    yield ""


def _table(lines: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield TABLE
    yield from (row(f"`{flag.strip()}`", text) for flag, text in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
