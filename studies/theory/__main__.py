"""The command: `python -m studies.theory`."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro

from stapo_results.errors import BadInput
from stapo_results.terminal import run_main


def theory(run: Path | None = None, out: Path | None = None, seed: int = 0, draws: int = 3) -> None:
    """Check the paper's lemmas and bounds by number: on random and extreme distributions, and on a run's tokens.

    Args:
        run: A folder with a token log, of a training or of a probe: how tight the bounds are on its tokens.
        out: Folder for the record (run.json, theory.json); without it the tables are printed only.
        seed: Decides the random distributions.
        draws: How often each family is drawn at a vocabulary below 10,000.
    """
    from studies.theory.run import run as check_theory

    if draws < 1:
        raise BadInput("--draws is too small", found=draws, expected="1 or more", next_step="raise it")
    check_theory(seed, draws, source=run, out=out)


def main() -> int:
    return run_main(lambda: tyro.cli(theory, prog="python -m studies.theory"), extra="train")


if __name__ == "__main__":
    sys.exit(main())
