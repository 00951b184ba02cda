"""Predict rows: `python src/predict.py < rows.csv > answers.csv`, or a row of JSON.

A csv comes in with the columns of training, in any order, and goes out with one more: the
prediction. SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`:
a request is such a csv (text/csv), or a JSON object of a row, or a list of them.
"""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning import predictions
from smlightning.errors import UserError, run_command

Row = dict[str, str]
AT_ONCE = 1000  # rows


def model_fn(model_dir: str | Path) -> Any:
    import model

    return model.load(Path(model_dir))


def input_fn(body: str | bytes, content_type: str) -> list[Row]:
    """The rows of a request.

    Raises:
        UserError: it holds something else.
    """
    text = body.decode("utf-8-sig") if isinstance(body, bytes) else body
    if content_type == "text/csv":
        return [*csv.DictReader(io.StringIO(text))]
    return rows_of_json(text)


def rows_of_json(text: str) -> list[Row]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    rows = found if isinstance(found, list) else [found]
    if not all(isinstance(row, dict) for row in rows):
        hint = 'write {"column": "value"}, or send a csv with a header on standard input'
        raise UserError(f"found {text[:40]!r}; expected a row as a JSON object", hint)
    return [{name: "" if v is None else str(v) for name, v in row.items()} for row in rows]


def predict_fn(rows: list[Row], trained: Any) -> list[Any]:
    """The prediction for each row: a number in the target's unit, or a class.

    Raises:
        UserError: a row lacks a column.
    """
    import torch

    net, columns = trained
    wanted = [*columns.numbers, *columns.texts]
    for row in rows:
        if missing := [name for name in wanted if row.get(name) is None]:
            problem = f"a row has no column {missing[0]!r}; it has {', '.join(map(str, row))}"
            raise UserError(problem, f"give the columns {', '.join(wanted)}")
    if not rows:
        return []
    with torch.inference_mode():
        found = net(*columns.encode({name: [row[name] for row in rows] for name in wanted}))
    if columns.labels:
        return [columns.labels[number] for number in found.argmax(1).tolist()]
    mean, deviation = columns.scale
    return [round(value * deviation + mean, 4) for value in found[:, 0].tolist()]


def output_fn(answers: list[Any], accept: str) -> str:
    return json.dumps(answers)


def answered(rows: Iterable[Row], trained: Any) -> Iterator[tuple[Row, Any]]:
    """Each row with its prediction; a file of any length needs little memory."""
    remaining = iter(rows)
    while some := [*islice(remaining, AT_ONCE)]:
        yield from zip(some, predict_fn(some, trained), strict=True)


def main() -> int:
    arguments = predictions.parser(__doc__, "row", SAMPLE).parse_args()

    def answer() -> None:
        predictions.check_model(arguments.model_dir)
        given = [*arguments.given, *([arguments.sample] if arguments.sample else [])]
        rows: Iterable[Row] = [row for text in given for row in rows_of_json(text)]
        header = [*dict.fromkeys(name for row in rows for name in row)]
        if not given:
            sys.stdin.reconfigure(encoding="utf-8-sig", newline="")  # type: ignore[union-attr]
            rows = reader = csv.DictReader(sys.stdin)
            header = [*(reader.fieldnames or [])]
        trained = model_fn(arguments.model_dir)
        output = csv.writer(sys.stdout, lineterminator="\n")
        output.writerow([*header, f"predicted {trained[1].target}"])
        for row, value in answered(rows, trained):
            output.writerow([*(row.get(name) for name in header), value])

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
