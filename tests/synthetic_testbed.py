"""Records of a testbed with numbers that can be worked out by hand, for tests."""

from __future__ import annotations

from pathlib import Path

from synthetic_records import cell, training_run

from stapo_results.store import write_json
from studies.testbed import counts
from studies.testbed.plan import WORLDS

RIGHT = {"justrl": 6, "justrl-fullmask": 2, "stapo-high-entropy": 2, "stapo-random": 4, "stapo": 6}  # of 8 samples
USEFUL = {"justrl": 0.9, "justrl-fullmask": 0.2, "stapo-high-entropy": 0.2, "stapo-random": 0.4, "stapo": 0.9}
SPURIOUS = {"justrl": 0.6, "justrl-fullmask": 0.2, "stapo-high-entropy": 0.5, "stapo-random": 0.3, "stapo": 0.2}
SILENCED = {  # of 10 rare tokens: spurious, useful, other; expected of the random mask
    "silence_spurious": (7.0, 0.0, 0.5),
    "silence_random": (5.6, 1.5, 0.4),
    "silence_high_entropy": (5.0, 2.0, 0.5),
    "silence_low_probability": (7.5, 2.0, 0.5),
}


def of_testbed(
    root: Path, seeds: tuple[int, ...] = (0, 1, 2), worlds: tuple[str, ...] = ("paper", "mixed", "inverted"),
    steps: int = 8, problems: int = 16, arms: tuple[str, ...] = tuple(RIGHT),
) -> None:  # fmt: skip
    """Records of the testbed below eval/ and train/: each arm has a level of its own, the same in all worlds, with a
    little noise by problem and seed. Of JustRL the counts of its tokens, with one more spurious token a seed."""
    for world in worlds:
        size = WORLDS[world]
        for setting in ("t1.0", "t0.7"):
            given = {"size": size, "folder": f"base-{world}"}
            cell(root / "eval", "base", "mini-add", setting, ["11000000"] * problems, **given)
            for k, arm in enumerate(arms):
                for seed in seeds:
                    level = [RIGHT[arm] + ((7 * i + 3 * seed * (k + 1)) % 5 == 0) for i in range(problems)]
                    verdicts = ["1" * k + "0" * (8 - k) for k in level]
                    given = {"size": size, "seed": seed, "step": steps, "folder": f"{arm}-{world}-s{seed}"}
                    cell(root / "eval", arm, "mini-add", setting, verdicts, **given)
        for arm in arms:
            for seed in seeds:
                more = 0.03 if arm == "stapo" else 0.01
                rates = {"useful_rate": USEFUL[arm] + more * seed, "spurious_rate": SPURIOUS[arm] + more * seed}
                rates["reward"] = RIGHT[arm] / 4 - 1 + more * seed
                folder = training_run(root / "train" / world, arm, seed, steps, size, more=rates)
                if arm == "justrl":
                    planted_counts(folder, steps, seed)


def planted_counts(folder: Path, steps: int, more: int = 0) -> None:
    """planted.json of a run: the same in every step. `more`: further spurious tokens that S2T silences."""
    further = {"silence_spurious": more, "silence_high_entropy": 0.1 * more}
    masks = [
        counts.Silenced(mask=m, tau_p=0.002, q=1.0 if m == "silence_low_probability" else 0.75,
                        tokens=[(s + further.get(m, 0), u, o)] * steps)
        for m, (s, u, o) in SILENCED.items()
    ]  # fmt: skip
    whole = (8.0 + more, 2.0, 0.5)
    rare = [counts.Candidates(tau_p=0.002, tokens=[whole] * steps)]
    own = counts.PlantedCounts(run_id="synthetic", selector="keep_all", tau_p=0.002, q=0.75,
                               steps=list(range(1, steps + 1)), rare=rare, masks=masks)  # fmt: skip
    write_json(folder / counts.FILE, own)
