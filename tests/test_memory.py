"""What memory a process finds, and gives back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from stapo_results import memory
from stapo_training.start.configuration import compose
from stapo_training.verl_ext import engine


@pytest.mark.parametrize("group", ["", "slurm/job_7/step_0", "slurm"])
@pytest.mark.parametrize(
    ("folder", "limit", "use", "prefix", "line"),
    [
        ("", "memory.max", "memory.current", "", "0::/slurm/job_7/step_0"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "4:hugetlb,memory:/slurm/job_7/step_0"),
    ],
)
def test_memory_is_that_of_the_container_or_the_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    folder: str,
    limit: str,
    use: str,
    prefix: str,
    line: str,
) -> None:
    """8 GiB allowed, 5 in use, of which files take 1: 4 are left, or what the machine has left."""
    (tmp_path / "own").write_text(f"12:pids:/elsewhere\n{line}\n")
    (held := tmp_path / "groups" / folder / group).mkdir(parents=True)
    (held / use).write_text(f"{5 << 30}\n")
    (held / "memory.stat").write_text(
        f"anon 7\n{prefix}inactive_file {3 << 28}\n{prefix}active_file {1 << 28}\nunevictable 0\n"
    )
    for text, left, expected in (
        (f"{8 << 30}", 15, (8, 4)),
        (f"{8 << 30}", 2, (8, 2)),
        (f"{2**63 - 4096}", 15, (20, 15)),
        ("max", 15, (20, 15)),  # version 2: no limit
    ):
        (held / limit).write_text(text + "\n")
        machine = SimpleNamespace(total=20 << 30, available=left << 30)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda machine=machine: machine)
        found = memory.usable_memory(tmp_path / "groups", tmp_path / "own")
        assert [x >> 30 for x in found] == [*expected]


def test_the_lowest_limit_of_nested_groups_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GiB allowed and used: a container 12 and 11, in it a job 6 and 2, and in that a step 8 and 2."""
    (tmp_path / "own").write_text("0::/job/step\n")
    for group, limit, used in (("", 12, 11), ("job", 6, 2), ("job/step", 8, 2)):
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / "memory.max").write_text(f"{limit << 30}\n")
        (tmp_path / group / "memory.current").write_text(f"{used << 30}\n")
        (tmp_path / group / "memory.stat").write_text("anon 7\n")
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(total=20 << 30, available=15 << 30))
    assert memory.usable_memory(tmp_path, tmp_path / "own") == (6 << 30, 1 << 30)


BLOCKS = """
import psutil, torch
from stapo_results import memory

def in_use():
    return psutil.Process().memory_info().rss / 2**20

def block(mib):
    return torch.ones(mib * 2**18)

memory.return_memory()
block(20)
before, large, small = in_use(), [], []
for _ in range(20):
    large.append(block(20))
    small.append(block(1))
grown = in_use() - before
large.clear()
print(grown, in_use() - before)
"""


def test_what_is_freed_between_blocks_that_stay_goes_back_to_the_machine() -> None:
    """Twenty blocks of 20 MiB, a small one behind each, after one of the size was freed before. In a process of its
    own: what other tests have freed would be taken first."""
    said = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True).stdout
    grown, left = map(float, said.split())
    assert grown > 400
    assert left < 100


KEPT = """
import resource, threading, torch
from stapo_training.verl_ext.platform import CpuPlatform

device = CpuPlatform.device_module

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work(said):
    for mib in (20, 19, 40, 40):
        before = pages()
        [torch.ones(mib * 2**18) for _ in range(20)]
        said.append(pages() - before)

said = []
thread = threading.Thread(target=work, args=(said,))
thread.start()
thread.join()
held = device.memory_allocated()
device.empty_cache()
print(*said, (held - device.memory_allocated()) / 2**20)
"""


def test_a_training_without_a_gpu_keeps_small_blocks_that_it_frees_until_its_cache_is_emptied() -> None:
    """In another thread than the first, as a worker's passes are: 400 MiB in blocks of 20, of 19, twice of 40. Small
    ones take pages from the machine once, large ones each time and give them back at once."""
    config = compose(["method=stapo", "size=mini", "hardware=cpu", "run.out=x"])
    tunables = config.ray_kwargs.ray_init.runtime_env.env_vars.GLIBC_TUNABLES
    environment = os.environ | {"GLIBC_TUNABLES": tunables}
    said = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True, env=environment)
    first, smaller, large, again, returned = map(float, said.stdout.split())
    assert first > 100  # of 2 MiB, where the machine has them
    assert smaller < first / 5
    assert min(large, again) > first / 2
    assert 300 < returned < 500


def test_jemalloc_in_the_place_of_the_c_library_keeps_large_blocks_too_until_its_cache_is_emptied() -> None:
    conf = "narenas:1,oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"  # as docs/training.md has it
    library = Path(ray.__file__).with_name("core") / "libjemalloc.so"  # Ray brings one
    environment = os.environ | {"LD_PRELOAD": str(library), "MALLOC_CONF": conf}
    said = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True, env=environment)
    first, *_, again, returned = map(float, said.stdout.split())
    assert first > 100
    assert again < first / 5
    assert returned > 600  # twenty blocks of 40 MiB


@pytest.mark.parametrize(("device", "first"), [("cpu", ["emptied"]), ("cuda", [])])
def test_each_pass_without_a_gpu_begins_with_an_emptied_cache(
    device: str, first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sampler or the pass before left free would be holes beside this one's tensors."""
    done = list[str]()
    monkeypatch.setattr(engine, "get_device_name", lambda: device)
    monkeypatch.setattr(engine, "get_torch_device", lambda: SimpleNamespace(empty_cache=lambda: done.append("emptied")))
    monkeypatch.setattr(engine._VeRLEngine, "forward_backward_batch", lambda *_: done.append("pass"))
    ours = object.__new__(engine.SelectingEngine)
    ours.forward_backward_batch({}, None, forward_only=True)
    ours.forward_backward_batch({"response_mask": None}, None)
    assert done == [*first, "pass"] * 2
