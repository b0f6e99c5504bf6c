"""Rounding and GRIM as properties: what rounding gives is accepted, what lies beside a coarse step is not."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro.audit import grim
from stapo_repro.audit.grim import Printed

SMALL = st.integers(1, 2_500)
DECIMALS = st.integers(0, 3)


def _printed(k: int, n: int, decimals: int, how: grim.Rounding) -> Printed:
    units = grim.round_to(Fraction(100 * k, n), decimals, how)
    return Printed.of(grim.as_text(units, decimals))


@given(SMALL, st.data(), DECIMALS, st.sampled_from(grim.NEAREST))
def test_every_rounded_fraction_is_possible(n, data, decimals, how):
    k = data.draw(st.integers(0, n))
    printed = _printed(k, n, decimals, how)
    assert k in grim.numerators(printed, n, how)
    assert grim.kind_of(printed, n) == "possible"


@given(SMALL, st.data(), DECIMALS)
def test_cut_and_raised_digits_are_never_called_impossible(n, data, decimals):
    k = data.draw(st.integers(0, n))
    assert grim.kind_of(_printed(k, n, decimals, "truncation"), n) != "impossible"
    assert grim.kind_of(_printed(k, n, decimals, "ceiling"), n) != "impossible"


@given(st.integers(1, 2_500), st.data())
def test_beside_a_coarse_step_is_refused(n, data):
    # steps of at least 4 units of 0.01: one unit beyond half up is no nearest value, two units none at all
    k = data.draw(st.integers(0, n - 1))
    units = grim.round_to(Fraction(100 * k, n), 2, "half up")
    assert grim.kind_of(Printed.of(grim.as_text(units + 1, 2)), n) != "possible"
    beyond = Printed.of(grim.as_text(units + 2, 2))
    assert grim.kind_of(beyond, n) == "impossible"
    assert grim.neighbours(beyond, n) == [grim.nearest(Fraction(100 * i, n), 2) for i in (k, k + 1)]


@given(st.integers(1, 200), st.integers(0, 1000), st.sampled_from(grim.ROUNDINGS))
def test_numerators_are_those_that_counting_finds(n, units, how):
    printed = Printed.of(grim.as_text(units, 1))
    counted = [k for k in range(n + 1) if grim.round_to(Fraction(100 * k, n), 1, how) == units]
    assert list(grim.numerators(printed, n, how)) == counted


@pytest.mark.parametrize(
    ("percent", "how", "units"),
    [
        (Fraction("53.125"), "half even", 5312), (Fraction("53.125"), "half up", 5313),
        (Fraction("53.135"), "half even", 5314), (Fraction("53.125"), "truncation", 5312),
        (Fraction("53.125"), "ceiling", 5313), (Fraction(200, 3), "half even", 6667), (Fraction(0), "ceiling", 0),
        (Fraction("53.1250001"), "half even", 5313), (Fraction(100), "half up", 10000),
    ],
)  # fmt: skip
def test_rounding_at_the_edges(percent, how, units):
    assert grim.round_to(percent, 2, how) == units
