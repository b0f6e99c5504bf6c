"""What the testbed trains: worlds, arms, seeds and steps."""

from __future__ import annotations

from typing import Literal, NamedTuple

from stapo_repro import labels
from stapo_repro.run.request import choices
from stapo_results.errors import RecordError
from stapo_results.sizes import of_world

WORLDS: dict[str, str] = {world: of_world(world) for world in ("paper", "mixed", "inverted")}
"""The worlds, and the size label of the models of each."""
COSTLY: dict[str, str] = {world: of_world(world) for world in ("costly", "costly-inverted")}
"""The worlds in which spurious words cost something, the second its control; they have a part of their own."""
SIZES: dict[str, str] = WORLDS | COSTLY
Part = Literal["main", "pilot", "long", "costly", "costly-pilot", "costly-long"]
"""pilot: other seeds, for the spread between seeds alone. long: more steps with validation, no evaluation. costly:
this world and its control, with validation on both benchmarks, no evaluation. costly-long: more steps, exploratory."""
FOLDER = "testbed"  # below results/records; the main table leaves it out
PARTS: tuple[Part, ...] = ("pilot", "long", "costly", "costly-pilot", "costly-long")
"""Parts with a folder of their own below `FOLDER`, since their cells have the ids of others."""

SEEDS: dict[Part, tuple[int, ...]] = {
    "main": (10, 11, 12, 13, 14),  # fresh ones: the miniature has 0 to 4
    "pilot": (100, 101, 102),
    "long": (20, 21, 22, 23, 24, 25),  # no others judge: some were seen before their claims were written
    "costly": (30, 31, 32, 33, 34, 35),
    "costly-pilot": (110, 111, 112),
}
PILOTS: dict[Part, Part] = {"main": "pilot", "costly": "costly-pilot"}
STEPS: dict[Part, int] = {"main": 20, "pilot": 30, "long": 300, "costly": 40}
"""The pilot's had all come to the task's end before step 20."""
METHOD_SEEDS = (10, 11, 12)  # of a user's method: seeds that the committed arms have too
QUICK_STEPS = 2
RATES = {"": "2.0e-4", "-lr2.5x": "5.0e-4", "-lr5x": "1.0e-3"}
"""What the name of a long arm ends with -> its learning rate, of which the first is the miniature's."""
LONG_ARMS = ("justrl", "stapo", "stapo-random", "justrl-lr2.5x", "stapo-lr2.5x")
VALIDATION_EVERY: dict[Part, int] = {"long": 25, "costly": 10}
"""Steps between validations, of the parts that have them in the place of an evaluation."""


class Arm(NamedTuple):
    """A method as the testbed trains it: the label of its records, and the choices of `stapo-train run`."""

    name: str
    choices: tuple[str, ...]


SWEEP = tuple(Arm(m, choices(m)) for m in ("stapo-q0.25", "stapo-q0.5", "stapo-tau0.0002", "stapo-tau0.02"))
"""STAPO with another q or tau_p, in `paper` alone. q = 0 is JustRL, q = 1 the full mask."""
LARGER_RATES = tuple(
    Arm(f"{m}{name}", (f"method={m}", f"run.method={m}{name}", f"actor_rollout_ref.actor.optim.lr={RATES[name]}"))
    for name in ("-lr2.5x", "-lr5x")
    for m in ("justrl", "stapo")
)
"""Long arms at a larger learning rate, at which more may drift or collapse."""
# STARE amplifies below a mean entropy of 0.3 nats: the miniature's recorded steps are above that, and below 1
STARE = Arm("stare", ("method=stare", "actor_rollout_ref.advantage.target_entropy=1"))
_COMPARED = tuple(Arm(m, choices(m)) for m in labels.ARMS)
CONTROL_ARMS = ("justrl", "stapo-high-entropy", "stapo-random", "stapo")  # of costly-inverted
_BOTH = ("actor_rollout_ref.rollout.val_kwargs.n=8", "run.validation_settings=[t1.0,t0.7]")
COSTLY_ARMS = tuple(Arm(a.name, (*a.choices, *_BOTH)) for a in (*_COMPARED, STARE))
ARMS = {a.name: a for a in (*_COMPARED, *SWEEP, STARE, *LARGER_RATES)}


def arms_of(world: str, part: Part, chosen: tuple[str, ...] | None = None) -> list[Arm]:
    """The arms of a world, in order; with `chosen` only those of these names."""
    if part == "costly":
        arms = COSTLY_ARMS if world == "costly" else [a for a in COSTLY_ARMS if a.name in CONTROL_ARMS]
        return [a for a in arms if chosen is None or a.name in chosen]
    names = list(LONG_ARMS if part == "long" else labels.ARMS)
    if part == "long" and world != "paper":
        return []
    if part == "main" and world == "paper":
        names += [a.name for a in (*SWEEP, STARE)]
    if chosen is not None:  # an arm that is named is in the long part too
        names = [n for n in ARMS if n in chosen and (n in labels.ARMS or world == "paper")]
        names = [n for n in names if part == "long" or not method_and_rate(n)[1]]
    return [ARMS[n] for n in names]


def method_and_rate(arm: str) -> tuple[str, str]:
    """An arm's method, and its key in `RATES`."""
    rate = next((r for r in RATES if r and arm.endswith(r)), "")
    return arm.removesuffix(rate), rate


def rate_text(rate: str) -> str:
    """ "5e-4": a learning rate by its key in `RATES`."""
    return RATES[rate].replace(".0e", "e")


def world_of(size: str, where: str = "the model") -> str:
    """The world whose models have this size label. Raises: RecordError for another size, found `where`."""
    if world := next((w for w, s in SIZES.items() if s == size), None):
        return world
    raise RecordError(
        f"{where} is not of the testbed",
        found=f"size {size}",
        expected=" | ".join(SIZES.values()),
        next_step="name a folder that holds a run of `python -m studies.testbed run` alone",
    )
