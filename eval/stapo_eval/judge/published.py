"""The published prompts of the judge: where each is, its hash, and how one is read. No text of theirs is here:
neither repository has a licence file for it.

A prompt is the value of a variable in a file of a public repository at a fixed commit. It is parsed out of that file,
which is never run, and used only if its sha256 is the registered one.
"""

from __future__ import annotations

import ast
import hashlib
import os
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import JudgeMode

HOST = "https://raw.githubusercontent.com"
_UNPUBLISHED = "; --judge-prompt-unpublished asks in this one, and the scores say so"
FIELDS = ("question", "gold_answer", "llm_response")
MOST_BYTES = 1_000_000  # of a download; what is longer is cut, and then no published prompt
REPLY_TOKENS = 2048  # as CompassVerifier's README and JustRL's script have it
# seen as the name of the hub cache's snapshot in a public repository; the hash of the weights is recorded beside it
REVISIONS = {"opencompass/CompassVerifier-3B": "27d6d660bdf6c2b8a9f45906d4b76c508af65ab0"}


@dataclass(frozen=True)
class PublishedPrompt:
    """A published prompt: the value of `variable` in a repository's file."""

    repository: str
    commit: str
    path: str
    variable: str
    sha256: str

    @property
    def url(self) -> str:
        return f"{HOST}/{self.repository}/{self.commit}/{self.path}"

    def __str__(self) -> str:
        return f"{self.variable} of {self.repository}@{self.commit[:8]}:{self.path}"


_PLAIN = "aee9c27520639ca543f0b5077164dc32c1976be0f16c87bee7055f3b7ba45e72"
_REASONED = "3d7456fb730b7517ca1f3bc1a28a3cc8847522ea6cc721a4d709f28bd07b4a10"
_COMPASS = ("open-compass/CompassVerifier", "2d7cba6df0b21f9c6121786ac1e5770c68473598", "src/prompts.py")
_JUSTRL = ("thunlp/JustRL", "cf444e9920b599c865ee6742c88dc162dcabcec2", "evals/grade.py")
# of each mode, the default first; JustRL's copy is CompassVerifier's text to the letter
PUBLISHED: dict[JudgeMode, tuple[PublishedPrompt, ...]] = {
    "compass": (
        PublishedPrompt(*_COMPASS, "CV_PROMPT", _PLAIN),
        PublishedPrompt(*_COMPASS, "CV_COT_PROMPT", _REASONED),
    ),
    "justrl-exact": (PublishedPrompt(*_JUSTRL, "CV_PROMPT", _PLAIN),),
}


@dataclass(frozen=True)
class JudgePrompt:
    """A text with the published placeholders.

    Attributes:
        source: where the text was published; "" for one that was not.
        reply_tokens: the longest reply.
    """

    text: str
    source: str = ""
    reply_tokens: int = REPLY_TOKENS

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"sha256:{self.sha256} {self.source or 'not published'}"


# what a judge of the miniature is shown, whose word does not count: the three fields and no instruction
STAND_IN = JudgePrompt("{question}\n\n{gold_answer}\n\n{llm_response}", "shown to a stand-in", reply_tokens=3)


def find_prompt(given: str, mode: JudgeMode, *, unpublished: bool = False) -> JudgePrompt:
    """The prompt of a mode.

    Args:
        given: a text file, a .py file (then perhaps ":VARIABLE"); if "", $STAPO_JUDGE_PROMPT, else it is fetched.
        unpublished: take a text that is not registered.

    Raises:
        BadInput: no prompt is there, or not a published one.
    """
    if unpublished and mode == "justrl-exact":
        raise BadInput(
            "JustRL's script asks in the published prompt alone",
            found="--judge-prompt-unpublished",
            next_step="leave it out, or use --judge-mode compass",
        )
    default = PUBLISHED[mode][0]
    if not (given := given or os.environ.get("STAPO_JUDGE_PROMPT", "")):
        return _checked(_fetched(default), mode, default.url)
    name, colon, variable = given.rpartition(".py:")
    path = Path(f"{name}.py" if colon else given)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput("the judge's prompt cannot be read", found=f"{path}: {e}", next_step=_next_step()) from None
    if path.suffix == ".py":
        text = _constant(text, variable if colon else default.variable, given)
    return _checked(text, mode, given, unpublished=unpublished)


def _constant(code: str, variable: str, where: str) -> str:
    """The text that Python code assigns to a variable; the code is parsed and never run."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise BadInput(f"{where} is no Python file", found=e, next_step=_next_step()) from None
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))) if name == variable:
                return value
    raise BadInput(f"{where} gives {variable} no text", expected=f'{variable} = "..."', next_step=_next_step())


def _checked(text: str, mode: JudgeMode, where: str, *, unpublished: bool = False) -> JudgePrompt:
    known = {s.sha256: s for s in PUBLISHED[mode]}
    if source := known.get(JudgePrompt(text).sha256):
        return JudgePrompt(text, str(source))
    if not unpublished:
        raise BadInput(
            f"{where} holds no published prompt of the mode {mode}",
            found=f"sha256 {JudgePrompt(text).sha256}",
            expected=" or ".join(f"{s.sha256}, {s}" for s in known.values()),
            next_step=_next_step() + ("" if mode == "justrl-exact" else _UNPUBLISHED),
        )
    try:
        found = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError:
        found = ["braces that do not match"]
    if sorted(found) != sorted(FIELDS):
        raise BadInput(
            f"{where} is no prompt for a judge",
            found=", ".join(found) or "no placeholder",
            expected=f"once each {', '.join(f'{{{x}}}' for x in FIELDS)}; other braces doubled",
            next_step="change the file",
        )
    return JudgePrompt(text)


def _fetched(source: PublishedPrompt) -> str:
    """The prompt at its commit, kept in the cache by its hash, so that it is fetched once."""
    from huggingface_hub import constants

    cache = store.cache_folder() / f"{source.sha256}.txt"
    if cache.is_file() and JudgePrompt(text := cache.read_text(errors="replace")).sha256 == source.sha256:
        return text
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        with urllib.request.urlopen(source.url, timeout=60.0) as response:
            text = _constant(response.read(MOST_BYTES).decode(), source.variable, source.url)
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(
            "the judge's published prompt is not on this machine, and no other wording is asked in its place",
            found=f"{type(e).__name__}: {e}",
            expected=str(source),
            next_step=_next_step(source),
        ) from None
    if JudgePrompt(text).sha256 == source.sha256:
        with suppress(OSError):  # a home that cannot be written: it is fetched again
            store.write_atomic(cache, text)
    return text


def _next_step(source: PublishedPrompt = PUBLISHED["compass"][0]) -> str:
    name = Path(source.path).name
    return f"where there is a network: curl -O {source.url}   then --judge-prompt {name}, or STAPO_JUDGE_PROMPT={name}"
