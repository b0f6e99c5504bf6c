"""Pages point to what exists: links, anchors, and the paths that ARCHITECTURE.md names."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from math import fsum
from pathlib import Path

import pytest
from page_commands import ROOT, tracked_pages

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SOURCES = ("results/stapo_results", "training/stapo_training", "eval/stapo_eval", "repro/stapo_repro")


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


# numbers typed by hand

NUMBER = r"(?<![\w.-])[+-]?\d[\d,]*(?:\.\d+)?(?:e-\d+)?(?!\w)"
INTERVAL = re.compile(rf"(?:({NUMBER})(?:<br><sub>| \())?({NUMBER}) to ({NUMBER})")
SETTINGS = {"300", "120", "110"}  # steps of trainings
TYPED = {  # page -> where its numbers are typed
    "README.md": ("## Findings", "<!-- generated:figure"),
    "docs/findings.md": ("# Findings", "\0"),
    "docs/testbed.md": ("## What came out", "## How the numbers are made"),
}


def size(number: str) -> str:
    """Without its sign: a page may turn a difference round."""
    return number.replace(",", "").replace("e-0", "e-").lstrip("+-")


def known_numbers() -> tuple[set[str], dict[tuple[str, str], set[str]]]:
    """What results/tables prints, and what a page may round it to; (low, high) of each interval -> its means."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "results/tables").glob("*.md")))
    found, intervals = {size(n) for n in re.findall(NUMBER, text)}, dict[tuple[str, str], set[str]]()
    differences = json.loads((ROOT / "results/tables/main_table.json").read_bytes())["differences"]
    every = [d for of in differences.values() for d in of if d["points"] is not None]
    rows = [*INTERVAL.findall(text), *([f"{d[k]:.1f}" for k in ("points", "low", "high")] for d in every)]
    for mean, low, high in rows:
        turned = [n[1:] if n.startswith("-") else f"-{n.lstrip('+')}" for n in (high, low)]
        for ends in ((low, high), (turned[0], turned[1])):
            intervals.setdefault(ends, set()).add(size(mean))
    pairs = defaultdict[str, list[list[float]]](list)
    for file in sorted((ROOT / "results/records/testbed/costly-long").rglob("metrics.jsonl")):  # no table prints these
        steps = [json.loads(line)["values"] for line in file.read_text().splitlines()]
        rates = [100 * s.get("spurious_rate", 0) for s in steps]
        quarters = [fsum(rates[k + 1 : k + 31]) / 30 for k in (0, 30, 60, 90)]
        hard = [100 * s[k] for s in steps for k in s if k.startswith("val-core/mini-add-hard")]
        pairs[file.parent.name[-3:]].append(hard)
        found |= {f"{x:.1f}" for x in (*rates[10::10], *quarters, *hard)}
    found |= {f"{abs(a - b):.1f}" for first, second in pairs.values() for a, b in zip(first, second, strict=True)}
    return found | {f"{float(n):.{d}f}" for n in found if "e" not in n for d in (0, 1)} | SETTINGS, intervals


def unknown_numbers(text: str) -> list[str]:
    """Numbers of a page that no table has, and intervals whose mean is not in the text before them."""
    known, intervals = known_numbers()
    text, bad, last = " ".join(re.sub(r"\]\([^)]*\)|`[^`]*`", "", text).split()), [], 0
    for m in re.finditer(rf"\(({NUMBER}) to ({NUMBER})", text):
        means, before = intervals.get((m[1], m[2])), {size(n) for n in re.findall(NUMBER, text[last : m.start()])}
        bad += [m[0]] if means is None or not (means & before or means == {""}) else []
        last = m.end()
    return bad + [n for n in re.findall(NUMBER, text) if size(n) not in known]


@pytest.mark.parametrize("page", TYPED)
def test_numbers_typed_by_hand_are_those_of_the_tables(page):
    start, end = TYPED[page]
    text = (ROOT / page).read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    assert unknown_numbers(text) == []
    other = text.replace("9.0 points", "8.0 points", 1).replace("(6.3", "(5.3").replace("11.6", "10.6")
    assert unknown_numbers(other) == ["(5.3 to 10.6"]
    assert unknown_numbers(text.replace("9.0 points", "8.0 points", 1))[0].startswith("(6.3")
