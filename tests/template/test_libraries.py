"""The page of libraries is what tests/libraries/record.json says, and three libraries train again.

`make libraries` runs all of them.
"""

import json
from pathlib import Path

import pytest

from example_projects import bake_example
from libraries import prove
from libraries.environment import library_python
from libraries.libraries import LIBRARIES
from projects import TEMPLATE

RECORD = json.loads(prove.RECORD.read_text(encoding="utf-8"))
SMALLEST = ("torch_geometric", "monai", "gluonts")  # MB to install, not GB


def test_the_pages_table_is_the_record() -> None:
    page = prove.PAGE.read_text(encoding="utf-8")
    found = page.partition(prove.BEGIN)[2].partition(prove.END)[0].strip()
    assert found == prove.table(RECORD).strip(), "make libraries ARGS=--record writes the page"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_each_row_is_of_the_version_that_is_asked_for(library: prove.Library) -> None:
    if library.name not in RECORD:
        pytest.skip("no row yet")
    name, _, version = library.packages[0].partition("==")
    assert RECORD[library.name]["versions"][name.partition("[")[0]] == version


def test_an_error_is_the_cells_sentence() -> None:
    log = "step=1\nerror: found 3; expected 4; change it\nTraceback\nValueError: 3\n"
    assert prove.sentence(log) == "error: found 3; expected 4; change it"
    assert prove.sentence("a\nValueError: 3\nended with 1") == "ValueError: 3"


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLEST)
def test_a_library_trains_as_the_page_says(name: str, tmp_path: Path) -> None:
    """On one rank and on two, there stopped and resumed: what the record has, again."""
    (library,) = [each for each in LIBRARIES if each.name == name]
    cells = ["one rank", "two ranks", "stopped, resumed"]
    row = prove.prove(library, tmp_path / "environments", tmp_path / "run", cells)
    found, recorded = (
        [verdicts[cell].partition(":")[0] for cell in cells]  # a sentence counts its batches
        for verdicts in (row.cells, RECORD[name]["cells"])
    )
    assert found == recorded and "no" not in found, row.cells


@pytest.mark.long
def test_the_example_holds_the_contract(tmp_path: Path) -> None:
    """examples/library, with chemprop: stopped and resumed, rehearsed, asked."""
    (library,) = [each for each in LIBRARIES if each.name == "chemprop"]
    python = library_python(library, tmp_path / "environments")
    example = TEMPLATE / "examples" / "library"
    made = bake_example(tmp_path / "baked", example / "src", example / "tests")
    project = prove.Project(python, tmp_path)
    made.path.rename(project.path)
    with (project.path / "src" / "requirements.txt").open("a") as file:
        file.write("chemprop==2.3.1\n")
    words = ["-m", "pytest", "-n", "0", "tests/test_contract.py", "-k", "not preflight"]
    project.run([*words, "--basetemp", str(tmp_path / "contract")], "contract")
