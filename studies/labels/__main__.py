"""The command: `python -m studies.labels`."""

from __future__ import annotations

from studies import command


def labels(check: bool = False) -> int:
    """Write results/tables/labels.md and the figures of the labelled sample's probe, from the committed records.

    Args:
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from studies.labels import page

    return command.write(page.add, check=check)


if __name__ == "__main__":
    command.run(labels, "studies.labels", "tables")
