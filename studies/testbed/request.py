"""What is asked of the testbed: worlds, arms and seeds, as models for the driver."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from stapo_repro import labels
from stapo_repro.run.cells import CellRequest, Model
from stapo_repro.run.origins import Carried
from stapo_repro.run.request import QUICK_METHODS, DryRun, Jobs, programs, seeds_of
from stapo_results.errors import BadInput, meant
from studies.testbed import plan
from studies.testbed.evidence import BENCHMARK

_LABEL = re.compile(r"[a-z][a-z0-9._-]*")


def request(
    quick: bool = False, worlds: str | None = None, arms: str | None = None, seeds: str | None = None,
    steps: int | None = None, pilot: bool = False, long: bool = False, costly: bool = False, method: str | None = None,
    out: Path | None = None, dry_run: DryRun = False, jobs: Jobs = 0,
) -> CellRequest:  # fmt: skip
    """Worlds in which the worth of every rare token is known: five arms a world, the sweeps over q and tau_p in one.

    The same command resumes; other --worlds, --arms and --seeds add to its folder. docs/testbed.md has the claims that
    its records judge.

    Args:
        quick: Short form to try the path: one world, two arms, one seed, 2 steps, 2 samples of 16 problems.
        worlds: Out of paper,mixed,inverted; with --costly out of costly,costly-inverted. Default: all.
        arms: Such as justrl,stapo,stapo-q0.5; a wrong name lists them. Default: all but those at five times the
            learning rate.
        seeds: Such as 10,11. Default: 10 to 14; 100 to 102 with --pilot, 20 to 25 with --long, 30 to 35 with
            --costly, 10 to 12 with --method.
        steps: Training steps. Default: 20, with --pilot 30, with --long 300, with --costly 40, with --quick 2.
        pilot: Other seeds, which judge nothing: the spread between seeds, from which the seeds needed follow.
        long: JustRL and STAPO in paper at two learning rates; validation every 25 steps, no evaluation.
        costly: Six arms where spurious words cost accuracy on longer problems, and four in a control with spurious
            words at high entropy; validation, no evaluation.
        method: Train this method (a name, or a YAML overlay) in the worlds, and print it beside the committed arms.
        out: Where everything goes. Default: runs/testbed, or runs/testbed-pilot, -long, -costly or -METHOD.

    Raises:
        BadInput: an unknown world or arm, a method's file that is not there, or options that exclude each other.
    """
    if pilot + long + costly + (method is not None) > 1 or (method and arms):
        raise BadInput("--pilot, --long, --costly and --method exclude each other, and --method --arms",
                       next_step="name one of them")  # fmt: skip
    part: plan.Part = "pilot" if pilot else "long" if long else "costly" if costly else "main"
    if pilot and (judging := sorted({*(seeds_of(seeds) or ())} & {*plan.SEEDS["main"]})):
        raise BadInput("a pilot's seeds judge nothing: they are others than those that do",
                       found=f"--seeds {','.join(map(str, judging))}",
                       next_step="leave out --seeds, or name others")  # fmt: skip
    own = None if method is None else _own_arm(method)
    of = plan.COSTLY if costly else plan.WORLDS
    chosen, names = QUICK_METHODS if quick else None, tuple(of)[: 1 if quick else None]
    if arms is not None:
        known = [a.name for a in plan.COSTLY_ARMS] if costly else plan.ARMS
        chosen = tuple(meant("arm", a, known, "--arms justrl,stapo") for a in arms.split(","))
    if worlds is not None:
        found = (
            meant("world", w, of, f"--worlds {','.join(of)}{'' if costly else ', or --costly'}")
            for w in worlds.split(",")
        )
        names = tuple(dict.fromkeys(found))
    default = plan.SEEDS[part][:1] if quick else plan.METHOD_SEEDS if own else plan.SEEDS[part]
    arms_in = {w: [own] if own else plan.arms_of(w, part, chosen) for w in names}
    every = plan.VALIDATION_EVERY.get(part, 0)  # validating would take longest; where it is done nothing is evaluated

    def model(arm: plan.Arm, world: str, seed: int = 0) -> Model:
        return Model(arm.name, plan.SIZES[world], seed, arm.choices, world, every, not every, (BENCHMARK,))

    models = [model(plan.Arm(labels.BASE, ()), w) for w in names if arms_in[w]]
    # seed by seed: what is there after an interruption can be compared
    models += [model(a, w, s) for s in seeds_of(seeds) or default for w in names for a in arms_in[w]]
    if not models:
        raise BadInput("no such arm in these worlds", found=f"{arms or part} in {','.join(names)}",
                       next_step=f"add {next(iter(of))} to --worlds, which has every arm")  # fmt: skip
    count = steps if steps is not None else plan.QUICK_STEPS if quick else plan.STEPS[part]
    label = own.name if own else ""
    folder = "-".join(["testbed", *filter(None, [label or part.removeprefix("main")])])
    overlay = _sha256(Path(method)) if method and label != method else ""
    same, out = {"part": part, "standing": label, "standing_sha256": overlay}, out or Path("runs") / folder
    return CellRequest("testbed", Carried(), tuple(models), count, quick, out, same, programs(), dry_run,
                       user_method=label, model_by_model=True, pages=False, jobs=jobs)  # fmt: skip


def _own_arm(method: str) -> plan.Arm:
    """A method that its records name after its overlay, or after the overlay's file."""
    file = Path(method)
    is_file = file.suffix in (".yaml", ".yml")
    label, value = (file.stem, f"{file.resolve()}") if is_file else (method, method)
    if is_file and not file.is_file():
        raise BadInput("no such overlay of a method", found=method, next_step="stapo-train methods lists the names")
    taken = (*plan.ARMS, *labels.METHOD_LABELS) if is_file else (labels.BASE,)
    if label in taken or not _LABEL.fullmatch(label):
        raise BadInput("this label of a method is taken, or has letters that a label cannot have", found=label,
                       expected="small letters, digits, dots, dashes and underscores, and of a file a new name",
                       next_step="a file such as my-method.yaml; stapo-train methods lists the names")  # fmt: skip
    return plan.Arm(label, (f"method={value}", f"run.method={label}"))


def _sha256(overlay: Path) -> str:
    """Of an overlay and of the file of its selector, where it names one (FILE.py:FUNCTION, beside it)."""
    text = overlay.read_bytes()
    named = [overlay.parent / f for f in re.findall(r"name:\s*['\"]?([^'\"\s:]+):\w", text.decode(errors="replace"))]
    return hashlib.sha256(text + b"".join(f.read_bytes() for f in named if f.is_file())).hexdigest()
