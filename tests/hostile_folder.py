"""A folder with a module of every name that Python may look for; each leaves its name in a file when it runs."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path


def build(folder: Path) -> Path:
    folder.mkdir()
    names = sys.stdlib_module_names | {m.name for m in pkgutil.iter_modules()}
    for name in sorted({*names, "sitecustomize", "usercustomize"}):
        (folder / f"{name}.py").write_text(f"open({str(_log(folder))!r}, 'a').write({name!r} + '\\n')\n")
    return folder


def run(folder: Path, command: str, *words: object, **environment: str) -> None:
    """A program of this environment in this folder: it ends well, and none of the folder's modules has run."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | environment
    argv = [str(Path(sys.executable).with_name(command)), *map(str, words)]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    ran = _log(folder).read_text().split() if _log(folder).exists() else []
    assert (done.returncode, ran) == (0, []), done.stderr[-2000:]


def _log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.ran")
