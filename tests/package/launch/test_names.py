"""Names of AWS's are those of its documentation, and the ones that are taken for them are refused:
the table is names.toml.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from small_job import GOOD, PROJECT

from smlightning.launch import aws, images, launchers, preflight
from smlightning.launch.findings import refused

TABLE = tomllib.loads((Path(__file__).parent / "names.toml").read_text())["name"]
RIGHT_JOBS = Path(__file__).parent / "right_jobs.toml"
API_PAGE = re.compile(r"/sagemaker/latest/APIReference/API_(\w+)\.html")


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(each, id=each["right"]) for each in TABLE if each["kind"] == kind]


def has_member(path: str) -> bool:
    """Whether CreateTrainingJob has the member, in botocore's model."""
    shape = aws.shape("CreateTrainingJobRequest")
    for name in path.split("."):
        if name not in getattr(shape, "members", {}):
            return False
        shape = shape.members[name]
    return True


@pytest.mark.parametrize("name", of_kind("member"))
def test_a_member_is_the_models_and_a_wrong_one_is_refused(name: dict[str, Any]) -> None:
    assert has_member(name["right"])
    for wrong in name["wrong"]:
        assert not has_member(wrong)
        *tables, last = wrong.split(".")
        value: dict[str, Any] = {last: "x"}
        for table in reversed(tables):
            value = {table: value}
        found, _ = preflight.offline_checks(GOOD.replace(request=value), PROJECT)
        assert refused(found), wrong


@pytest.mark.parametrize("name", of_kind("flag"))
def test_a_launchers_flag_is_the_toolkits(name: dict[str, Any]) -> None:
    training = pytest.importorskip("sagemaker_pytorch_container.training")
    known = {value for value in vars(training).values() if isinstance(value, str)}
    assert name["right"] in known and not known & set(name["wrong"])
    job = GOOD.replace(distribution=name["launcher"])
    assert [flag for flag in launchers.flags(job) if flag.endswith("enabled")] == [name["right"]]


@pytest.mark.parametrize("name", of_kind("variable"))
def test_a_variable_is_the_toolkits_and_what_the_package_reads(name: dict[str, Any]) -> None:
    environment = pytest.importorskip("sagemaker_training.environment")
    code = Path(environment.__file__).read_text(encoding="utf-8")
    folder = Path(images.__file__).parents[1]
    package = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    for variable in (name["right"], *name["wrong"]):
        # Its method to_env_vars names them in lower case, without the beginning.
        is_known = f'"{variable.removeprefix("SM_").lower()}": self' in code
        is_read = re.search(rf"\b{variable}\b", package) is not None
        assert is_known == is_read == (variable == name["right"]), variable


@pytest.mark.parametrize("name", of_kind("image"))
def test_an_image_is_the_lists_and_a_wrong_one_is_refused(name: dict[str, Any]) -> None:
    job = GOOD.replace(distribution=name["launcher"], image="auto")
    uri = images.image_uri(job)
    registry, _, repository = uri.partition("/")
    assert repository == name["right"] and images.profile(job.replace(image=uri))
    for wrong in name["wrong"]:
        found, _ = preflight.offline_checks(job.replace(image=f"{registry}/{wrong}"), PROJECT)
        assert "image" in [each.key for each in found if each.level == "error"], wrong


def test_pages_of_the_api_are_those_of_its_shapes() -> None:
    """AWS makes a page for each shape of the model; an address from memory may name none."""
    named = set(API_PAGE.findall(RIGHT_JOBS.read_text()))
    named |= {shape for each in TABLE for shape in API_PAGE.findall(each["page"])}
    assert len(named) >= 15
    client = aws.shape("CreateTrainingJobRequest")
    model = client._shape_resolver  # the model that the shape is of
    known = set(model._shape_map)
    missing = {each for each in named if not {each, f"{each}Request", f"{each}Input"} & known}
    assert not missing


def test_every_name_has_its_page() -> None:
    assert len(TABLE) >= 24 and all(each["page"].startswith("https://") for each in TABLE)
    names = [each["right"] for each in TABLE]
    assert len(set(names)) == len(names) and not set(names) & {w for e in TABLE for w in e["wrong"]}
