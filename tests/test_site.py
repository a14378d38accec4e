"""The site of docs/: it builds, a broken link or anchor ends the build, and every page is in its navigation."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))

pytestmark = pytest.mark.slow


def make_docs(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`make docs` with the packages that are installed: what it prints of a build of root/docs."""
    command = [
        "make",
        "--silent",
        "-f",
        str(ROOT / "Makefile"),
        "-o",
        ".venv/.ready",
        "docs",
        f"SITE={site}",
        "UV=true",
    ]
    command += [f"BIN={ROOT}/.venv/bin"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    done = make_docs(ROOT, built)
    assert done.returncode == 0, done.stderr
    return built


def test_every_page_is_built(site: Path) -> None:
    for page in PAGES:
        assert (site / page).with_suffix(".html").is_file(), page


def test_every_page_is_in_the_navigation(site: Path) -> None:
    sidebar = (site / "index.html").read_text("utf-8").split('class="sidebar-tree"')[1].split("</aside>")[0]
    linked = set(re.findall(r'href="([^"#]+)\.html"', sidebar))
    assert linked == {page.with_suffix("").as_posix() for page in PAGES} - {"index"}


def test_it_asks_nobody_else(site: Path) -> None:
    """No font, script or picture from elsewhere: whoever reads it is not told to anybody."""
    for page in PAGES:
        text = (site / page).with_suffix(".html").read_text("utf-8")
        assert re.findall(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]+", text) == []


def test_links_out_of_the_documentation_lead_to_the_repository(site: Path) -> None:
    text = (site / "scaling.html").read_text("utf-8")
    blob = "https://github.com/keystone-action/keystone-action/blob/main"
    assert f'href="{blob}/examples/workflows/shards.yml"' in text


BROKEN = {
    "[x](gone.md)": "'gone.md'",
    "[x](right.md#gone-there)": "'gone-there'",
    "[x](#gone-here)": "'gone-here'",
    "[x](../gone.yml)": "no such file: ../gone.yml",
    "![x](gone.png)": "gone.png",
    "": "document isn't included in any toctree",
}
"""A page's text → what is said of it. The last one is in no navigation."""


def test_each_thing_that_is_broken_ends_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(DOCS / "conf.py", docs)
    index = "# Home\n\n## Pages\n\n- [right](right.md)\n"
    (docs / "index.md").write_text(index)
    (docs / "right.md").write_text("# The right page\n\n[x](#the-right-page)\n")
    assert make_docs(tmp_path, tmp_path / "right").returncode == 0
    for number, text in enumerate(BROKEN):
        (docs / f"page-{number}.md").write_text(f"# Page {number}\n\n{text}\n")
        index += f"- [a page](page-{number}.md)\n" if text else ""
    (docs / "index.md").write_text(index)
    done = make_docs(tmp_path, tmp_path / "wrong")
    assert done.returncode != 0
    for number, said in enumerate(BROKEN.values()):
        assert [line for line in done.stderr.splitlines() if f"page-{number}" in line and said in line], done.stderr


def test_the_workflow_publishes_what_it_builds_and_the_job_with_rights_runs_nothing() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8"))["jobs"]
    build, publish = jobs["build"], jobs["publish"]
    assert (build["permissions"], set(publish["permissions"])) == ({"contents": "read"}, {"pages", "id-token"})
    assert [step for step in publish["steps"] if "run" in step] == []
    assert publish["environment"]["name"] == "github-pages"
    (upload,) = [step["with"] for step in build["steps"] if "upload-artifact@" in step.get("uses", "")]
    assert (upload["name"], upload["path"]) == ("github-pages", "artifact.tar")


def test_what_is_published_is_the_site_alone(site: Path, tmp_path: Path) -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8"))["jobs"]
    (pack,) = [step["run"] for step in jobs["build"]["steps"] if step.get("run", "").startswith("tar ")]
    (tmp_path / "build").mkdir()
    shutil.copytree(site, tmp_path / "build" / "site")
    subprocess.run(["bash", "-euc", pack], cwd=tmp_path, check=True)
    with tarfile.open(tmp_path / "artifact.tar") as tar:
        names = tar.getnames()
    assert {"./index.html", "./checks/sql.html"} < set(names)
    assert [name for name in names if ".doctrees" in name] == []
