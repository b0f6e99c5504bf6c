"""The path of 64 GPUs without one: docs/cluster.md's two nodes, their training, evaluation and cell, a node that dies.

`tox -e cluster` runs it.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import Nodes, printed
from training_runs import complete, same_log, weights

from stapo_results import store
from stapo_results.schema import Run

pytestmark = pytest.mark.slow

TOKEN = printed("export RAY_AUTH_MODE=token")
HEAD = printed("ray start --head --port=6379 --num-cpus")
OTHER = printed("ray start --address=HEAD:6379 --num-cpus")
SIZES = (" run.steps=3 trainer.save_freq=1 trainer.test_freq=3 data.train_batch_size=8 data.train_max_samples=16"
         " actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=4"
         " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"
         " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8")  # fmt: skip
TRAIN = printed("stapo-train run method=stapo size=mini hardware=cpu-2nodes") + SIZES
LIMIT = 120
"""Seconds from a node's death to the end of the command that used it."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, skilled_base: Path) -> Iterator[Nodes]:
    """Two nodes with one token, and the page's base model where all see it."""
    found = Nodes(tmp_path_factory.mktemp("shared"))
    shutil.copytree(skilled_base, found.folder / "base")
    try:
        ok(found.run("first", printed("(umask 077;"), TOKEN, HEAD))
        ok(found.run("second", TOKEN, OTHER))
        yield found
    finally:
        found.end()


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def one_node(nodes: Nodes) -> Path:
    """The same two ranks on one node, in a Ray of their own although a cluster runs beside it."""
    out = nodes.folder / "runs" / "one-node"
    ok(nodes.run("first", f"stapo-train run method=stapo size=mini hardware=cpu cpu.ranks=2 cpu.train_threads=1"
                          f" run.base=/shared/base run.out={out}{SIZES}"))  # fmt: skip
    return out


def test_a_node_that_dies_ends_the_training_and_a_new_one_finishes_it(nodes: Nodes, one_node: Path) -> None:
    out = nodes.folder / "runs" / "stapo"
    command = TRAIN + " cpu.train_threads=1"
    process = nodes.start("first", TOKEN, command)
    deadline = time.monotonic() + 400
    while not complete(out, 1).exists():
        assert process.poll() is None, nodes.said()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    nodes.raylet(head=False).kill()
    began = time.monotonic()
    assert process.wait(timeout=LIMIT) == 1, nodes.said()
    print(f"the node's death ended the training after {time.monotonic() - began:.0f} s")
    said = nodes.said()
    assert "error: a node of the cluster was lost" in said, said[-6000:]
    assert "go on from the last checkpoint: stapo-train run" in said
    assert store.read_json(out / "run.json", Run).status == "failed"
    refused = nodes.run("first", TOKEN, command)  # before the node is there again
    assert refused.returncode == 2
    assert "expected: 2 node(s)" in refused.stderr
    ok(nodes.run("second", TOKEN, OTHER))
    ok(nodes.run("first", TOKEN, command))
    run = store.read_json(out / "run.json", Run)
    assert (run.status, len(run.resumptions)) == ("done", 1)
    same_log(out, one_node)
    assert weights(out, nodes.folder / "two") == weights(one_node, nodes.folder / "one")


def test_replicas_on_both_nodes_give_what_one_process_gives(nodes: Nodes) -> None:
    """Each node has one slot, so two replicas are on two nodes."""
    command, out = printed("stapo-eval run --model /shared/base/model"), nodes.folder / "runs" / "eval"
    ok(nodes.run("first", TOKEN, command))
    alone = command.replace("--replicas 2 --ray-address auto", "").replace("runs/eval", "runs/alone")
    ok(nodes.run("first", TOKEN, alone))
    samples = [(f / "samples.jsonl").read_bytes().splitlines() for f in (out, nodes.folder / "runs" / "alone")]
    assert len(samples[0]) > 0
    assert sorted(samples[0]) == sorted(samples[1])


def test_a_cell_of_the_miniature_on_the_cluster(nodes: Nodes) -> None:
    out = nodes.folder / "runs" / "cell"
    ok(nodes.run("first", TOKEN, printed("stapo-repro run stapo/mini --hardware cpu-2nodes") + " --quick"))
    run = store.read_json(out / "train" / "stapo-s0" / "run.json", Run)
    assert (run.status, run.config["trainer"]["nnodes"]) == ("done", 2)
    assert list((out / "eval" / "stapo-s0" / "cells").glob("*.json"))
