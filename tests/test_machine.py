"""Preflight looks at the machine: cards, ports, disk, and what a worker's process has registered."""

import socket
from pathlib import Path

import pytest

from stapo_results.errors import BadInput
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import checks as preflight
from stapo_training.run.preflight import disk, machine, registration
from stapo_training.run.preflight.machine import Gpu, Node

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 79.6, 0.5)


def mini(base: Path, out: Path, *more: str):
    return compose(["size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}", *more])


# the machine


def test_nvidia_smis_lines_and_what_is_no_card() -> None:
    text = "0, NVIDIA H20, 97871, 4\n1, NVIDIA H20, 97871, 512\n2, NVIDIA H20, [N/A], [N/A]\nNo devices were found\n"
    assert machine.parse_smi(text) == (
        Gpu(0, "NVIDIA H20", 97871 / 1024, 4 / 1024),
        Gpu(1, "NVIDIA H20", 97871 / 1024, 0.5),
    )


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
    assert machine.check_gpus([Node("a", (H100,), 512), Node("b", (H100, small), 512)], 1, 2) == 40.0


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([Node("a", (), 64)], r"(?s)no GPU found.*a: 0 .*1 node\(s\) with 2 GPU\(s\) each.*size=mini hardware=cpu"),
        ([Node("a", (H100,), 64)], r"(?s)too few GPUs.*a: 1 "),
        ([Node("a", (H100,), 64, slots=8)], r"(?s)nvidia-smi does not list.*a: 1 listed, 8 offered"),
        (
            [Node("a", (H100, Gpu(1, "NVIDIA H100", 79.6, 41.2)), 64)],
            r"(?s)another program uses a GPU.*a GPU 1 \(NVIDIA H100\): 41\.2 of 79\.6 GiB.*CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_missing_unknown_and_busy_cards_are_refused(nodes: list[Node], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        machine.check_gpus(nodes, 1, 2)


@pytest.mark.slow
def test_a_real_ray_cluster_is_asked_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that claim 8 and 4 GPUs on a machine without one: counted by Ray, not believed without nvidia-smi."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi, whatever machine runs this test
    cluster = Cluster()
    try:
        for gpus in (8, 4):
            cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=80 * 2**20, include_dashboard=False)
        nodes = machine.cluster_nodes(cluster.address)
    finally:
        cluster.shutdown()
    assert sorted((n.slots, n.gpus) for n in nodes) == [(4, ()), (8, ())]
    assert all(n.memory > 0 for n in nodes)
    with pytest.raises(BadInput, match="nvidia-smi does not list the GPUs that Ray offers"):
        machine.check_gpus(nodes, 1, 8)
    with pytest.raises(BadInput, match=r"(?s)too few GPUs.*2 node\(s\) with 8 GPU"):
        machine.check_gpus(nodes, 2, 8)


def test_an_address_where_no_cluster_answers() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        closed = s.getsockname()[1]
    with pytest.raises(BadInput, match=rf"(?s)no Ray cluster answers.*address=127\.0\.0\.1:{closed}.*ray start --head"):
        machine.cluster_nodes(f"127.0.0.1:{closed}")


def test_a_port_that_something_listens_on_is_named_with_its_key(tiny_base: Path, tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        metrics = "actor_rollout_ref.rollout.prometheus"
        config = mini(tiny_base, tmp_path, f"{metrics}.enable=true", f"{metrics}.port={port}")
        with pytest.raises(
            BadInput, match=rf"(?s)a port is in use.*prometheus\.port={port}.*prometheus\.port={port + 1}"
        ):
            preflight.check(config)
    assert preflight.check(config).prompts == 64


# the disk


def test_checkpoints_of_8b_by_hand() -> None:
    # 12 B (fp32 weights and two moments) x 8,190,735,360 = 91.539 GiB; every 100 of 3,000 steps
    c = disk.plan_checkpoints(8_190_735_360, ["model", "optimizer", "extra"], 3000, 100, None, free=500.0)
    assert (round(c.each, 3), c.made, c.kept, round(c.whole, 1)) == (91.539, 30, 30, 2747.2)
    kept = disk.plan_checkpoints(8_190_735_360, ["model", "optimizer", "extra", "hf_model"], 250, 100, 2, free=500.0)
    assert (round(kept.each, 3), kept.made, kept.kept) == (122.051, 3, 2)  # 16 B; steps 100, 200 and the last
    assert disk.plan_checkpoints(1, ["model"], 10, -1, None, 1.0).made == 0


def test_under_two_checkpoints_of_free_disk_is_refused() -> None:
    def with_free(gib: float) -> disk.Checkpoints:
        return disk.plan_checkpoints(8_190_735_360, ["model", "optimizer"], 3000, 100, None, gib)

    with pytest.raises(BadInput) as e:
        disk.check_disk(with_free(184.0), "/runs/a")
    assert str(e.value) == (
        "too little disk is free for /runs/a\n"
        "  found:    184.00 GiB\n"
        "  expected: at least 184.08 GiB: two checkpoints of 91.54 GiB and 1 GiB of logs\n"
        "  next:     free some space or choose another run.out"
    )
    disk.check_disk(with_free(184.1), "/runs/a")


# veRL's own opinion, and what is registered


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor_rollout_ref.actor.loss_agg_mode=token-median", "Invalid loss_agg_mode: token-median"),
        ("actor_rollout_ref.rollout.mode=sync", "'sync' has been removed"),
        ("+actor_rollout_ref.actor.no_such=1", "unexpected keyword argument 'no_such'"),
    ],
)
def test_what_verl_refuses_is_bad_input(tiny_base: Path, tmp_path: Path, override: str, said: str) -> None:
    config = mini(tiny_base, tmp_path, override)
    with pytest.raises(BadInput, match=rf"(?s)veRL refuses the configuration.*{said}.*--config-only"):
        preflight.validate(config, ask_worker=False)


def test_a_workers_environment_has_what_runtime_env_names_and_not_the_launchers_own(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"))
    own = {"PATH": "/bin", "VERL_PLATFORM": "npu", "STAPO_TRAIN_THREADS": "9", "HOME": "/h"}
    assert registration.worker_environment(config, own) == {
        "PATH": "/bin",
        "HOME": "/h",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform",
        "STAPO_TRAIN_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def test_an_environment_that_lacks_our_module_is_found_before_ray_starts(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"), "~ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES")
    with (
        registration.asked(config) as answer,
        pytest.raises(
            BadInput, match=r"(?s)worker's process: platform.*Unknown platform 'cpu'.*VERL_USE_EXTERNAL_MODULES"
        ),
    ):
        answer()
