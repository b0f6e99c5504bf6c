r"""Finding the final answer in a response: the reward and the grader read the same box.

Pure text functions without a dependency, linear in the length of the text: a response of a million characters or ten
thousand open braces costs milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""What every prompt ends with, in training and evaluation (JustRL's two scripts)."""

# A box command (also with its backslash doubled, as in text that was escaped twice), an escaped character, or a brace.
_TOKEN = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*)|\\.|(?P<open>\{)|(?P<close>\})", re.S)
_BARE = re.compile(r"[^\s${}]+")
_LONGEST_BARE = 1000  # one box without braces may run into the next
_HELD = re.compile(r"[\dA-Z\\]")  # by an answer without braces, but not by \\boxed in "with \\boxed as asked"
_WHOLE_BOX = re.compile(r"\s*\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*\{?")


def _boxes(text: str) -> tuple[list[tuple[int, int]], int]:
    """((start, end) of the contents of closed boxes in order of their start, start of the last unclosed box or -1)."""
    boxes: list[tuple[int, int]] = []
    braces: list[tuple[int, bool]] = []  # position after an open brace, and whether it opens a box
    opens_box = -1  # where the brace of the box command just read has to stand
    bare_end = -1  # of the last box without braces, were it not cut: others in it end there too
    for m in _TOKEN.finditer(text):
        if m.lastgroup == "box":
            if text.startswith("{", m.end()):
                opens_box = m.end()
                continue
            if m.end() >= bare_end and (bare := _BARE.match(text, m.end())):
                bare_end = bare.end()
            if m.end() < bare_end:
                boxes.append((m.end(), min(bare_end, m.end() + _LONGEST_BARE)))
        elif m.lastgroup == "open":
            braces.append((m.end(), m.start() == opens_box))
        elif m.lastgroup == "close" and braces:
            start, box = braces.pop()
            if box:
                boxes.append((start, m.start()))
    unclosed = max((start for start, box in braces if box), default=-1)
    return sorted(boxes), unclosed


def _outermost(text: str) -> tuple[list[tuple[int, int]], int]:
    """`_boxes` without those inside another, and without boxes that only name the command where one holds an answer."""
    boxes, unclosed = _boxes(text)
    outer: list[tuple[int, int]] = []
    for start, end in boxes:
        if not outer or start > outer[-1][1]:
            outer.append((start, end))
    full = [(i, end) for i, end in outer if (text[i:end].strip() if text[i - 1] == "{" else _HELD.search(text, i, end))]
    return full or outer, unclosed


def last_boxed(text: str) -> str | None:
    r"""Contents of the last ``\boxed{...}`` or ``\fbox{...}``, stripped of white space at both ends.

    Braces nest, escaped braces do not count, ``\boxed 5`` without braces gives what follows up to the next white
    space. Of boxes inside one another the outermost counts, and a box around nothing but a box is taken off.

    Returns:
        The contents (possibly ""), or None where there is no box or the last box is never closed: a response that
        was cut off inside its final answer has none.
    """
    boxes, unclosed = _outermost(text)
    if not boxes or unclosed > boxes[-1][1]:
        return None
    start, end = boxes[-1]
    content = text[start:end]
    if text[start - 1] != "{":  # without braces a sentence's end sticks to the answer
        content = content.rstrip(".,;:")
    return strip_boxes(content).strip()


# what may stand between the boxes of one answer in parts: "\\boxed{-2} and \\boxed{1}"
_CONNECTIVE = re.compile(
    r"(?:[\s$,;.&}]|\\[()\[\],; ]|\\q?quad(?![A-Za-z])|\\(?:text|mathrm|textbf)\{|(?<![A-Za-z])(?:and|or)(?![A-Za-z]))*"
)
_LONGEST_CONNECTIVE = 60
_MOST_BOXES = 64


def final_boxes(text: str) -> list[str]:
    r"""The last box and those right before it that only a comma, "and" or "or" sets apart, in order.

    One item where the answer stands in one box, none where there is no closed last box (see `last_boxed`).
    """
    last = last_boxed(text)
    if last is None:
        return []
    closed, answers = _outermost(text)[0], [last]
    for (first, before), (start, _) in zip(closed[-2:-_MOST_BOXES:-1], closed[:-_MOST_BOXES:-1], strict=False):
        between = text[before + 1 : start]
        if len(between) > _LONGEST_CONNECTIVE or not _CONNECTIVE.fullmatch(between[: between.rfind("\\")].rstrip("\\")):
            break
        answers.insert(0, strip_boxes(text[first:before]).strip())
    return answers


_ANSWER = re.compile(
    r"(?:\banswer\b[\s*]{0,8}(?:is\b[\s*:]{0,8}|[:=][\s*]{0,8})|^#### (?=[-$\d.,/]{0,40}\d$))([^\s*:][^\n]{0,499})",
    re.I | re.M,
)
# a sentence's end, a clause that says no more of the value, a token that ends a turn
_LINE_END = re.compile(
    r"\.\s+(?=[A-Z])|,\s+(?:which is the|so|as (?:required|desired|asked)|in total)\b|<\|\w+\|>|</?s>|<eos>"
)
_LAST_SIGNS = re.compile(r"(?:[\s*]|(?<!\.)\.)+$")
_TAIL = 20_000  # characters of a response in which an answer line is looked for


def answer_line(text: str) -> str | None:
    """What follows the last "Answer: ..." or "The answer is ...", up to the end of its line or sentence; None without.

    For responses that were not asked for a box.
    """
    text, line = text[-_TAIL:], ""
    while answers := _ANSWER.findall(text):  # "Final Answer: The final answer is ..."
        text = line = answers[-1]
    return _LAST_SIGNS.sub("", _LINE_END.split(line)[0]) or None


def strip_boxes(text: str) -> str:
    r"""The text without boxes that enclose all of it: ``\boxed{\boxed{7}}`` gives ``7``."""
    low, high = 0, len(text)
    for start, end in _boxes(text)[0]:
        box = _WHOLE_BOX.match(text, low, high)
        if not box or start != box.end() or text[end:high].strip() not in ("", "}"):
            break
        low, high = start, end
    return text[low:high] if high - low < len(text) else text


def normalise_gold(gold: str | Sequence[str]) -> str:
    """The form of a gold answer that identifies a benchmark's copy: without boxes, dollars, white space and a
    sentence's full stop.

    Several answers are joined by commas, which is how copies that keep them in one string write them.
    """
    if not isinstance(gold, str):
        return ",".join(normalise_gold(g) for g in gold)
    return re.sub(r"[\s$]+", "", strip_boxes(gold.replace("$", "").strip())).rstrip(".")
