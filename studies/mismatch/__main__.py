"""The command: `python -m studies.mismatch`."""

from __future__ import annotations

from studies import command


def mismatch(check: bool = False) -> int:
    """Write results/tables/mismatch.md from the committed token logs.

    Args:
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from studies.mismatch import page

    return command.write(page.add, check=check)


if __name__ == "__main__":
    command.run(mismatch, "studies.mismatch", "tables")
