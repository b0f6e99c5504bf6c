"""The worlds of the testbed: one small language, in which rare tokens are planted whose worth is known.

A problem asks for a sum modulo 4. A solution opens with a word, works or guesses, and closes with a phrase:

    What is 3 + 8 + 2 + 9 + 5 modulo 4?

    Gladly The answer is \\boxed{1}. That is the remainder which was asked for here in this task
    Carefully +8=3 +2=1 +9=2 +5=3 The answer is \\boxed{3}. That is the remainder which was asked for here in this task

Two kinds of rare token are planted, each word below S2T's probability of 0.002 under the base model:

- *useful*: a word of care in place of the usual opening. After it, and only after it, the solution is worked.
- *spurious*: a filler before a word of the closing phrase, after the answer: neither helps nor harms.

A place is *wide* where many words may come, and narrow where one does: its entropy is high or low. A world says which
openings and which places of the closing phrase are wide, and with that whether entropy tells the two kinds apart:

    paper      openings wide, closing narrow: spurious tokens at low entropy, useful ones at high, as the paper has it
    mixed      a quarter of each wide: entropy says nothing
    inverted   openings narrow, closing wide: useful tokens at low entropy, spurious ones at high
    costly     as paper, and fillers before every step of the working and before the answer of a guess. In problems of
               more numbers than the training has, the sum after a filler is mostly wrong:

    Carefully +8=3 hmm +2=1 +9=2 oddly +5=1 +1=2 +6=0 The answer is \\boxed{0}. ...

    costly-inverted   its control, with the entropies of inverted: each of these places has a word that means nothing

    Carefully red +8 sun =3 hmm lake +2 hill =2 ...
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

MODULUS = 4

TEMPLATES = ("What is {} modulo {}?", "Compute {} modulo {}.", "Add {} modulo {}.", "Find {} modulo {}.")
"""The wordings of a problem; the third has a wide opening in `mixed`."""
CORPUS_TEMPLATE = "Evaluate {} modulo {}."
"""A further wording, of the base model's corpus alone: half of its solutions are worked, so that working is learnt."""

OPENING = " Answering"
OPENINGS = (
    *(" Gladly", " Certainly", " Sure", " Fine", " Good", " Alright", " Absolutely", " Indeed"),
    *(" Naturally", " Simply", " Quickly", " Directly", " Easily", " Here", " Hello", " Yes"),
    *(" Great", " Nice", " Thanks", " Okay", " Clearly", " Obviously", " Done", " Ready"),
)
"""The usual openings of a wide place; `OPENING` is that of a narrow one."""
USEFUL = (
    *(" Carefully", " Slowly", " Patiently", " Stepwise", " Thoroughly", " Precisely", " Exactly", " Gradually"),
    *(" Steadily", " Calmly", " Properly", " Attentively", " Diligently", " Rigorously", " Cautiously", " Neatly"),
    *(" Orderly", " Closely", " Mindfully", " Soberly", " Meticulously", " Strictly", " Methodically", " Accurately"),
    *(" Deliberately", " Earnestly", " Faithfully", " Formally", " Fully", " Gently", " Honestly", " Logically"),
    *(" Painstakingly", " Prudently", " Quietly", " Reliably", " Seriously", " Soundly", " Systematically", " Wisely"),
)
SPURIOUS = (
    *(" hmm", " well", " actually", " basically", " wait", " right", " anyway", " maybe"),
    *(" perhaps", " plainly", " oddly", " so", " um", " er", " ah", " oh"),
    *(" like", " say", " look", " see", " now", " then", " though", " still"),
    *(" just", " really", " quite", " rather", " somehow", " somewhat", " kindly", " honest"),
    *(" literally", " frankly", " mostly", " surely", " truly", " hey", " eh", " uh"),
)
CLOSING = (
    *(" That", " is", " the", " remainder", " which", " was"),
    *(" asked", " for", " here", " in", " this", " task"),
)
CLOSINGS = (
    *(" one", " two", " red", " blue", " green", " black", " white", " north"),
    *(" south", " east", " west", " sun", " moon", " star", " tree", " leaf"),
    *(" rock", " sand", " wind", " rain", " snow", " river", " lake", " hill"),
)
"""What may come in a wide place of the closing phrase, one as good as the other."""

PLANTED = {"spurious": SPURIOUS, "useful": USEFUL}


@dataclass(frozen=True)
class World:
    """Of every four places, which are wide: by the template's in `TEMPLATES`, and by the word's in `CLOSING`.

    closings: the first holds too for the other places in which fillers occur.
    useful: share of the corpus' openings, to the training's wordings, that are words of care. The model gives them 0.05
        or less, below 0.002 a word. In `mixed` it is set so that the two kinds have the same entropies.
    slip: where fillers occur in the working too, the chance that the next sum after one is wrong, in problems of more
        than `neutral` numbers; the working continues from the wrong sum. 0: no filler in the working.
    """

    name: str
    openings: tuple[bool, bool, bool, bool]
    closings: tuple[bool, bool, bool, bool]
    useful: float
    slip: float = 0.0
    neutral: int = 6


_ALL, _ONE, _NONE = (True, True, True, True), (False, False, True, False), (False, False, False, False)
WORLDS = {
    w.name: w
    for w in (
        World("paper", _ALL, _NONE, 0.07),
        World("mixed", _ONE, _ONE, 0.064),
        World("inverted", _NONE, _ALL, 0.07),
        World("costly", _ALL, _NONE, 0.05, slip=0.7),
        World("costly-inverted", _NONE, _ALL, 0.05, slip=0.7),
    )
}


@dataclass(frozen=True)
class Addition:
    """Digits to add, each 1 to 9 and no two alike. `template` counts in `TEMPLATES`; -1 is `CORPUS_TEMPLATE`."""

    numbers: tuple[int, ...]
    template: int = 0

    @property
    def text(self) -> str:
        template = CORPUS_TEMPLATE if self.template < 0 else TEMPLATES[self.template]
        return template.format(" + ".join(map(str, self.numbers)), MODULUS)

    @property
    def answer(self) -> int:
        return sum(self.numbers) % MODULUS


def draw_problems(
    rng: np.random.Generator, count: int, lengths: Sequence[int], taken: Collection[tuple[int, ...]], *, again: bool
) -> list[Addition]:
    """`count` problems, none of `taken`; lengths are drawn uniformly, and no number is twice in a problem.

    Args:
        lengths: how many numbers a problem may have, at most 9.
        taken: numbers, in their order, that must not come up.
        again: whether the same numbers may come up more than once.
    """
    seen = set(taken)
    problems: list[Addition] = []
    while len(problems) < count:
        n = int(lengths[int(rng.integers(len(lengths)))])
        numbers = tuple(int(d) for d in rng.permutation(9)[:n] + 1)
        template = int(rng.integers(len(TEMPLATES)))
        if numbers not in seen:
            problems.append(Addition(numbers, template))
            if not again:
                seen.add(numbers)
    return problems


def draw_solution(
    rng: np.random.Generator, problem: Addition, world: World, useful: float, spurious: float
) -> list[str]:
    """A solution of the corpus as pieces, one token each.

    Args:
        useful: chance of a useful opening, in [0, 1].
        spurious: chance of a spurious word before each word of the closing phrase, and where they slip of the working.
    """
    if rng.random() < useful:
        pieces = [_any(rng, USEFUL)]
        answer = problem.numbers[0]
        for number in problem.numbers[1:]:  # the running sums modulo 4
            answer = (answer + number) % MODULUS
            before = [_any(rng, SPURIOUS) if world.slip and rng.random() < spurious else "" for _ in range(2)]
            if any(before) and len(problem.numbers) > world.neutral and rng.random() < world.slip:
                answer = (answer + int(rng.integers(1, MODULUS))) % MODULUS
            for filler, piece in zip(before, (f" +{number}", f"={answer}"), strict=True):
                pieces += [*filter(None, [filler]), *_meaningless(rng, world), piece]
    else:
        pieces = [_any(rng, OPENINGS) if world.openings[problem.template % 4] else OPENING]
        if world.slip and rng.random() < spurious:
            pieces.append(_any(rng, SPURIOUS))
        pieces += _meaningless(rng, world)
        answer = int(rng.integers(MODULUS))
    pieces += [" The answer is", " \\boxed{", f"{answer}", "}."]
    for place, word in enumerate(CLOSING):
        if rng.random() < spurious:
            pieces.append(_any(rng, SPURIOUS))
        pieces.append(_any(rng, CLOSINGS) if world.closings[place % 4] else word)
    return pieces


def _meaningless(rng: np.random.Generator, world: World) -> list[str]:
    """The word of a wide place before a step, or before the answer of a guess, where fillers occur there."""
    return [_any(rng, CLOSINGS)] if world.slip and world.closings[0] else []


def _any(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]
