"""Two Ray nodes on this machine, started by the commands of docs/cluster.md as they are printed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cluster.md"
ASK = """
from stapo_training.run.preflight import machine
print(len(machine.cluster_nodes("{}")), "nodes")
"""
pytestmark = pytest.mark.slow


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

    def run(self, node: str, *commands: str) -> subprocess.CompletedProcess[str]:
        """The commands in one shell, with this machine in the place of the page's nodes and folders."""
        (home := self.folder / node).mkdir(exist_ok=True)
        script = "\n".join(commands).replace("/shared/", f"{self.folder}/").replace("HEAD", "127.0.0.1")
        script = script.replace("6379", str(self.port))
        # SPT_NOENV: Ray's processes rename themselves and would overwrite the environment that `end` reads
        env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        env |= {"HOME": str(home), "STAPO_TEST_RUN": self.mark, "SPT_NOENV": "1", "RAY_TMPDIR": str(self.temp)}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        return subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=300, env=env)

    def end(self) -> None:
        for p in psutil.process_iter():
            try:
                if p.environ().get("STAPO_TEST_RUN") == self.mark:
                    p.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        shutil.rmtree(self.temp, ignore_errors=True)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    found.end()


HEAD, OTHER = printed("ray start --head"), printed("ray start --address")


@pytest.mark.parametrize("mode", ["a shared token", "without"])
def test_the_pages_commands_join_two_nodes(nodes: Nodes, mode: str) -> None:
    setting = "export RAY_AUTH_MODE=disabled"
    assert f"`{setting}`" in PAGE.read_text()
    if mode == "a shared token":
        setting = printed("export RAY_AUTH_MODE=token")
        assert nodes.run("first", printed("(umask 077;")).returncode == 0
        assert (nodes.folder / "ray_token").stat().st_mode & 0o077 == 0
    for node, command in (("first", HEAD), ("second", OTHER)):
        done = nodes.run(node, setting, command)
        assert done.returncode == 0, done.stdout + done.stderr
    deadline = time.monotonic() + 60  # the head hears of a node with some delay
    while "16.0 GPU" not in (status := nodes.run("first", setting, "ray status").stdout):
        assert time.monotonic() < deadline, status
    asked = nodes.run("first", setting, f"{sys.executable} -c '{ASK.format('auto')}'")
    assert "2 nodes" in asked.stdout, asked.stderr


@pytest.mark.parametrize("address", ["auto", "HEAD:6379"])
def test_a_driver_without_the_nodes_token_is_told_so(nodes: Nodes, address: str) -> None:
    token = printed("export RAY_AUTH_MODE=token")
    done = nodes.run("first", printed("(umask 077;"), token, HEAD)
    assert done.returncode == 0, done.stdout + done.stderr
    command = f"{sys.executable} -c '{ASK.format(address)}'"
    asked = nodes.run("second", "export RAY_AUTH_MODE=disabled", command)
    assert asked.returncode != 0
    assert "BadInput: no Ray cluster answers" in asked.stderr
    assert "RAY_AUTH_MODE" in asked.stderr.splitlines()[-1], asked.stderr
