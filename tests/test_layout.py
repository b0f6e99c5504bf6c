"""No file imports itself through others, none of the clone takes a library's place.

Who may import whom is `lint-imports`'s (pyproject.toml).
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"stapo_results": "results", "stapo_training": "training", "stapo_eval": "eval", "stapo_repro": "repro"}
PACKAGES |= {"studies": "."}


def modules() -> dict[str, Path]:
    """Every file of the packages by its module's name; a package is its __init__.py, a file of its own."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def needed(name: str, known: dict[str, Path]) -> set[str]:
    """The files whose names a file imports, in functions too. `from package import module` needs the module alone."""
    found = set()
    for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") + ([""] if known[name].name == "__init__.py" else [])
            base = ".".join([*parts[: -node.level], *filter(None, [node.module])]) if node.level else node.module or ""
            found |= {inner if (inner := f"{base}.{alias.name}") in known else base for alias in node.names}
    return found & known.keys() - {name}


def test_no_file_imports_itself_through_others():
    known = modules()
    TopologicalSorter({name: needed(name, known) for name in known}).prepare()  # CycleError names the files


def test_a_file_of_the_clone_takes_no_librarys_place(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "__init__.py", tmp_path / "studies")
    (tmp_path / "studies" / "__main__.py").write_text("import colorsys")
    (tmp_path / "colorsys.py").write_text("raise SystemExit(3)")
    assert subprocess.run([sys.executable, "-m", "studies"], cwd=tmp_path, check=False).returncode == 0
