"""The command: `python -m studies.gpu_check`."""

from __future__ import annotations

from pathlib import Path

from studies import command


def gpu_check(cpu: bool = False, out: Path = Path("runs/gpu-check")) -> int:
    """The suite's own commands on this machine's GPU, small: what passed, and a record to send back.

    Args:
        cpu: The same without a GPU, on vLLM's CPU build.
        out: A new folder for everything.
    """
    from studies.gpu_check.check import check

    return check(out, cpu)


if __name__ == "__main__":
    command.run(gpu_check, "studies.gpu_check", "train")
