"""The command: `python -m studies.audit`."""

from __future__ import annotations

from pathlib import Path

from studies import command


def audit(table: Path | None = None, check: bool = False) -> int:
    """Check the numbers of the paper's table against each other and against its claims: results/tables/audit.md.

    Args:
        table: Another version of the table, in the form of results/paper/main_table.json; its page is printed only.
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from studies.audit import page

    if table is None:
        return command.write(page.add, check=check)
    Console().print(Markdown(page.text(table)))
    return 0


if __name__ == "__main__":
    command.run(audit, "studies.audit", "tables")
