"""What is trained: three arms of the world `costly` with a noisy reward."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from stapo_repro.run.cells import CellRequest, Model
from stapo_repro.run.origins import Carried
from stapo_repro.run.request import DryRun, Jobs, choices, programs, seeds_of
from stapo_results.errors import BadInput
from stapo_results.sizes import of_world
from stapo_results.store import read_json

FILE = Path(__file__).with_name("claims.json")
EVERY = 10  # steps between validations
_VALIDATED = ("actor_rollout_ref.rollout.val_kwargs.n=8", "run.validation_settings=[t1.0,t0.7]")
_NOISE = "+reward.custom_reward_function.reward_kwargs.noise"


class _Fixed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Noise(_Fixed):
    """ratio: how many times as likely a useful word makes a reward of +1."""

    ratio: float
    seeds: tuple[int, ...]


class Without(Noise):
    """The testbed's trainings without noise."""

    steps: int


class Pilot(_Fixed):
    seeds: tuple[int, ...]
    rule: str


class NoiseClaim(_Fixed):
    """STAPO minus `against` is above 0, or, with `within`, less than so many points from it."""

    id: str
    claim: str
    measure: Literal["longer t1.0", "longer t0.7", "useful, late"]
    against: str
    within: float


class NoiseClaims(_Fixed):
    """claims.json. noises: share of coins -> seeds. judged: the noise of the claims. first: the first step whose
    validation counts."""

    schema_version: Literal[1]
    source: str
    written: str
    question: str
    world: str
    arms: tuple[str, ...]
    noises: dict[str, Noise]
    judged: str
    without: Without
    pilot: Pilot
    steps: int
    first: int
    rule: str
    expected: str
    claims: tuple[NoiseClaim, ...]


def load() -> NoiseClaims:
    """Raises RecordError for a broken file."""
    return read_json(FILE, NoiseClaims)


def label(method: str, noise: str) -> str:
    return f"{method}-noise{noise}"


def request(
    noise: str = "0.7", pilot: bool = False, quick: bool = False, seeds: str | None = None, steps: int | None = None,
    out: Path | None = None, dry_run: DryRun = False, jobs: Jobs = 0,
) -> CellRequest:  # fmt: skip
    """Train JustRL, STAPO and the random mask where the reward is partly luck. The same command resumes.

    Args:
        noise: Share of the rewards that are a coin: 0.7, or 0.32.
        pilot: Two other seeds, which judge nothing but the number of steps.
        quick: Two steps of two arms and one seed.
        seeds: Such as 40,41. Default: those of claims.json.
        steps: Of a pilot alone: its rule may ask for more. Default: those of claims.json.
        out: Where everything goes. Default: runs/noise-0.7 and so on.
    """
    c = load()
    if noise not in c.noises:
        raise BadInput("no such noise", found=noise, expected=" | ".join(c.noises), next_step="--noise 0.7")
    if (pilot and noise != c.judged) or (steps is not None and not pilot):
        raise BadInput("a pilot has the noise of the claims, and it alone has other steps", found=f"--noise {noise}",
                       next_step=f"--pilot --noise {c.judged}")  # fmt: skip
    chosen = seeds_of(seeds) or (c.pilot.seeds if pilot else c.noises[noise].seeds)
    arms = c.arms[:2] if quick else c.arms
    models = [
        Model(label(m, noise), of_world(c.world), s, (*choices(m), f"run.method={label(m, noise)}", *_VALIDATED,
              f"{_NOISE}={noise}"), c.world, EVERY, evaluated=False)
        for s in (chosen[:1] if quick else chosen) for m in arms
    ]  # fmt: skip
    out = out or Path("runs") / f"noise-{noise}{'-pilot' * pilot}"
    same = {"noise": noise, "pilot": pilot}
    count = 2 if quick else steps or c.steps
    return CellRequest("noise", Carried(), tuple(models), count, quick, out, same, programs(), dry_run,
                       model_by_model=True, pages=False, jobs=jobs)  # fmt: skip
