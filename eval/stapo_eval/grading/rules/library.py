"""math-verify 0.9.0: the algebra of last resort, and a preset of its own. Runs in killable processes only."""

from __future__ import annotations

from functools import lru_cache

from stapo_results.answers import strip_boxes


@lru_cache(maxsize=1024)
def _parsed(text: str) -> list:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = strip_boxes(text.strip()).replace("$", " ").replace("np.", "\\").strip()
    config = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    # no timeout of math-verify's own: it rests on SIGALRM, which is not a limit
    return parse(f"${text}$", extraction_config=config, parsing_timeout=0, raise_on_error=True)


def verify(gold: str, answer: str, unit: str = "") -> bool:
    """math-verify's verdict on two extracted answers; its parse of a gold is kept.

    Raises:
        Exception: whatever math-verify or sympy raise.
    """
    from math_verify import verify as compare

    if unit := unit.strip().strip("$"):
        gold, answer = gold.strip().removesuffix(unit), answer.strip().removesuffix(unit)
    parsed_gold, parsed_answer = _parsed(gold), _parsed(answer)
    if not parsed_gold or not parsed_answer:
        return False
    return bool(compare(parsed_gold, parsed_answer, timeout_seconds=0, raise_on_error=True))


@lru_cache(maxsize=1024)
def _gold(gold: str) -> list:
    from math_verify import parse

    return parse(gold if "$" in gold or "\\boxed" in gold else f"${gold}$", parsing_timeout=0)


def grade(gold: str, response: str) -> tuple[bool | None, str | None]:
    """math-verify's own reading of a whole response, with its defaults: (verdict, what it extracted).

    (None, None) where it found no answer.
    """
    from math_verify import parse
    from math_verify import verify as compare

    found = parse(response, parsing_timeout=0)
    if not found:
        return None, None
    return bool(compare(_gold(gold), found, timeout_seconds=0)), str(found[-1])
