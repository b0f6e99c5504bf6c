"""A CPU platform for veRL, so that the trainer of a GPU cluster also runs on a laptop.

Imported by veRL itself (VERL_USE_EXTERNAL_MODULES) while veRL is still importing: nothing here may import more of veRL
than its platform package.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import types
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from stapo_results.memory import empty_heap, usable_memory


def settle() -> None:
    """Take what a process has loaded out of Python's garbage collection.

    A full collection walks all living objects: of veRL's imports 0.3 to 0.5 s, in most steps of a small model.
    """
    gc.collect()
    gc.freeze()


def fix_arithmetic(threads: int) -> None:
    """Sums in the same order every time: torch's threads in this process, and deterministic algorithms alone."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # nothing reads it; filling takes time


def _nothing(*_: Any, **__: Any) -> None:
    """In the place of an accelerator's function, on a CPU."""


class _CpuModule(types.ModuleType):
    """`torch.cpu` with the calls of `torch.cuda` that veRL makes without asking whether they exist."""

    ipc_collect = reset_peak_memory_stats = _nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def empty_cache(self) -> None:
        empty_heap()  # a worker keeps what it frees (hardware/cpu.yaml)

    def memory_allocated(self, device: Any = None) -> int:
        return psutil.Process().memory_info().rss

    def max_memory_allocated(self, device: Any = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total, available = usable_memory()
        return available, total

    def get_device_name(self, device: Any = None) -> str:
        return "CPU"

    # a checkpoint always holds the state of the "cpu" generator; loading one goes through this
    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Chosen by VERL_PLATFORM=cpu alone; never found by probing, so a GPU node cannot fall back to it unnoticed."""

    device_name = vendor_name = "cpu"  # type: ignore[assignment]  # properties of the base
    device_module: Any = _CpuModule("stapo_cpu_device")
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> str:  # type: ignore[override]  # used as tensor.to(current_device())
        return "cpu"

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: Any = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "STAPO_CPU_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def ray_resource_name(self) -> str:
        # veRL's resource check counts Ray's GPU and NPU resources only, so a CPU run declares its ranks as logical
        # GPUs (ray_kwargs.ray_init.num_gpus in hardware/cpu.yaml)
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
