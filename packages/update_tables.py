"""Write the table of AWS's registries and image tags from the newest SageMaker SDK's own files.

    python packages/update_tables.py           # writes job/tables.json
    python packages/update_tables.py --check   # exit 1, and what is behind

AWS publishes no list of GPUs by instance type: `--check` prints types of botocore's model whose
GPUs job/instances.py does not know. New images are proven by `make images` before they are used.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from smlightning_sagemaker.job import aws, instances
from smlightning_sagemaker.preflight.launcher import without_image

(TABLES,) = Path(__file__).parent.glob("*/*/job/tables.json")
FILES = "sagemaker/core/image_uri_config"


def downloaded(folder: str) -> zipfile.ZipFile:
    """The wheel of the newest sagemaker-core, which is part of SDK v3."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    subprocess.run([*pip, "sagemaker-core>=2"], check=True)
    (wheel,) = Path(folder).glob("*.whl")
    return zipfile.ZipFile(wheel)


def tables(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """Region → account of the registry, and tags: those of `pytorch` whole, of others the start."""
    registries: dict[str, str] = {}
    tags: dict[str, list[str]] = {}
    for name in ("pytorch", "pytorch-amzn2023"):
        content = json.loads(wheel.read(f"{FILES}/{name}.json"))["training"]["versions"]
        for version, facts in content.items():
            registries |= facts["registries"]
            kinds = facts.get("container_version", {}).values()
            known = tags.setdefault(facts["repository"], [])
            known += [f"{version}-{kind}" for kind in kinds] or [f"{version}-"]
    return {
        "source": f"{Path(str(wheel.filename)).name}, {datetime.now(UTC):%Y-%m-%d}",
        "registries": dict(sorted(registries.items())),
        "tags": {name: sorted(tags[name]) for name in ("pytorch", "pytorch-training")},
    }


def behind(newest: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """What the SDK's and botocore's newest tables have, and ours have not."""
    lines = [
        f"{kind}: {entry}"
        for kind in ("registries", "tags")
        for name, value in newest[kind].items()
        if value != known[kind].get(name)
        for entry in ([name] if kind == "registries" else sorted({*value} ^ {*known[kind][name]}))
    ]
    types = aws.shape("TrainingInstanceType").enum
    unknown = [each for each in types if instances.gpus(each) is None and not without_image(each)]
    return lines + [f"GPUs: {each}" for each in unknown]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        newest = tables(downloaded(folder))
    if "--check" in sys.argv:
        lines = behind(newest, json.loads(TABLES.read_text()))
        print(*lines or ["the tables are those of the newest SDK"], sep="\n")
        return bool(lines)
    TABLES.write_text(json.dumps(newest, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
