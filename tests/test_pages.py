"""Pages point to what exists: links, anchors, and the paths that ARCHITECTURE.md names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SOURCES = ("results/stapo_results", "training/stapo_training", "eval/stapo_eval", "repro/stapo_repro")


def tracked_pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines()]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found = set()
    for title in HEADING.findall(page.read_text(encoding="utf-8")):
        text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    bad = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            bad.append(target)
    return bad


def test_every_link_of_every_page_leads_somewhere():
    assert {p.relative_to(ROOT).as_posix(): bad for p in tracked_pages() if (bad := broken_links(p))} == {}


def test_every_page_of_docs_stands_in_the_index():
    linked = {
        (ROOT / "docs" / t.partition("#")[0]).resolve() for t in LINK.findall((ROOT / "docs/README.md").read_text())
    }
    pages = {p for p in tracked_pages() if (ROOT / "docs") in p.parents} - {ROOT / "docs/README.md"}
    assert pages <= linked


def test_the_front_page_counts_the_methods():
    overlays = len(list((ROOT / "training/stapo_training/configs/method").glob("*.yaml")))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"(\d+) overlays", text) == [str(overlays)]
    assert re.findall(r"(\d+) more methods", text) == [str(overlays - 4 - 3)]  # beside four methods, three ablations


def named_paths(text: str) -> list[str]:
    """The repository's paths that a page names in backticks, such as `eval/stapo_eval/run.py`."""
    return [word for word in re.findall(r"`([^`\s]+)`", text) if "/" in word and re.fullmatch(r"[\w./\-]+", word)]


def test_the_paths_of_the_map_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = named_paths(text)
    assert paths
    assert [p for p in paths if not (ROOT / p).exists()] == []


def test_the_map_names_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [f"{s}/{p.name}" for s in SOURCES for p in (ROOT / s).iterdir() if (p / "__init__.py").exists()]
    assert [room for room in rooms if room not in text] == []
