"""Two Ray nodes on this machine, started by the commands of docs/cluster.md as they are printed."""

from __future__ import annotations

import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import PAGE, Nodes, printed

ASK = """
from stapo_training.start import machine
print(len(machine.cluster_nodes("{}")), "nodes")
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    found.end()


HEAD, OTHER = printed("ray start --head --port=6379 --num-gpus"), printed("ray start --address=HEAD:6379 --num-gpus")


@pytest.mark.parametrize("mode", ["a shared token", "without"])
def test_the_pages_commands_join_two_nodes(nodes: Nodes, mode: str) -> None:
    setting = "export RAY_AUTH_MODE=disabled"
    assert f"`{setting.removeprefix('export ')}`" in PAGE.read_text()
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


def test_a_node_with_other_code_is_refused(nodes: Nodes) -> None:
    setting = "export RAY_AUTH_MODE=disabled"
    no_checkout = "export GIT_DIR=/nowhere"
    for node, *commands in (("first", setting, HEAD), ("second", setting, no_checkout, OTHER)):
        assert nodes.run(node, *commands).returncode == 0
    asked = nodes.run("first", setting, f"{sys.executable} -c '{ASK.format('auto')}'")
    assert "has other code than this command" in asked.stderr.splitlines()[-4], asked.stderr
    assert "'suite': 'no checkout'" in asked.stderr


OTHER_ENVIRONMENT = """
import sys, ray
from stapo_eval.engines.ray import _connect
_connect("auto")
print(ray.get(ray.remote(lambda: sys.executable).remote()))
"""


def test_replicas_run_the_commands_own_python_and_not_that_of_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    other = tmp_path / "eval"
    venv.create(other)
    borrowed = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    (Path(sysconfig.get_path("purelib", vars={"base": str(other)})) / "borrowed.pth").write_text(borrowed)
    disabled = "export RAY_AUTH_MODE=disabled"
    assert nodes.run("first", disabled, HEAD).returncode == 0
    asked = nodes.run("first", disabled, f"{other}/bin/python -I -c '{OTHER_ENVIRONMENT}'")
    assert asked.stdout.split() == [f"{other}/bin/python"], asked.stderr


WAIT = """
import sys, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from stapo_results.terminal import run_main
from stapo_training.verl_ext import waiting
def wait():
    ray.init(address="auto", log_to_driver=False)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    never = ray.remote(lambda s: time.sleep(s)).options(num_cpus=0, scheduling_strategy=here).remote(300)
    with waiting.watched("THE COMMAND"):
        print("waiting", flush=True)
        ray.get(never)
sys.exit(run_main(wait))
"""


def test_a_driver_that_waits_for_nothing_hears_of_a_nodes_death(nodes: Nodes) -> None:
    """As veRL's waits for a queue that the dead node would have filled: in a call of Ray's, on a node that lives."""
    setting = "export RAY_AUTH_MODE=disabled"
    for node, command in (("first", HEAD), ("second", OTHER)):
        assert nodes.run(node, setting, command).returncode == 0
    process = nodes.start("first", setting, f"{sys.executable} -c '{WAIT}'")
    deadline = time.monotonic() + 60
    while "waiting" not in nodes.said():
        assert time.monotonic() < deadline, nodes.said()
        time.sleep(0.1)
    nodes.raylet(head=False).kill()
    assert process.wait(timeout=60) == 1
    assert "error: a node of the cluster was lost" in nodes.said()
    assert nodes.said().strip().endswith("go on from the last checkpoint: THE COMMAND")
