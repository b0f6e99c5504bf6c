"""The report page: its parts by literal values, and the whole by what a parser of HTML reads in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import hostile_run
import pytest
import synthetic_records as synthetic
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro import paper, report, tables
from stapo_repro.figures.inline import Glyphs, picture
from stapo_repro.pages import outputs
from stapo_repro.paper import checkout
from stapo_repro.read import APART, load_cells, load_training_runs
from stapo_repro.report import responses, runs
from stapo_repro.report.cells import anchors
from stapo_repro.tables.render.view import main_grid
from stapo_repro.text import visible
from stapo_results import store
from stapo_results.errors import RecordError
from stapo_results.schema import CellRecord, ContextLimit, ProblemResult, Resumption, Run, Verdict

NOT_RUN = re.compile(r"<td[^>]*>\s*(?:<span[^>]*>)?not run")


def page(root: Path, runs: Sequence[Path] = (), folder: Path = Path(), figures: Sequence[str] = ()) -> str:
    """The page of the records below a folder, with the named figures alone: each takes its time to draw."""
    pytest.importorskip("matplotlib")
    cells, trainings = load_cells([root]), load_training_runs([root])
    drawn = outputs.draw(cells, trainings, figures) if figures else []
    read = report.ReportedExperiment("Runs", [root], (), cells, trainings, drawn)
    return report.to_html(read, None, runs, folder)


class Page(HTMLParser):
    """What stands in a page: elements with attributes, and the text of each kind of element."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("records")
    synthetic.miniature(root)
    synthetic.training_run(root / "train", "stapo")
    return root


@pytest.fixture(scope="module")
def text(miniature: Path) -> str:
    return page(miniature, folder=miniature, figures=["forest", "lengths"])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run.build(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("plain\ttext\nhere é א", "plain\ttext\nhere é א"),
        ("a\r\nb\rc", "a\nb⟨U+000D⟩c"),
        ("x\u202ey\x00\x1b[0m\x85", "x⟨U+202E⟩y⟨U+0000⟩⟨U+001B⟩[0m⟨U+0085⟩"),
        ("\ud800\ufeff\u200b\u2028\u2066", "⟨U+D800⟩⟨U+FEFF⟩⟨U+200B⟩⟨U+2028⟩⟨U+2066⟩"),
        ("👩‍🚀", "👩‍🚀"),
    ],
)
def test_what_is_not_seen_is_written_out(given_text: str, expected: str):
    assert visible(given_text) == expected


@given(st.text(alphabet=st.characters()))
def test_made_visible_once_is_made_visible_for_good(given_text: str):
    once = visible(given_text)
    assert visible(once) == once
    once.encode()  # no lone surrogate is left


def test_anchors_of_ids_that_look_alike_differ():
    names = anchors(["a/b", "a b", "c"], "x")
    assert names["c"] == "x-c"
    assert len(set(names.values())) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9._\-]+", n) for n in names.values())


SVG = b"""<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 10 5" xmlns="http://www.w3.org/2000/svg">
<title>t</title><metadata><a/></metadata><defs><style>*{stroke-linejoin: round}</style></defs>
<g id="axes_1"><defs><path id="D-31" d="M 1 2" transform="scale(0.015625)"/><path id="m1" d="M 0 0"/></defs>
<use xlink:href="#D-31" transform="translate(1.23456 0)"/><use xlink:href="#m1" x="1.23456" y="-0.001"/>
<path d="M 0.126 3.999999
L 1 2" clip-path="url(#c)" style="fill: none; stroke: #ff0000"/></g>
<defs><clipPath id="c"><rect x="0" y="0" width="1" height="1"/></clipPath></defs></svg>"""


def test_a_figure_is_inlined_without_styles_and_with_names_of_its_own():
    glyphs = Glyphs()
    one, two = (str(picture(name, "T < U", "c", SVG, glyphs).svg) for name in ("a", "b"))
    assert "style" not in one
    assert "metadata" not in one
    assert "axes_1" not in one, "nothing refers to it"
    assert '<path d="M 0.13 4 L 1 2" clip-path="url(#a-c)" fill="none" stroke="#ff0000" />' in one
    assert '<use href="#a-m1" x="1.23" y="0" />' in one
    assert '<use href="#g0" transform="translate(1.23456 0)" />' in one
    assert '<title id="a-title">T &lt; U</title>' in one
    assert '<clipPath id="b-c">' in two
    assert "#g0" in two, "both use one outline"
    assert str(glyphs.sheet()).count("<path") == 1


def test_shown_are_the_first_samples_of_all_problems_then_the_second(tmp_path: Path):
    r, other = (
        store.read_json(synthetic.cell(tmp_path, m, "mini-add", "t1.0", ["1-0", "001", "110"]), CellRecord)
        for m in ("stapo", "grpo")
    )
    assert [(k[1], k[2], v) for k, v in responses.choose([r], 5).items()] == [
        ("q0", 0, "1"), ("q1", 0, "0"), ("q2", 0, "1"), ("q1", 1, "0"), ("q2", 1, "1")
    ]  # fmt: skip
    assert [k[0][:4] for k in responses.choose([r, other], 5)] == ["stap", "stap", "grpo", "grpo"]
    assert responses.choose([], 5) == {}


def test_responses_are_counted_shortened_and_folded(hostile: Path):
    cells = load_cells([hostile])
    (shown,) = responses.load([hostile], cells, 15).values()
    assert (len(shown.responses), shown.total, shown.left_out) == (15, len(hostile_run.RESPONSES), 2)
    long = shown.responses[14]
    assert (len(long.head), long.left_out, len(long.tail), long.folded) == (3000, 996_000, 1000, True)
    assert shown.responses[0].head == hostile_run.RESPONSES[0]
    assert not shown.responses[0].folded
    assert [r.correct for r in shown.responses[:3]] == [True, False, True]


def test_a_run_that_disagrees_with_its_record_or_is_no_utf8_is_refused_by_line(tmp_path: Path):
    run = hostile_run.build(tmp_path)
    path = next(run.rglob("verdicts.jsonl"))
    lines = list(store.read(path, Verdict))
    changed = [v.model_copy(update={"correct": not v.correct}) if v.problem_id == "p3" else v for v in lines]
    path.unlink()
    store.append(path, changed)
    with pytest.raises(RecordError, match=r"verdicts\.jsonl.* p3, sample 0"):
        responses.load([run], load_cells([run]))
    path = next(run.rglob("samples.jsonl"))
    path.write_bytes(path.read_bytes().replace(b"broken UTF-8 was", b"broken \xff\xfe was", 1))
    with pytest.raises(RecordError, match=r"samples\.jsonl:9"):
        responses.load([run], load_cells([run]))


def _violations(parsed: Page) -> list[str]:
    """Attributes and elements that the page must not have."""
    addresses = {"src", "srcset", "action", "formaction", "data", "poster", "xlink:href", "background"}
    bad = []
    for tag, attributes in parsed.elements:
        for name, value in attributes.items():
            if name.startswith("on") or name == "style" or name in addresses:
                bad.append(f"{tag} {name}")
            if name == "href" and not (value or "").startswith("#") and ":" in (value or ""):
                bad.append(f"{tag} {value}")
        if tag in ("iframe", "object", "embed", "base", "form", "img", "link"):
            bad.append(tag)
    return bad


def test_the_page_holds_nothing_that_its_policy_would_refuse(text: str):
    parsed = Page(text)
    assert _violations(parsed) == []
    counts = Counter(tag for tag, _ in parsed.elements)
    assert (counts["script"], counts["style"]) == (1, 1)
    meta = next(a for tag, a in parsed.elements if tag == "meta" and a.get("http-equiv"))
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(parsed.texts[kind][0].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in str(meta["content"])
    assert str(meta["content"]).startswith("default-src 'none'; ")


def test_names_in_the_page_are_unique_and_every_link_finds_one(text: str):
    elements = Page(text).elements
    ids = [a["id"] for _, a in elements if "id" in a]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
    targets = {v for _, a in elements for n, v in a.items() if n in ("href", "aria-labelledby", "clip-path")}
    names = {str(t).removeprefix("url(").rstrip(")").removeprefix("#") for t in targets if "/" not in str(t)}
    assert names <= set(ids)


def test_records_below_the_page_are_linked_and_those_elsewhere_are_named_only(miniature: Path, text: str, tmp_path):
    links = [str(a["href"]) for _, a in Page(text).elements if "/" in str(a.get("href"))]
    assert len(links) == 5 * 4 + 1, "cells and the training"
    assert all((miniature / link).is_file() for link in links)
    elsewhere = page(miniature, folder=tmp_path)
    assert [a["href"] for _, a in Page(elsewhere).elements if "/" in str(a.get("href"))] == []
    assert str(miniature) not in text + elsewhere


def test_the_page_shows_the_numbers_of_the_table(miniature: Path, text: str):
    table = tables.build(load_cells([miniature]), paper.load())
    keys = re.findall(r'data-first="(.*?)" data-second="(.*?)"', text)
    cells = [cell.keys for s in table.sections for row in main_grid(s).rows for cell in row.cells]
    assert len(cells) > 100
    assert keys[: len(cells)] == cells


def test_the_state_says_what_is_run_and_what_is_not(text: str):
    plain = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"models of the paper run\s+0 of 12\b", plain)
    assert re.search(r"methods run in miniature\s+4 of 4\b", plain)
    assert re.search(r"evaluation records\s+20\b", plain)
    found = NOT_RUN.findall(text)
    assert len(found) > 80
    assert all('class="absent"' in cell and "muted" not in cell for cell in found)
    assert plain.index("SYNTHETIC RECORDS: 20 of 20") < plain.index("State of the reproduction")


def test_the_report_shows_every_figure_of_the_gallery(text: str):
    assert re.findall(r'<figure id="f-([^"]+)">', text) == ["miniature_forest", "miniature_lengths"]
    committed = (checkout() / "results" / "report.html").read_text(encoding="utf-8")
    files = {p.stem for p in (checkout() / "results" / "figures").glob("*.svg")}
    assert set(re.findall(r'<figure id="f-([^"]+)">', committed)) == files


def test_each_committed_cell_leads_to_the_run_that_made_it():
    text = (checkout() / "results" / "report.html").read_text(encoding="utf-8")
    listed = dict(re.findall(r'<details class="run" id="([^"]+)">.*?<dt>run</dt><dd>([0-9a-f]{12})', text, re.S))
    cells = re.findall(r'<details class="cell" id="([^"]+)">.*?made by run (.*?)</p>', text, re.S)
    records = (checkout() / "results" / "records").rglob("cells/*.json")
    assert len(cells) == len([p for p in records if not {*APART} & {*p.parts}])  # of the testbed the claims alone
    for _, said in cells:
        link = re.fullmatch(r'<a href="#([^"]+)">([0-9a-f]{12})</a>', said)
        assert link
        assert listed[link[1]] == link[2]


def test_hostile_text_is_text(hostile: Path):
    html = page(hostile, [hostile])
    parsed = Page(html)
    assert _violations(parsed) == []
    counts = Counter(tag for tag, _ in parsed.elements)
    assert (counts["script"], counts["style"], counts["b"]) == (1, 1, 0)
    assert "\u202e" not in html
    assert "\x00" not in html
    shown = "".join(parsed.texts["pre"])
    for response in hostile_run.RESPONSES:
        assert visible(response[:3000]) in shown
    assert "996,000 characters left out" in html
    assert len(html) < 3_000_000


def test_a_page_names_no_folder_of_the_machine(hostile: Path):
    (run,) = runs.load([hostile], Path())
    command = dict(run["properties"])["command"]
    assert command == "stapo-eval run --out RUN/stapo-s0 --data-dir …/data"
    assert runs.without_paths("a/b and http://x/y and '/usr/lib/x y'") == "a/b and http://x/y and '…/x y'"


def test_a_run_shows_its_resumptions_and_its_context_limit(tmp_path: Path):
    path = synthetic.training_run(tmp_path / "train", "stapo") / "run.json"
    went_on = Resumption(at="2026-01-02T03:04:05+00:00", start="step 20", code_commit="c0ffee", code_dirty="d1f")
    limit = ContextLimit(context=4096, asked=3500, problems=2, least=3000, most=3400)
    changes = {"resumptions": [went_on], "context_limit": limit}
    store.write_json(path, store.read_json(path, Run).model_copy(update=changes))
    rows = dict(runs.load([tmp_path], Path())[0]["properties"])
    assert all(x in rows["resumed"] for x in ("2026-01-02T03:04:05+00:00", "step 20", "c0ffee", "d1f"))
    assert all(number in rows["context limit"] for number in ("4,096", "3,500", "3,000 to 3,400", "2 problems"))


def test_what_is_not_there_is_said(tmp_path: Path):
    plain = re.sub(r"<[^>]+>", " ", page(tmp_path))
    assert re.search(r"methods run in miniature\s+0 of 4\b", plain)
    assert "No evaluation record." in plain
    assert "SYNTHETIC" not in plain
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["10"], run_id="0123456789ab")
    assert 'made by run 0123456789ab, <strong class="loud">whose record is not here</strong>' in page(tmp_path)


def test_a_problem_leads_to_its_response(tmp_path: Path):
    run = tmp_path / "run"
    problems = [ProblemResult(problem_id=i, verdicts="10") for i in ("a", "b")]
    path = synthetic.cell(run, "stapo", "mini-add", "t1.0", ["10", "10"], problems=problems)
    cell = store.read_json(path, CellRecord).cell.id
    where = path.parents[1]
    for p in "ab":
        for i in (0, 1):
            index = {"sample_index": i}
            sample, verdict = hostile_run.sample(cell, p, f"text of {p}{i}"), hostile_run.verdict(cell, p, i == 0)
            store.append(where / "samples.jsonl", [sample.model_copy(update=index)])
            store.append(where / "verdicts.jsonl", [verdict.model_copy(update=index)])
    html = page(run, [run])
    target = re.search(r'<pre class="problems".*?<a href="#([^"]+)">b</a>', html, re.S)
    assert target
    block = html[html.index(f'id="{target[1]}"') :]
    assert block.index("text of b0") < block.index("text of a1"), "the first response of b"
    assert "Responses: 4 of 4 shown" in html
