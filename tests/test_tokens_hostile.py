"""A model's text in the page of a token log stays text."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
import token_logs as logs

pytest.importorskip("matplotlib")
pytest.importorskip("wordcloud")
from stapo_repro.token_page import analyse
from stapo_repro.tokens import log

HOSTILE = "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>"
UNSEEN = "\u202eright\u200b\x00\x1b[31m"


def test_the_page_has_no_element_of_the_model(tmp_path: Path):
    around = logs.ids(f"{HOSTILE} `code` | $x$ <!-- & &amp; {UNSEEN}")
    rows = [logs.row(token=t, position=i, prompt_id=HOSTILE, before=around, after=around, top_tokens=around[i : i + 5])
            for i, t in enumerate(sorted(set(around)))]  # fmt: skip
    files, _ = analyse(log.load(logs.write(tmp_path / "run", rows)), top=len(rows))
    html = files["index.html"].decode()
    assert not re.search(r"<(script|base|iframe|[^>]*\son\w+=|[^>]*\sstyle=|img src=(?!\"data:image/svg))", html)
    assert HOSTILE in unescape(html)
    assert "⟨U+202E⟩right⟨U+200B⟩⟨U+0000⟩⟨U+001B⟩[31m" in html
    assert not set(html) & set("\u202e\u200b\x00\x1b")


def test_tokens_of_white_space_bytes_and_no_vocabulary_are_seen(tmp_path: Path):
    words = log.load(logs.write(tmp_path, [logs.row()])).vocabulary
    assert words.one(logs.tokenizer().token_to_id("<0xE4>")) == "\ufffd"
    assert (words.one(99_999), words.one(-1)) == ("⟨id 99999⟩", "⟨id -1⟩")
    assert (words.several([99_999, *logs.ids("7")]), words.several(logs.ids("中"))) == ("⟨id 99999⟩7", "中")
    assert log.marked("") == "(empty)"
    assert log.marked("a\u00a0b\u3000\tc \n") == "a⟨U+00A0⟩b⟨U+3000⟩⇥c␣⏎"
