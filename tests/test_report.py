"""The report, read back by a parser of HTML: links, numbers, what is missing, and hostile text."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import synthetic_records as synthetic

from stapo_repro import paper, report
from stapo_repro.read import APART, load_cells
from stapo_repro.table.build import build
from stapo_repro.table.write import all_grids
from stapo_repro.text import spans, visible
from stapo_results import store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, ProblemResult, Run, Sample, Verdict

HIT = "document.title='HIT'"
RESPONSES = {  # by problem; those of even ones are right
    f'"><img src=x onerror="{HIT}">\u202e': f"</pre></details></main></html><script>{HIT}</script>",
    "p1": f'<img src=x onerror="{HIT}" id=hit> </style><style>*{{display:none}}</style>',
    "p2": "\n<base href=//evil.example><meta http-equiv=refresh content=0>",
    "p3": f"[a](javascript:{HIT}) <!-- &lt;&#0; ]]> <![CDATA[ {{{{ 7 * 7 }}}}{{% include '/etc/passwd' %}}",
    "p4": "a\u202etxt.exe\u202c zero\u200bwidth \x00 nul \x1b[31mred \x85 next \u2028 line \r alone",
    "p5": "",
}


class Page(HTMLParser):
    """A page's elements with their attributes, and the texts of each kind of element."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.links = [str(v) for _, a in self.elements for name, v in a.items() if name in ("href", "src")]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in {*self._open}:
            self.texts[tag][-1] += data


def check_links(page: Page, folder: Path) -> None:
    """Every link is a name in the page or a file; none is an address of a network."""
    ids = Counter(str(a["id"]) for _, a in page.elements if "id" in a)
    assert set(ids.values()) == {1}
    for link in page.links:
        assert not re.match(r"[A-Za-z]+:|//", link)
        name, _, place = link.partition("#")
        assert (folder / unquote(name)).is_file() if name else place in ids, link


def test_the_page_of_findings_may_hold_no_html(tmp_path):
    page = tmp_path / "findings.md"
    page.write_text(f"# Findings\n\n## A\n\n<script>{HIT}</script>\n\n| a |\n|---|\n| <b onclick={HIT}> |\n")
    assert {tag for tag, _ in Page(report._findings(page, page)).elements}.isdisjoint({"script", "b"})


def hostile_run(folder: Path) -> Path:
    run, letters = folder / "run", ["10"[i % 2] for i in range(len(RESPONSES))]
    problems = [ProblemResult(problem_id=p, verdicts=v) for p, v in zip(RESPONSES, letters, strict=True)]
    path = synthetic.cell(run, "stapo", "mini-add", "t1.0", letters, problems=problems, engine=f"<b onclick={HIT}>")
    where, cell = path.parents[1], store.read_json(path, CellRecord).cell.id
    made = {"seed": 1, "finish_reason": "stop", "prompt_tokens": 1, "response_tokens": 2, "logprob_sum": None}
    graded = {"extracted": f"<b>{HIT}\u202e", "reason": "match", "preset": "ours", "grader_version": "g"}
    judged = {"judge": "not_asked", "judge_model": "", "judge_revision": ""}
    for (p, response), v in zip(RESPONSES.items(), letters, strict=True):
        key = {"cell": cell, "problem_id": p, "sample_index": 0}
        store.append(where / "samples.jsonl", [Sample(**key, **made, response=response, engine="x")])
        store.append(where / "verdicts.jsonl", [Verdict(**key, **graded, **judged, rule=v == "1", correct=v == "1")])
    other = store.read_json(synthetic.training_run(folder / "other", "stapo") / "run.json", Run)
    command = ["stapo-eval", "run", "--out", str(where), "--data-dir", "/home/somebody/secret/data"]
    changes = {"kind": "eval", "command": command, "packages": {"x": f"<script>{HIT}</script>"}}
    store.write_json(where / "run.json", other.model_copy(update=changes))
    return run


def test_hostile_text_is_text(tmp_path: Path):
    assert visible("a\tb\r\né א 👩‍🚀") == "a\tb\né א 👩‍🚀"
    assert visible("x\u202ey\x00\x1b[0m\r\ud800") == "x⟨U+202E⟩y⟨U+0000⟩⟨U+001B⟩[0m⟨U+000D⟩⟨U+D800⟩"
    run = hostile_run(tmp_path)
    text = report.write([], [run]).read_bytes().decode()
    page = Page(text)
    tags = Counter(tag for tag, _ in page.elements)
    assert {"script", "img", "base", "b"}.isdisjoint(tags)
    assert (tags["style"], tags["meta"], tags["html"], tags["pre"]) == (2, 3, 1, 1 + len(RESPONSES))
    assert not [name for _, a in page.elements for name in a if name.startswith("on")]
    assert {a["style"] for _, a in page.elements if "style" in a} == {"text-align:center"}
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file:;" in text
    # the parser keeps the line end after <pre>, which a browser drops
    assert [t.removeprefix("\n") for t in page.texts["pre"][1:]] == [visible(r) for r in RESPONSES.values()]
    assert not set(text) & set("\u202e\u200b\x00\x1b\x85\u2028\r")
    check_links(page, run)
    assert str(tmp_path) not in text


def test_shown_are_the_first_samples_of_all_problems_and_cells_take_turns(tmp_path: Path):
    paths = [synthetic.cell(tmp_path, m, "mini-add", "t1.0", ["1-0", "001", "110"]) for m in ("stapo", "grpo")]
    one, other = (store.read_json(p, CellRecord) for p in paths)
    first = [("q0", 0, "1"), ("q1", 0, "0"), ("q2", 0, "1"), ("q1", 1, "0"), ("q2", 1, "1"), ("q0", 2, "0")]
    assert [(k[1], k[2], v) for k, v in report.choose([one], 6).items()] == first
    assert [k[0][:4] for k in report.choose([one, other], 5)] == ["stap", "grpo", "stap", "grpo", "stap"]
    assert len(report.choose([one, other], 99)) == 16


def test_a_run_that_disagrees_with_its_record_is_refused(tmp_path: Path):
    run = hostile_run(tmp_path)
    path = next(run.rglob("verdicts.jsonl"))
    lines = [v.model_copy(update={"correct": v.correct != (v.problem_id == "p3")}) for v in store.read(path, Verdict)]
    path.write_text("".join(store.to_line(v) + "\n" for v in lines))
    with pytest.raises(RecordError, match=r"verdicts\.jsonl.* p3, sample 0"):
        report.write([], [run])
    with pytest.raises(BadInput):
        report.write([], [run], most=-1)


def test_the_committed_records_give_the_numbers_of_the_table_and_links_that_lead_somewhere(tmp_path: Path):
    results = paper.checkout() / "results"
    page = Page(report.write([], [], tmp_path / "report.html").read_text(encoding="utf-8"))
    check_links(page, tmp_path)
    pictures = [Path(str(a["src"])).name for tag, a in page.elements if tag == "img"]
    assert pictures == sorted(p.name for p in (results / "figures").iterdir() if p.suffix in (".png", ".svg"))
    table = build(load_cells([results / "records"], APART), paper.load())
    cells = ["".join(t for t, _ in spans(c)) for g in all_grids(table) for row in g.rows for c in row]
    assert len(cells) > 200
    assert page.texts["td"][-len(cells) :] == cells
    assert page.texts["a"].count("run") == len(table.records), "each cell's run is here"


def test_what_is_wrong_is_said(tmp_path: Path):
    for method, verdicts in (("grpo", ["11", "10"]), ("stapo", ["1-", "10"])):
        synthetic.cell(tmp_path, method, "mini-add", "t1.0", verdicts, run_id=f"run of {method}")
    synthetic.training_run(tmp_path / "train", "stapo", status="failed")
    page = Page(report.write([tmp_path], []).read_text())
    faults = [t for (tag, a), t in zip([e for e in page.elements if e[0] == "li"], page.texts["li"], strict=True) if a]
    assert [re.findall(r"1 of 4|run of \w+|failed", t) for t in faults] == [
        ["run of grpo"], ["1 of 4"], ["run of stapo"], ["failed"]
    ]  # fmt: skip
    assert page.texts["p"][0].startswith("SYNTHETIC")
