"""Preflight looks at the machine: cards, ports, disk, and what a worker's process has registered."""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stapo_results.errors import BadInput
from stapo_training.run import launch
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import machine, registration
from stapo_training.run.preflight.machine import Gpu, Node

PAPER = ["run.data=/d", "run.out=/out"]
H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 79.6, 0.5)


def mini(base: Path, out: Path, *more: str):
    return compose(["size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}", *more])


# the machine


def test_nvidia_smis_lines_and_what_is_no_card() -> None:
    text = "0, NVIDIA H20, 97871, 4, 580.65.06\n1, NVIDIA H20, 97871, 512, 580.65.06\n"
    text += "2, NVIDIA H20, [N/A], [N/A], 580.65.06\nNo devices were found\n"
    assert machine.parse_smi(text) == [
        Gpu(0, "NVIDIA H20", 97871 / 1024, 4 / 1024, "580.65.06"),
        Gpu(1, "NVIDIA H20", 97871 / 1024, 0.5, "580.65.06"),
    ]


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("", []), ("1,7,0", [1]), ("GPU-5f3a,GPU-77b0", [0, 1])],
)
def test_cuda_visible_devices_hides_cards(chosen: str | None, indices: list[int]) -> None:
    cards = tuple(Gpu(i, "x", 80.0, 0.0) for i in range(3))
    assert [g.index for g in machine.visible(cards, chosen)] == indices


def test_the_smallest_card_of_the_nodes_counts() -> None:
    small = Gpu(1, "NVIDIA A100", 40.0, 0.0)
    assert machine.check_gpus([Node("a", (H100, small), 512), Node("b", (H100, H100), 512)], 2, 2) == 40.0


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([Node("a", (), 64)], "a: 0 "),
        ([Node("a", (H100,), 64)], "a: 1 "),
        ([Node("a", (H100, Gpu(1, "NVIDIA H100", 79.6, 41.2)), 64)], "a GPU 1: 41.2 of 79.6 GiB"),
    ],
)
def test_missing_and_busy_cards_are_refused(nodes: list[Node], found: str) -> None:
    with pytest.raises(BadInput) as e:
        machine.check_gpus(nodes, 1, 2)
    assert found in str(e.value.found)


def test_a_node_that_lacks_something_is_refused_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(machine, "_SHM", tmp_path / "nothing")
    monkeypatch.setattr(machine.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    new = replace(H100, driver="580.65.06")
    with pytest.raises(BadInput) as e:
        machine.check_tools([Node("a", (new,), 64, machine.lacking()), Node("b", (new,), 64)])
    for lack in ("a: no C compiler", "a: no Python.h", "a: no 1 GiB of "):
        assert lack in str(e.value.found)
    for cure in ("apt-get install gcc", f"python3.{sys.version_info[1]}-dev", "--shm-size=16g"):
        assert cure in e.value.next_step
    machine.check_tools([Node("without a card", (), 64, machine.lacking()), Node("b", (new,), 64)])


def test_an_old_driver_is_refused_node_by_node() -> None:
    with pytest.raises(BadInput) as e:
        machine.check_driver([Node(h, (replace(H100, driver=d),), 64) for h, d in (("a", "580.1"), ("b", "570.86.10"))])
    assert (e.value.found, e.value.expected) == ("b: 570.86.10", "580 or newer on every node")


@pytest.mark.slow
def test_a_real_ray_cluster_is_asked_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that claim 8 and 4 GPUs on a machine without one: not believed without nvidia-smi."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi, whatever machine runs this test
    cluster = Cluster()
    try:
        for gpus in (8, 4):
            cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=80 * 2**20, include_dashboard=False)
        nodes = machine.cluster_nodes(cluster.address)
    finally:
        cluster.shutdown()
    assert [list(n.gpus) for n in nodes] == [[], []]
    assert all(n.memory > 0 for n in nodes)
    with pytest.raises(BadInput, match="no GPU found"):
        machine.check_gpus(nodes, 1, 4)


@pytest.mark.slow
def test_a_living_node_that_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    def without_the_suite() -> None:
        raise ModuleNotFoundError("No module named 'stapo_results'")

    monkeypatch.setattr(machine, "_describe", without_the_suite)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False)
        with pytest.raises(BadInput) as e:
            machine.cluster_nodes(cluster.address)
    finally:
        cluster.shutdown()
    assert "No module named 'stapo_results'" in str(e.value.found)


def test_fewer_cores_than_slots_are_a_warning_and_fewer_slots_are_refused() -> None:
    here = Node("a", (), 64, cpus=4)
    config = compose(["size=qwen3-8b", "hardware=1gpu", *PAPER])
    assert machine.check_cores(config, [replace(here, cpus=5)]) is None
    assert (machine.check_cores(config, [here]) or "").startswith("4 cores for 1 GPU(s), 1 fewer than 5 slots")
    config.ray_kwargs.ray_init.num_cpus = 4  # as a batch system may ask for
    with pytest.raises(BadInput) as e:
        machine.check_cores(config, [here])
    assert (e.value.found, e.value.next_step) == ("a: 4", "ray_kwargs.ray_init.num_cpus=5")


def test_every_node_of_a_cluster_has_the_slots_of_its_ranks_and_storage_units() -> None:
    config, nodes = compose(["size=qwen3-8b", "hardware=64gpu", *PAPER]), [Node("a", (), 64, cpus=26)] * 8
    assert machine.check_cores(config, nodes) is None
    with pytest.raises(BadInput) as e:
        machine.check_cores(config, [*nodes[:7], Node("b", (), 64, cpus=25)])
    assert ("b: 25" in str(e.value.found), "--num-cpus=26" in e.value.next_step) == (True, True)
    with pytest.raises(BadInput, match="too few CPU slots") as e:  # a storage unit is meant for each node
        machine.check_cores(config, [*nodes, Node("head", (), 64, cpus=0)])
    assert "--num-cpus=26 on each node with ranks, 1 on another" in e.value.next_step


def test_an_address_where_no_cluster_answers() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        closed = s.getsockname()[1]
    with pytest.raises(BadInput) as e:
        machine.cluster_nodes(f"127.0.0.1:{closed}")
    assert f"127.0.0.1:{closed}" in str(e.value.found)


# the disk


@pytest.mark.slow
def test_checkpoints_of_8b_by_hand() -> None:
    def planned(*overrides: str) -> machine.Checkpoints:
        paper = ["size=qwen3-8b", "hardware=8gpu", "run.data=/d", "run.out=/out"]
        return machine.plan_checkpoints(compose([*paper, *overrides]), 8_190_735_360, Path("/out"))

    # 12 B (fp32 weights and two moments) x 8,190,735,360 = 91.539 GiB; every 100 of 3,000 steps; 1 + 2 GiB of logs
    c = planned()
    assert (round(c.each, 3), c.made, c.kept, round(c.whole, 1)) == (91.539, 30, 3, 369.2)  # 4 for a moment
    c = planned("trainer.max_actor_ckpt_to_keep=null")
    assert (c.kept, round(c.whole, 1)) == (30, 2749.2)
    contents = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    c = planned(contents, "run.steps=250", "trainer.max_actor_ckpt_to_keep=2")
    assert (round(c.each, 3), c.made, c.kept) == (122.051, 3, 2)  # 16 B; steps 100, 200 and the last
    assert planned("trainer.save_freq=-1").made == 0


def test_under_two_checkpoints_of_free_disk_is_refused() -> None:
    c = machine.Checkpoints(each=91.54, made=30, kept=30, logs=1.0, free=184.0)
    with pytest.raises(BadInput) as e:
        machine.check_disk(c, "/runs/a")
    assert (e.value.found, "184.08 GiB" in str(e.value.expected)) == ("184.00 GiB", True)
    machine.check_disk(replace(c, free=184.1), "/runs/a")


# veRL's own opinion, and what is registered


def test_what_verl_refuses_is_bad_input(tiny_base: Path, tmp_path: Path) -> None:
    config = mini(tiny_base, tmp_path, "actor_rollout_ref.actor.loss_agg_mode=token-median")
    with pytest.raises(BadInput) as e:
        registration.validate(config, ask_worker=False)
    assert "token-median" in str(e.value.found)


def test_config_only_needs_no_gpu_no_data_and_no_model(capfd: pytest.CaptureFixture) -> None:
    words = ["size=qwen3-14b", "hardware=64gpu", "method=stapo", "run.data=/data", "run.out=/out"]
    assert launch.run(words, config_only=True) == 0
    assert "tensor_model_parallel_size: 2" in capfd.readouterr().out


def test_a_workers_environment_has_what_runtime_env_names_and_not_the_launchers_own(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"))
    own = {"PATH": "/bin", "VERL_PLATFORM": "npu", "STAPO_TRAIN_THREADS": "9", "HOME": "/h"}
    assert registration.worker_environment(config, own) == {
        "PATH": "/bin",
        "HOME": "/h",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform",
        "STAPO_TRAIN_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


@pytest.mark.slow
def test_an_environment_that_lacks_our_module_is_found_before_ray_starts(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"), "~ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES")
    with pytest.raises(BadInput) as e:
        registration.answer(registration.ask(config))
    assert "Unknown platform 'cpu'" in str(e.value.found)
    assert "VERL_USE_EXTERNAL_MODULES" in e.value.next_step
