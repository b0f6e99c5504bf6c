"""Tools that tests need beside Python have to be there where tox installs them."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import tools

ROOT = Path(__file__).resolve().parents[1]
NAME = Path(__file__).name


def test_tox_requires_the_tools_for_every_file_that_needs_one() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    report = tox["testenv:report"]
    assert f"{tools.VARIABLE} = 1" in report["set_env"]
    use = re.compile(r"^(@|pytestmark = )tools\.needs\(|tools\.required\(\)", re.M)
    needing = {p.name for p in (ROOT / "tests").glob("test_*.py") if use.search(p.read_text()) and p.name != NAME}
    assert needing >= {"test_report_browser.py", "test_table_latex.py", "test_table_forms.py", "test_tokens_hostile.py"}
    assert [name for name in sorted(needing) if f"tests/{name}" not in report["commands"]] == []
