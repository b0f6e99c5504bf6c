"""The figure of the theorem's bounds: what stands in it is the record's."""

from __future__ import annotations

from stapo_repro.figures.canvas import Drawn
from stapo_repro.pages import outputs
from stapo_results.schema import Theory, TheoryQuadrant

FULL = {
    "norm_mean": 0.871,
    "lower_median": 0.96,
    "lower_q05": 0.91,
    "upper_median": 1.02,
    "upper_q95": 1.11,
    "lower_says_nothing_share": 0.0,
    "unresolved": 0.0,
}


def record(size: str = "mini", tokens: int = 132) -> Theory:
    about = {"kind": "train", "method": "stapo", "size": size, "seed": "0", "steps": "10", "code_commit": "c"}
    negative = {"lower_median": -1.0, "lower_q05": -3.0, "lower_says_nothing_share": 0.83, "unresolved": 8000.0}
    quadrants = [
        TheoryQuadrant(quadrant="p < tau_p, H < tau_h", tokens=tokens, values=FULL if tokens else {}),
        TheoryQuadrant(quadrant="p < tau_p, H >= tau_h", tokens=0),
        TheoryQuadrant(
            quadrant="p >= tau_p, H < tau_h",
            tokens=9000 if tokens else 0,
            values=(FULL | negative) if tokens else {},
        ),
    ]
    return Theory(run_id="a", seed=0, draws=1, vocabularies=[2], rows=[], source_run="b", source_about=about,
                  quadrants=quadrants)  # fmt: skip


def drawn(*theory: Theory) -> list[Drawn]:
    return outputs.draw([], [], theory, ["bounds"])


def test_norms_counts_and_empty_quadrants_are_shown() -> None:
    (figure,) = drawn(record())
    svg = figure.files["svg"].decode()
    assert figure.name == "miniature_bounds"
    assert "(miniature)" in figure.title
    assert "the STAPO train run b, 10 steps of the miniature: a tiny model" in figure.caption
    for text in ("0.871  (132)", "0.871  (9,000)", "≤ 0 for 83%; 1,000 resolved"):
        assert f"<!-- {text} -->" in svg
    assert svg.count("<!-- no token -->") == 2  # one quadrant, both panels


def test_a_model_of_the_papers_is_no_miniature_and_nothing_is_drawn_without_tokens() -> None:
    first, second = drawn(record("qwen3-8b"), record("qwen3-8b"))
    assert (first.name, second.name) == ("bounds", "bounds_2")
    assert "miniature" not in (first.title + first.caption).lower()
    assert drawn(record(tokens=0)) == []
    assert drawn() == []
