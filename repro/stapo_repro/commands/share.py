"""`stapo-repro collect`, `pack` and `unpack`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Pack:
    """Bundle finished runs into one archive: run records, metrics, responses, verdicts, cells, with their hashes."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished runs, such as runs/miniature."""
    out: Path
    """The archive to write, NAME.zip."""
    responses: bool = True
    """With samples, verdicts and judgements; --no-responses packs run records, metrics and cells alone."""

    def run(self) -> int:
        from stapo_repro.sharing.pack import pack
        from stapo_results.store import sha256_file

        made = pack(self.runs, self.out, self.responses)
        print(f"{self.out}: {len(made.files)} files of {len(made.runs)} runs, "
              f"{made.total / 2**20:.1f} MiB in {self.out.stat().st_size / 2**20:.1f} MiB\n"
              f"  sha256 {sha256_file(self.out)}")  # fmt: skip
        return 0


@dataclass(frozen=True)
class Unpack:
    """Check somebody's bundle as a whole, then add its runs to a folder without overwriting anything."""

    file: tyro.conf.Positional[Path]
    """An archive of `stapo-repro pack`."""
    into: Path | None = None
    """Folder that its runs are added to, such as runs/shared. Without it the bundle is only checked."""

    def run(self) -> int:
        from stapo_repro.sharing.unpack import check, unpack

        if self.into is None:
            found, cells = check(self.file)
            print(f"{self.file} is whole: {len(found.files)} files, {found.total / 2**20:.1f} MiB, of runs "
                  f"{', '.join(found.runs)}; made by code {found.code_commit[:12]}; cells:")  # fmt: skip
            print(*(f"  {cell}" for cell in cells), sep="\n")
            return 0
        found, new = unpack(self.file, self.into)
        there = len(found.runs) - len(new)
        print(f"{len(new)} runs written below {self.into}, {there} were there already with the same content")
        return 0


@dataclass(frozen=True)
class Collect:
    """Copy a finished run's records (no responses, no paths of this machine) to where they can be committed, and write
    what each of its stages took to stages.json there."""

    run_folder: tyro.conf.Positional[Path]
    """Folder of the run, such as runs/miniature."""
    out: Path
    """Folder to write, such as results/records/miniature."""

    def run(self) -> int:
        from stapo_repro.collect import collect

        print(f"{len(collect(self.run_folder, self.out))} files written below {self.out}")
        return 0
