""".ci/report-tools on machines that lack what it installs: each is a folder of commands, all that PATH has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stapo_repro.paper import checkout

TOOLS = ("chromium", "chromedriver", "pdflatex", "kpsewhich")


def machine(folder: Path, commands: dict[str, str]) -> Path:
    """A folder with bash and the given commands as scripts."""
    folder.mkdir()
    (folder / "bash").symlink_to(str(shutil.which("bash")))
    for name, body in commands.items():
        (folder / name).write_text(f"#!{folder}/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def install(path: Path) -> subprocess.CompletedProcess[str]:
    script = str(checkout() / ".ci" / "report-tools")
    return subprocess.run([str(path / "bash"), script], env={"PATH": str(path)}, capture_output=True, text=True)


def test_without_apt_it_says_what_to_install(tmp_path: Path):
    done = install(machine(tmp_path / "bin", {"chromium": "exit 0", "pdflatex": "exit 0", "kpsewhich": "exit 1"}))
    assert done.returncode == 2
    assert "found:    no chromium-driver texlive-latex-recommended\n" in done.stderr
    assert "next:     install them with this system's package manager" in done.stderr


@pytest.mark.parametrize("user", ["root", "sudo"])
def test_it_installs_what_is_missing_and_nothing_else(tmp_path: Path, user: str):
    log = tmp_path / "log"
    commands = {
        **dict.fromkeys(TOOLS[:2], "exit 0"),
        "apt-get": f'echo "$@" >> {log}',
        "id": f"echo {0 if user == 'root' else 1000}",
        "sudo": '[ "$1" = -n ] || exit 1; shift; "$@"',
        "true": "exit 0",
    }
    done = install(machine(tmp_path / "bin", commands))
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == [
        "update --quiet --quiet",
        "install --yes --no-install-recommends texlive-latex-base texlive-latex-recommended",
    ]
