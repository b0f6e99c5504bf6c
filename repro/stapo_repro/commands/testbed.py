"""`stapo-repro testbed`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Testbed:
    """Worlds in which the worth of every rare token is known: five arms a world, the sweeps over q and tau_p in one.

    The same command resumes; other --worlds, --arms and --seeds add to its folder. docs/testbed.md has the claims that
    its records judge.
    """

    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Short form to try the path: one world, two arms, one seed, 2 steps, 2 samples of 16 problems."""
    worlds: str | None = None
    """Out of paper,mixed,inverted. Default: all."""
    arms: str | None = None
    """Such as justrl,stapo,stapo-q0.5. Default: justrl,justrl-fullmask,stapo-high-entropy,stapo-random,stapo, and in
    paper stapo-q0.25,stapo-q0.5,stapo-tau0.0002,stapo-tau0.02. With --long justrl,stapo and, at 2.5 times the learning
    rate, justrl-lr2.5x,stapo-lr2.5x; at five times, when named, justrl-lr5x,stapo-lr5x."""
    seeds: str | None = None
    """Training seeds, such as 10,11. Default: 10 to 14; 100,101,102 with --pilot, 20 to 25 with --long, 10,11,12 with
    --method."""
    seed_count: int | None = None
    """How many training seeds, from 0 on, in place of their list."""
    steps: int | None = None
    """Training steps. Default: 20, with --pilot 30, with --long 300, with --quick 2."""
    pilot: tyro.conf.FlagCreatePairsOff[bool] = False
    """Other seeds, which judge nothing: the spread between seeds, from which the seeds needed follow."""
    long: tyro.conf.FlagCreatePairsOff[bool] = False
    """JustRL and STAPO in paper at two learning rates, long enough that some run may collapse; validation every 25
    steps, no evaluation."""
    method: str | None = None
    """Train this method (a name, or a YAML overlay) in the worlds, and print where it stands beside the committed
    arms."""
    out: Path | None = None
    """Where everything goes. Default: runs/testbed, runs/testbed-pilot, runs/testbed-long or runs/testbed-METHOD."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print each stage with its exact command and what is there; make every check; start nothing."""

    def run(self) -> int:
        from stapo_repro.run.chain import main
        from stapo_repro.run.request import of_testbed, seeds_of

        if self.pilot and self.long:
            raise BadInput("a run is the pilot or a long one", found="--pilot and --long", expected="one of them",
                           next_step="leave one out")  # fmt: skip
        options = {n: getattr(self, n) for n in ("quick", "worlds", "arms", "steps", "method")}
        options["seeds"] = seeds_of(self.seeds, self.seed_count)
        part = "pilot" if self.pilot else "long" if self.long else "main"
        return main(of_testbed(self.out, part=part, **options), self.dry_run)
