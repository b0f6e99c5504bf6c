"""The one display of long commands and the one format of durations."""

from __future__ import annotations

import io

import pytest

from stapo_results import terminal
from stapo_results.terminal import Display, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0.0 s"),
        (4.56, "4.6 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (24 * 60 + 12, "24 min 12 s"),
        (3599.6, "1 h 0 min"),
        (3 * 3600 + 20 * 60, "3 h 20 min"),
        (24 * 3600 - 20, "1 d 0 h"),
        (52 * 3600, "2 d 4 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_than_on_a_terminal_whole_lines_at_most_one_a_minute(clock: list[float]) -> None:
    stream, made = io.StringIO(), []

    def line() -> str:
        made.append(clock[0])
        return f"at {clock[0]:.0f}"

    with Display(stream) as display:
        assert not display.is_live
        for seconds in (1, 59, 60, 61, 119, 121):
            clock[0] = 1000.0 + seconds
            display.show(line, share=0.5)
        display.say("a line that stays")
    assert stream.getvalue() == "at 1060\nat 1121\na line that stays\n"
    assert made == [1060.0, 1121.0], "a line is made only when it is shown"


def test_names_that_look_like_markup_are_shown_as_they_are(clock: list[float]) -> None:
    stream = io.StringIO()
    with Display(stream, live=True) as display:
        clock[0] += 1
        display.show("[red]model[/red]")
        display.say("[bold]x[/bold]")
    assert "[red]model[/red]" in stream.getvalue()
    assert "[bold]x[/bold]" in stream.getvalue()
