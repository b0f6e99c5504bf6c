"""What the tests of the driver share."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from stapo_repro.run import chain, processes, request
from stapo_repro.run.cells import CellRequest


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def nobody_left(out: Path) -> bool:
    return not processes.marked(processes.mark_of(out))


def asked(*names: str, out: Path = Path("o"), **changed) -> CellRequest:
    """A request for these cells."""
    return request.run(names, out=out, **changed)


def commands(r: CellRequest) -> dict[str, str]:
    """Each stage's command, as a person in this folder would type it."""
    typed = ((s.name, [Path(s.command[0]).name, *s.command[1:]]) for s in chain.make_stages(r))
    return {name: " ".join(words).replace(f"{Path.cwd()}/", "") for name, words in typed}


def nvidia_smi(folder: Path, script: str) -> str:
    """A PATH whose nvidia-smi is this shell script."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def environment(folder: Path, packages: dict[str, str]) -> Path:
    """A venv's folder with our commands and the metadata of packages: what is asked of it, and no more."""
    python = Path(sys.executable).resolve()
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    for name, version in packages.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for name in ("stapo-train", "stapo-eval"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    return folder
