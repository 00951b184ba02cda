"""A hook of mkdocs: gathers the pages of a generated project and of the repository's root.

Links keep working on GitHub, where pages lie in several folders. On the site all pages lie in one.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PROJECT = next(ROOT.glob("{{*}}"))
PROJECT_URL = "%7B%7Bcookiecutter.project_slug%7D%7D"
AT_ROOT = {
    "README": "index",
    "CONTRIBUTING": "contributing",
    "SECURITY": "security",
    "findings/README": "findings",
    "CHANGELOG": "changelog",
    "examples/language-model/README": "language_model",
    "examples/lora/README": "lora",
    "examples/table/README": "table_example",
    "examples/library/README": "library_example",
    "examples/image-classification/README": "image_classification",
    "examples/image-to-text/README": "image_to_text",
    "examples/bring-your-project/README": "bring_example",
    "examples/cluster/README": "cluster",
    "packages/smlightning/README": "smlightning",
    "packages/smlightning-sagemaker/README": "smlightning_sagemaker",
}
LINK = re.compile(r"(\]\(|\]: )([^)\s#]+)")
ELSEWHERE = (".ipynb", "LICENSE")  # on GitHub only


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    pages = {page.name: page for page in sorted((PROJECT / "docs").glob("*.md"))}
    pages |= {f"{name}.md": ROOT / f"{source}.md" for source, name in AT_ROOT.items()}
    for name, path in pages.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let each link point to the page's place on the site."""
    return LINK.sub(lambda match: match[1] + _on_the_site(match[2], config["repo_url"]), markdown)


def _on_the_site(link: str, repository: str | None) -> str:
    if ":" in link:
        return link
    if link.endswith(ELSEWHERE):
        # Without a repository's address the link has no target on the site.
        return f"{repository}/blob/HEAD/{link}" if repository else "index.md"
    path = re.sub(r"^(\.\./)+", "", link).removeprefix(f"{PROJECT_URL}/").removeprefix("docs/")
    name, dot, suffix = path.rpartition(".")
    from_a_package = f"packages/{name}"  # ../smlightning/README.md
    name = AT_ROOT.get(name) or AT_ROOT.get(from_a_package, name)
    return f"{name}{dot}{suffix}"
