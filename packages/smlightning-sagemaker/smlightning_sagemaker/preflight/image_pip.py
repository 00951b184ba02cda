"""pip as the image would run it: `python image_pip.py FOLDER MARKERS ARGUMENTS…`.

An environment's Python runs this file by its path. pip comes from FOLDER and sees the environment's
packages only, as with `pip --python`. MARKERS, in JSON, are the values of environment markers, for
which pip has no option. Hashes of a requirements file choose among the files of an index, and
are not compared with a file's content, for which pip would download every package.
"""

import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

FOLDER, MARKERS, *ARGUMENTS = sys.argv[1:]


class OnlyPip:
    """Finds only pip in FOLDER: its other packages do not belong to the environment."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [FOLDER], target) if name == "pip" else None


sys.meta_path.insert(0, OnlyPip)

from pip._vendor.packaging import markers  # noqa: E402

_ = markers.default_environment  # AttributeError: another pip, which would ignore the next line
markers.default_environment = lambda: json.loads(MARKERS)

from pip._internal.cli.main import main  # noqa: E402
from pip._internal.operations.prepare import RequirementPreparer  # noqa: E402
from pip._internal.utils.hashes import Hashes  # noqa: E402

no_hashes = property(lambda _: False, lambda *_: None)
RequirementPreparer.require_hashes = no_hashes  # type: ignore[assignment]
RequirementPreparer._get_linked_req_hashes = lambda *_: Hashes({})  # type: ignore[method-assign]

sys.exit(main(ARGUMENTS))
