"""What memory this machine has for a process, and what a process holds of it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt (malloc.h)
_PURGE = b"arena.4096.purge"  # of all arenas (MALLCTL_ARENAS_ALL)
# of control groups v2 and v1: the controller and its folder, the limit, the use (the cache of files counts), and what
# the names in memory.stat begin with
_MEMORY_FILES = (
    ("", "memory.max", "memory.current", ""),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def usable_memory(
    groups: Path = Path("/sys/fs/cgroup"), own: Path | None = Path("/proc/self/cgroup")
) -> tuple[int, int]:
    """(total, available) bytes of this machine, or of its container or SLURM's job where that allows less.

    Args:
        own: where this process's groups are named; None: of the machine or container alone, as Ray counts.
    """
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    lines = [line.split(":", 2) for line in own.read_text().splitlines()] if own and own.is_file() else []
    for controller, limit, use, prefix in _MEMORY_FILES:
        path = Path(next((p.lstrip("/") for _, names, p in lines if controller in names.split(",")), ""))
        for group in (groups / controller / p for p in (path, *path.parents)):
            if not all((group / name).is_file() for name in (limit, use, "memory.stat")):
                continue  # a container does not see the groups around it, whose names it may still be told
            allowed = (group / limit).read_text().strip()
            if allowed.isdigit() and int(allowed) < memory.total:
                counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                files = sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
                free = int(allowed) - int((group / use).read_text()) + files
                total, available = min(total, int(allowed)), max(0, min(available, free))
    return total, available


def return_memory() -> None:
    """Have the C library give freed blocks of 8 MiB and more back to the machine at once.

    Left alone, it keeps freed blocks of up to 32 MiB. A layer's weights are smaller: a training of Qwen2.5-Coder-0.5B
    in float32 held 3 GiB that nothing used.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 8 << 20)  # that model's largest in a layer are 8.3 MiB in bfloat16
    libc.mallopt(_TRIM_THRESHOLD, 256 << 20)  # else 128 KiB from here on: the heap would shrink and grow all the time


def empty_heap() -> None:
    """Have the allocator give back to the machine all that is freed, also between blocks that stay: the C library's,
    and jemalloc where it was loaded in its place."""
    process = ctypes.CDLL(None)
    process.malloc_trim(0)
    if hasattr(process, "mallctl"):
        process.mallctl(_PURGE, None, None, None, ctypes.c_size_t(0))
