"""Text of a model in the page, in figures and in the README: it stays text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import token_logs as logs
import tools

if not tools.required():
    pytest.importorskip("matplotlib")
    pytest.importorskip("wordcloud")
from stapo_repro.tokens import example, logged_run, page

HOSTILE = (
    "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>\\input{/etc/passwd}\\end{longtable}"
    "`code` | cell | $x$ **bold** [link](http://e.x) ![i](http://e.x) <!-- & &amp; \u202eright\u200b\x00\x1b[31m "
    "--'' ~ ^ _"
)
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "div", "h1", "h2", "h3", "p", "nav", "ul", "li",
    "main", "section", "dl", "dt", "dd", "figure", "figcaption", "svg", "g", "defs", "path", "use", "clipPath", "rect",
    "table", "caption", "span", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre", "mark", "code", "bdi",
    "footer", "em",
}  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run = tmp_path_factory.mktemp("hostile") / "run"
    around = logs.ids(HOSTILE)
    rows = []
    for i, t in enumerate(sorted(set(around))):
        text = {"prompt_id": HOSTILE, "before": around, "after": around, "top_tokens": around[i : i + 5]}
        rows.append(logs.row(token=t, position=i, entropy=0.1 if i % 2 else 0.9, silenced=bool(i % 2), **text))
    log = logged_run.load(logs.write(run, rows))
    return page.analyse(log, top=len(rows))[0]


def test_the_page_has_no_element_of_the_model(files: dict[str, bytes]):
    found = Tags()
    html = files["index.html"].decode()
    found.feed(html)
    assert found.tags <= {t.lower() for t in ALLOWED}
    assert not {a for a in found.attributes if a.startswith("on") or a in ("src", "style")}
    shown = "".join(found.text)
    assert "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>" in shown
    assert "⟨U+202E⟩right⟨U+200B⟩⟨U+0000⟩⟨U+001B⟩[31m" in shown
    assert not set(html) & set("\u202e\u200b\x00\x1b")


def test_figures_are_sound_xml(files: dict[str, bytes]):
    for name, data in files.items():
        if name.endswith(".svg"):
            root = ET.fromstring(data)
            assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "foreignObject"))]


def test_the_example_stays_on_its_line(tmp_path: Path):
    before = logs.ids("The answer is 3}. <b>`\n2 <!-- `")
    hmm = {"token": logs.ids(" hmm")[0], "before": before, "after": logs.ids("=3 <!-- x -->`")}
    block = example.example_block(logs.write(tmp_path / example.FOLDER, [logs.row(**hmm)]).parents[2])
    assert len(block.splitlines()) <= 5
    assert re.findall("`([^`]*)`", block)[:2] == ["The answer is 3}. <b> 2 <!--", "=3 <!-- x -->"]


def test_tokens_of_white_space_bytes_and_no_vocabulary_are_seen(tmp_path: Path):
    log = logged_run.load(logs.write(tmp_path, [logs.row()]))
    byte = logs.tokenizer().token_to_id("<0xE4>")
    assert logged_run.marked(log.vocabulary.one(logs.ids("\n\n")[0])) == "⏎⏎"
    assert log.vocabulary.one(byte) == "\ufffd"
    assert log.vocabulary.one(99_999) == "⟨id 99999⟩"
    assert log.vocabulary.one(-1) == "⟨id -1⟩"
    assert log.vocabulary.several([99_999, logs.ids("7")[0]]) == "⟨id 99999⟩7"
    assert log.vocabulary.several(logs.ids("中")) == "中"
    assert logged_run.marked("") == "(empty)"
    assert logged_run.marked("a\u00a0b\u3000\tc ") == "a⟨U+00A0⟩b⟨U+3000⟩⇥c␣"
