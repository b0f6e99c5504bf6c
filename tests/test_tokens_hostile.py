"""Text of a model in the page, in figures and in tables: it stays text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import token_logs as logs
import tools

if not tools.required():
    pytest.importorskip("matplotlib")
    pytest.importorskip("wordcloud")
from stapo_repro.text import model_text
from stapo_repro.tokens import log as token_log
from stapo_repro.tokens import page

HOSTILE = (
    "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>\\input{/etc/passwd}\\end{longtable}"
    "`code` | cell | $x$ **bold** [link](http://e.x) ![i](http://e.x) <!-- & &amp; \u202eright\u200b\x00\x1b[31m "
    "--'' ~ ^ _"
)
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "em", "dl", "dt", "dd", "div",
    "table", "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption", "pre", "mark", "bdi", "code", "footer",
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
    return page.analyse(token_log.load(logs.write(run, rows)), top=len(rows))[0]


def test_the_page_has_no_element_of_the_model(files: dict[str, bytes]):
    found = Tags()
    html = files["index.html"].decode()
    found.feed(html)
    assert found.tags <= ALLOWED
    assert not {a for a in found.attributes if a.startswith("on") or a == "style"}
    assert html.count("<img") == html.count(' src="data:image/svg+xml;base64,') == len(files) // 2 - 1
    shown = "".join(found.text)
    assert "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>" in shown
    assert "⟨U+202E⟩right⟨U+200B⟩⟨U+0000⟩⟨U+001B⟩[31m" in shown
    assert not set(html) & set("\u202e\u200b\x00\x1b")


def test_figures_are_sound_xml(files: dict[str, bytes]):
    for name, data in files.items():
        if name.endswith(".svg"):
            root = ET.fromstring(data)
            assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "foreignObject"))]


def test_a_models_text_is_no_markup_of_a_table():
    assert model_text("a_b $x$ ~c~ &lt; <b>|\u202e\n") == r"a\_b \$x\$ \~c\~ &amp;lt; &lt;b>\|⟨U+202E⟩ "


def test_tokens_of_white_space_bytes_and_no_vocabulary_are_seen(tmp_path: Path):
    log = token_log.load(logs.write(tmp_path, [logs.row()]))
    byte = logs.tokenizer().token_to_id("<0xE4>")
    assert token_log.marked(log.vocabulary.one(logs.ids("\n\n")[0])) == "⏎⏎"
    assert log.vocabulary.one(byte) == "\ufffd"
    assert log.vocabulary.one(99_999) == "⟨id 99999⟩"
    assert log.vocabulary.one(-1) == "⟨id -1⟩"
    assert log.vocabulary.several([99_999, logs.ids("7")[0]]) == "⟨id 99999⟩7"
    assert log.vocabulary.several(logs.ids("中")) == "中"
    assert token_log.marked("") == "(empty)"
    assert token_log.marked("a\u00a0b\u3000\tc ") == "a⟨U+00A0⟩b⟨U+3000⟩⇥c␣"
