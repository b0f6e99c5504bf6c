"""Three wings on one foundation: who may import whom, read from the source by ast."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WINGS = {"stapo_training": "training", "stapo_eval": "eval", "stapo_repro": "repro"}
FOUNDATION = "stapo_results"
PACKAGES = {**WINGS, FOUNDATION: "results"}
# framework -> the only places (below the root) that may import it
FRAMEWORKS = {
    "verl": ("training/stapo_training/verl_ext",),
    "vllm": ("eval/stapo_eval/engines/vllm.py", "training/stapo_training/verl_ext"),
    "lighteval": ("eval/stapo_eval/interop",),
}
DYNAMIC = {"import_module", "__import__"}


def imported(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, module) of every absolute import, inside functions and under TYPE_CHECKING too, and of
    `import_module("name")` with a literal name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in DYNAMIC and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def violations(root: Path) -> list[str]:
    """Every forbidden import below a checkout, as "file:line: reason"."""
    bad = []
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder / package).rglob("*.py")):
            where = path.relative_to(root).as_posix()
            for line, module in imported(ast.parse(path.read_text(encoding="utf-8"), filename=where)):
                top = module.split(".")[0]
                if top in PACKAGES and top not in (package, FOUNDATION):
                    bad.append(f"{where}:{line}: {package} imports {module}")
                homes = FRAMEWORKS.get(top)
                if homes and not any(where == home or where.startswith(home + "/") for home in homes):
                    bad.append(f"{where}:{line}: {module} is imported outside {' and '.join(homes)}")
    return bad


def test_no_wing_imports_a_wing_and_each_framework_has_one_place():
    assert violations(ROOT) == []


BAD = {
    "training/stapo_training/b.py": (
        "def f():\n    from stapo_eval.grading.rules import grade",
        "b.py:2: stapo_training imports stapo_eval.grading.rules",
    ),
    "results/stapo_results/c.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stapo_repro",
        "c.py:3: stapo_results imports stapo_repro",
    ),
    "eval/stapo_eval/e.py": (
        "from vllm import LLM",
        "e.py:1: vllm is imported outside eval/stapo_eval/engines/vllm.py and training/stapo_training/verl_ext",
    ),
    "repro/stapo_repro/f.py": (
        "import importlib\nimportlib.import_module('stapo_eval.run')",
        "f.py:2: stapo_repro imports stapo_eval.run",
    ),
}
GOOD = {
    "training/stapo_training/verl_ext/worker.py": "import verl.workers\nfrom stapo_results.errors import BadInput",
    "repro/stapo_repro/run/chain.py": "import verlet, vllmish\nCOMMAND = 'stapo_training'",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize("name", BAD)
def test_the_walk_can_fail(tmp_path, name):
    text, message = BAD[name]
    write(tmp_path, {**GOOD, name: text})
    (found,) = violations(tmp_path)
    assert message in found


# no circle of files


def modules(root: Path) -> dict[str, Path]:
    """Every file of the packages by its module's name; a package is its __init__.py, a file of its own."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (root / folder / package).rglob("*.py"):
            parts = path.relative_to(root / folder).with_suffix("").parts
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


def circle(root: Path) -> list[str]:
    """The modules of a circle of imports, the first one last again; empty without one."""
    known = modules(root)
    try:
        TopologicalSorter({name: needed(name, known) for name in known}).prepare()
    except CycleError as e:
        return e.args[1]
    return []


def test_no_file_imports_itself_through_others():
    assert circle(ROOT) == []


LINE = {
    "repro/stapo_repro/__init__.py": "",
    "repro/stapo_repro/a/__init__.py": "from stapo_repro.a.top import build",
    "repro/stapo_repro/a/top.py": "def build():\n    from stapo_repro.a import low",
    "repro/stapo_repro/a/low.py": "import stapo_results.errors",
    "results/stapo_results/errors.py": "",
}
CIRCLES = {
    "in a function": {"repro/stapo_repro/a/low.py": "def f():\n    from stapo_repro.a import top"},
    "by the package's name": {"repro/stapo_repro/a/low.py": "from stapo_repro.a import build"},
    "for types alone": {
        "results/stapo_results/errors.py": "if TYPE_CHECKING:\n    import stapo_results.store",
        "results/stapo_results/store.py": "from stapo_results.errors import BadInput",
    },
}


@pytest.mark.parametrize("name", CIRCLES)
def test_a_circle_is_found(tmp_path, name):
    write(tmp_path, LINE | CIRCLES[name])
    assert len(circle(tmp_path)) > 2
