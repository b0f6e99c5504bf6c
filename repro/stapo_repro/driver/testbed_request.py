"""What the driver is asked for of the testbed: worlds, arms and seeds, or a method of one's own; values are checked."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from stapo_repro import labels
from stapo_repro.driver.request import QUICK_METHODS, Model, Request, at_least, names_of, parse_seeds
from stapo_repro.testbed import plan
from stapo_repro.testbed.plan import Part
from stapo_results.errors import BadInput

_NAME = re.compile(r"[a-z][a-z0-9.-]*")


def of_testbed(
    out: Path | None = None, *, part: Part = "main", quick: bool = False, worlds: str | None = None,
    arms: str | None = None, seeds: str | None = None, steps: int | None = None, method: str | None = None,
) -> Request:  # fmt: skip
    """The testbed, or a method of one's own in its worlds; None takes the default.

    Args:
        method: the name of an overlay, or a YAML file of one.

    Raises:
        BadInput: an unknown world or arm or one twice, a seed that is no number, fewer than one step, a method's file
            that is not there, or options that exclude each other.
    """
    if method is not None and (arms is not None or part != "main"):
        raise BadInput("--method trains that method alone", found="--arms, --pilot or --long beside it",
                       next_step="leave them out: the committed arms stand beside it")  # fmt: skip
    chosen = None if arms is None else names_of("--arms", arms, plan.ARMS)
    chosen = QUICK_METHODS if quick and chosen is None else chosen
    own = None if method is None else _own_arm(method)
    names = tuple(labels.WORLDS)[:1] if quick else tuple(labels.WORLDS)
    names = names if worlds is None else names_of("--worlds", worlds, labels.WORLDS)
    default = plan.SEEDS[part][:1] if quick else plan.METHOD_SEEDS if own else plan.SEEDS[part]
    numbers = default if seeds is None else parse_seeds(seeds)
    if part == "pilot" and (judging := sorted({*numbers} & {*plan.SEEDS["main"]})):
        raise BadInput("the pilot's seeds judge nothing, so they are others than those that do", found=judging,
                       expected=f"none of {plan.SEEDS['main']}", next_step="leave --seeds out")  # fmt: skip
    arms_in = {w: [own] if own else plan.arms_of(w, part, chosen) for w in names}
    models = [Model(labels.BASE, labels.WORLDS[w], 0) for w in names if arms_in[w]]
    # seed by seed: what is there after an interruption can be compared
    models += [Model(a.name, labels.WORLDS[w], s, a.choices) for s in numbers for w in names for a in arms_in[w]]
    if not models:
        raise BadInput("no world has such an arm", found=f"--worlds {','.join(names)} --arms {arms or ''}".strip(),
                       expected="sweeps and long runs are of the world paper",
                       next_step="add paper to --worlds")  # fmt: skip
    count = steps if steps is not None else plan.QUICK_STEPS if quick else plan.STEPS[part]
    name = "-".join(["testbed", *([own.name] if own else [] if part == "main" else [part])])
    out, standing = out or Path("runs") / name, own.name if own else ""
    count = at_least("--steps", count, 1)
    sha256 = _sha256(Path(method)) if method and own and own.name != method else ""
    return Request("testbed", tuple(models), count, quick, out, part=part, standing=standing, standing_sha256=sha256)


def _sha256(overlay: Path) -> str:
    """Of an overlay and of the file that its selector stands in, where it names one (FILE.py:FUNCTION, beside it)."""
    text = overlay.read_bytes()
    named = [overlay.parent / f for f in re.findall(r"name:\s*['\"]?([^'\"\s:]+):\w", text.decode(errors="replace"))]
    return hashlib.sha256(text + b"".join(f.read_bytes() for f in named if f.is_file())).hexdigest()


def _own_arm(method: str) -> plan.Arm:
    """A method that its records name after its overlay, or after the overlay's file."""
    file = Path(method)
    if file.suffix not in (".yaml", ".yml"):
        if not _NAME.fullmatch(method) or method == labels.BASE:
            raise BadInput("this is no name of a method", found=method, expected="such as dapo, or a file NAME.yaml",
                           next_step="stapo-train methods lists the names")  # fmt: skip
        return plan.Arm(method, (f"method={method}", f"run.method={method}"))
    if not file.is_file():
        raise BadInput("no such overlay of a method", found=method, expected="a YAML file, or the name of a method",
                       next_step="stapo-train methods lists the names")  # fmt: skip
    if file.stem in (*plan.ARMS, *labels.METHOD_LABELS, *labels.NO_STYLE) or not _NAME.fullmatch(file.stem):
        raise BadInput("the file's name is the label of its records, and cannot be this one", found=method,
                       expected="a name of its own: a small letter, then small letters, digits, dots and dashes",
                       next_step=f"mv {method} my-method.yaml")  # fmt: skip
    return plan.Arm(file.stem, (f"method={file.resolve()}", f"run.method={file.stem}"))
