"""Text of a model in the page, in Markdown, in LaTeX, in a spreadsheet: it stays text."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import token_logs as logs
import tools
from hypothesis import given
from hypothesis import strategies as st

if not tools.required():
    pytest.importorskip("matplotlib")
    pytest.importorskip("wordcloud")
from stapo_repro.templating import visible
from stapo_repro.tokens import build, labelling, material, tables, texts

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
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[material.Material, dict[str, bytes]]:
    run = tmp_path_factory.mktemp("hostile") / "run"
    around = logs.ids(HOSTILE)
    rows = []
    for i, t in enumerate(sorted(set(around))):
        text = {"prompt_id": HOSTILE, "before": around, "after": around, "top_tokens": around[i : i + 5]}
        rows.append(logs.row(token=t, position=i, entropy=0.1 if i % 2 else 0.9, silenced=bool(i % 2), **text))
    log = material.load(logs.write(run, rows))
    return log, build.build(log, top=len(rows)).files


def test_the_page_has_no_element_of_the_model(made: tuple[material.Material, dict[str, bytes]]):
    page = Tags()
    html = made[1]["index.html"].decode()
    page.feed(html)
    assert page.tags <= {t.lower() for t in ALLOWED}
    assert not {a for a in page.attributes if a.startswith("on") or a in ("src", "style")}
    shown = "".join(page.text)
    assert "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>" in shown
    assert "⟨U+202E⟩right⟨U+200B⟩⟨U+0000⟩⟨U+001B⟩[31m" in shown
    assert not set(html) & set("\u202e\u200b\x00\x1b")


def test_figures_are_sound_xml(made: tuple[material.Material, dict[str, bytes]]):
    for name, data in made[1].items():
        if name.endswith(".svg"):
            root = ET.fromstring(data)
            assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "foreignObject"))]


def test_markdown_keeps_its_cells(made: tuple[material.Material, dict[str, bytes]]):
    text = made[1]["cases.md"].decode()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {6}
    bare = re.sub(r"\\.", "", text)
    assert not re.search(r"[<`\[\]$~&]", bare)
    assert bare.count("**") == text.count("**⟦") + text.count("⟧**")
    assert not re.search(r"(?<!\\)://", text)
    assert not set(text) & set("\u202e\u200b\x00\x1b")  # also in the prompts' names


def test_markdown_escapes_what_means_something():
    assert tables.md("a*b_c|d`e<f>\n[g](h) $i$ www.x.y: j:k @l #m ~n \\o &p;") == (
        r"a\*b\_c\|d\`e\<f\> \[g\](h) \$i\$ www\.x.y: j\:k \@l \#m \~n \\o \&p;"
    )


def test_latex_has_no_command_of_the_model(made: tuple[material.Material, dict[str, bytes]]):
    text = made[1]["cases.tex"].decode()
    assert r"\textbackslash{}input\{/etc/passwd\}" in text.replace(r"\allowbreak{}", "")
    assert r"\input" not in text.replace(r"\textbackslash{}input", "")
    known = {
        "small", "sloppy", "begin", "end", "linewidth", "caption", "toprule", "endhead", "bottomrule", "endlastfoot",
        "textbf", "fbox", "scriptsize", "midrule", "textbackslash", "textasciitilde", "textasciicircum", "char",
        "textvisiblespace", "hookleftarrow", "mapsto", "langle", "rangle", "geq", "tau", "uparrow", "downarrow", "cdot",
        "to", "allowbreak",
    }  # fmt: skip
    assert set(re.findall(r"\\([A-Za-z]+)", text)) <= known
    assert text.isascii()
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == 1


@given(st.text())
def test_any_text_is_text(text: str):
    """Every brace that LaTeX sees is one of a pair of ours, and no line's end or bar leaves Markdown's cell."""
    tex = tables.latex(texts.marked(text))
    assert tex.isascii()
    bare = re.sub(r"\\[\\{}$&#%_]|\$\^2\$", "", tex)
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"[%&#_~^]", bare)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<>`\[\]$*_]", tables.md(text))
    assert "\n" not in tables.md(text)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx"])
def test_no_cell_is_a_formula(text: str):
    assert labelling.harmless(text) == f"'{text}"
    (_, line) = csv.reader(io.StringIO(tables.to_csv([{"a": text, "n": -1}]), newline=""))
    assert line == [visible(text) if text == "\rx" else f"'{text}", "-1"]


def test_the_sample_has_no_formula(made: tuple[material.Material, dict[str, bytes]]):
    data = labelling.export(made[0], 1000, 0).decode("utf-8-sig")
    cells = [cell for line in csv.reader(io.StringIO(data, newline="")) for cell in line]
    assert len(cells) > 100
    assert not [c for c in cells if c.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_tokens_of_white_space_bytes_and_no_vocabulary_are_seen(tmp_path: Path):
    log = material.load(logs.write(tmp_path, [logs.row()]))
    byte = logs.tokenizer().token_to_id("<0xE4>")
    assert texts.marked(log.texts.one(logs.ids("\n\n")[0])) == "⏎⏎"
    assert log.texts.one(byte) == "\ufffd"
    assert log.texts.one(99_999) == "⟨id 99999⟩"
    assert log.texts.one(-1) == "⟨id -1⟩"
    assert log.texts.run([99_999, logs.ids("7")[0]]) == "⟨id 99999⟩7"
    assert log.texts.run(logs.ids("中")) == "中"
    assert texts.marked("") == "(empty)"
    assert texts.marked("a\u00a0b\u3000\tc ") == "a⟨U+00A0⟩b⟨U+3000⟩⇥c␣"


def compiled(folder: Path) -> str:
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "tokens_document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    log = (folder / "tokens_document.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    return log.replace("\n", "")  # TeX breaks its lines anywhere


@tools.needs("pdflatex")
def test_a_real_tex_reads_it_as_text(made: tuple[material.Material, dict[str, bytes]], tmp_path: Path):
    for name, data in made[1].items():
        if name.endswith(".tex"):
            (tmp_path / name).write_bytes(data)
    log = compiled(tmp_path)
    assert "(/etc/passwd" not in log, "TeX writes a bracket and the name of each file that it opens"
    assert max((float(x) for x in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)), default=0.0) < 1
