"""Ray nodes of one machine, started by the commands of docs/cluster.md as they are printed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cluster.md"


def printed(start: str) -> str:
    """The page's one command that begins so."""
    (command,) = re.findall(rf"^    ({re.escape(start)}.*)$", PAGE.read_text(), re.MULTILINE)
    return command


class Nodes:
    """Shells of nodes: each with a home of its own, so that none finds another's token by itself."""

    def __init__(self, folder: Path):
        self.folder, self.mark = folder, str(folder)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        # where all nodes look for the cluster that "auto" means; short, since the names of Ray's sockets have a limit
        self.temp = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))

    def _shell(self, node: str, commands: tuple[str, ...]) -> dict[str, Any]:
        """What starts a shell with this machine in the place of the page's nodes and folders."""
        (home := self.folder / node).mkdir(exist_ok=True)
        script = "\n".join(commands).replace("/shared/", f"{self.folder}/").replace("HEAD", "127.0.0.1")
        script = script.replace("6379", str(self.port))
        # SPT_NOENV: Ray's processes rename themselves and would overwrite the environment that `end` reads
        env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        env |= {"HOME": str(home), "STAPO_TEST_RUN": self.mark, "SPT_NOENV": "1", "RAY_TMPDIR": str(self.temp)}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        return {"args": ["bash", "-e", "-c", script], "text": True, "env": env}

    def run(self, node: str, *commands: str) -> subprocess.CompletedProcess[str]:
        """The commands in one shell, to their end."""
        return subprocess.run(**self._shell(node, commands), capture_output=True, timeout=600)

    def start(self, node: str, *commands: str) -> subprocess.Popen[str]:
        """The commands in one shell; what they say is in `said`."""
        with open(self.folder / "log.txt", "w") as log:
            return subprocess.Popen(**self._shell(node, commands), stdout=log, stderr=subprocess.STDOUT)

    def raylet(self, *, head: bool) -> psutil.Process:
        """The process that is the first node, or another one."""
        for p in psutil.process_iter(["name", "cmdline"]):
            words = p.info["cmdline"] or []
            here = any(w.startswith("--gcs-address=") and w.endswith(f":{self.port}") for w in words)
            if p.info["name"] == "raylet" and here and ("--head" in words) == head:
                return p
        raise AssertionError("there is no such node")

    def said(self) -> str:
        return (self.folder / "log.txt").read_text()

    def end(self) -> None:
        for p in psutil.process_iter():
            try:
                if p.environ().get("STAPO_TEST_RUN") == self.mark:
                    p.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        shutil.rmtree(self.temp, ignore_errors=True)
