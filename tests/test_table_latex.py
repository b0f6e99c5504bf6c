"""The table's LaTeX is compiled by a real TeX, without errors and without lines that are too wide."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import hostile_run
import synthetic_records as synthetic
import tools

from stapo_repro.pages import outputs
from stapo_repro.paper import checkout

pytestmark = tools.needs("pdflatex")
TOO_WIDE = 1.0  # points: less is not seen


def compile_document(folder: Path) -> str:
    """pdflatex's log of main_table_document.tex, which stops at the first error."""
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "main_table_document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    log = (folder / "main_table_document.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    return log.replace("\n", "")  # TeX breaks its lines anywhere


def widest(log: str) -> float:
    return max((float(x) for x in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)), default=0.0)


def test_the_committed_table_compiles(tmp_path: Path):
    for name in ("main_table.tex", "main_table_document.tex"):
        shutil.copy(checkout() / "results" / "tables" / name, tmp_path)
    log = compile_document(tmp_path)
    assert widest(log) < TOO_WIDE
    pages = re.search(r"Output written on main_table_document\.pdf \((\d+) pages?", log)
    assert pages
    assert int(pages[1]) >= 3


def test_names_that_are_commands_compile_as_text(tmp_path: Path):
    name = r"\input{/etc/passwd}%$&_^~#{}\end{table}" + hostile_run.PROBLEM
    for method in ("base", name):
        synthetic.cell(tmp_path / "in", method, "mini-add", "t1.0", ["10", "11"], folder="x")
    files: dict[Path, bytes] = {}
    outputs.main_tables(files, [tmp_path / "in"], tmp_path / "out")
    (tmp_path / "out").mkdir()
    for path, data in files.items():
        path.write_bytes(data)
    log = compile_document(tmp_path / "out")
    assert "(/etc/passwd" not in log, "TeX writes a bracket and the name of each file that it opens"
    assert "(./main_table.tex" in log
