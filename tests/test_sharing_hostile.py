"""Damaged, tampered and hostile bundles: each is refused, says where, and writes nothing."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
from bundles import contents, forged, link, manifest_of, members, run_folder, zipped
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro.sharing import unpack as unpacking
from stapo_repro.sharing.pack import MANIFEST, pack
from stapo_repro.sharing.unpack import unpack
from stapo_results.errors import BadInput, RecordError

CELL = "mini/eval/stapo-s0/cells/stapo_mini_s0_step40_toy_t1.0_e0.json"
VERDICTS = "mini/eval/stapo-s0/verdicts.jsonl"
SAMPLES = "mini/eval/stapo-s0/samples.jsonl"
RUN = "mini/train/stapo-s0/run.json"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    pack([run_folder(folder / "runs" / "mini")], folder / "a.zip")
    return folder / "a.zip"


def refused(path: Path, into: Path, match: str | None = None) -> str:
    """What the refusal says; nothing may have been written."""
    with pytest.raises(RecordError, match=match) as e:
        unpack(path, into)
    assert not into.exists()
    assert not list(into.parent.glob(".*.unpacking"))
    assert e.value.next_step
    return str(e.value)


def changed(bundle: Path, target: Path, name: str, old: bytes, new: bytes) -> Path:
    """A forgery: one file of a real bundle edited, with every hash made to agree again."""
    there = members(bundle)
    del there[MANIFEST]
    assert there[name].count(old) >= 1
    there[name] = there[name].replace(old, new, 1)
    return forged(target, list(there.items()))


# damage


def flip(bundle: Path, folder: Path, at: int, bit: int) -> None:
    """Unpacks the bundle with one bit changed: refused, or the same content."""
    whole = bundle.read_bytes()
    (folder / "x.zip").write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:  # such as a member's time, which nobody reads
        unpack(folder / "x.zip", folder / "into")
    except RecordError:
        assert not (folder / "into").exists()
    else:
        packed = {name: data for name, data in members(bundle).items() if name != MANIFEST}
        assert contents(folder / "into") == packed


@given(st.data())
def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory, data
) -> None:
    at = data.draw(st.integers(0, bundle.stat().st_size - 1))
    flip(bundle, tmp_path_factory.mktemp("flip"), at, data.draw(st.integers(0, 7)))


@pytest.mark.parametrize("byte", range(22))
def test_any_flipped_bit_of_the_zips_end_record_is_found_or_changes_nothing(
    bundle: Path, tmp_path: Path, byte: int
) -> None:
    """It says where the list of members begins: a wrong place moves every member, also before the file's first byte."""
    for bit in range(8):
        (folder := tmp_path / str(bit)).mkdir()
        flip(bundle, folder, bundle.stat().st_size - 22 + byte, bit)


@given(st.data())
def test_cut_off_anywhere_is_found(bundle: Path, tmp_path_factory: pytest.TempPathFactory, data) -> None:
    whole = bundle.read_bytes()
    folder = tmp_path_factory.mktemp("cut")
    (folder / "x.zip").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    refused(folder / "x.zip", folder / "into")


def test_a_plain_zip_is_no_bundle(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as z:
        z.writestr("a.txt", "a")
    refused(tmp_path / "x.zip", tmp_path / "into")
    with pytest.raises(BadInput):
        unpack(tmp_path / "y.zip", tmp_path / "into")


# tampering: every hash agrees, and it is refused all the same


@pytest.mark.parametrize(
    ("name", "old", "new", "where"),
    [
        # toy-a's third sample is the first wrong one
        (VERDICTS, b'"correct":false', b'"correct":true', f"{VERDICTS}:3 (?s:.*)toy-a sample 2: 0 in the cell"),
        (CELL, b'"0000"', b'"1000"', "toy-c sample 0: 1 in the cell"),
        # verdicts of no sample, no problem, no cell
        (VERDICTS, b'"sample_index":0', b'"sample_index":4', f"{VERDICTS}:1 (?s:.*)nothing in the cell"),
        (VERDICTS, b'"toy-a"', b'"toy-x"', f"{VERDICTS}:1 (?s:.*)nothing in the cell"),
        (VERDICTS, b"/t1.0/", b"/t0.9/", f"{VERDICTS}:1 (?s:.*)nothing in the cell"),
        (SAMPLES, b'"schema_version":1', b'"schema_version":9', f"{SAMPLES}:1: (?s:.*)9"),
        (RUN, b'"run_id"', b'"runid"', RUN),
    ],
)
def test_a_record_that_was_changed_is_found(bundle: Path, tmp_path: Path, name, old, new, where) -> None:
    refused(changed(bundle, tmp_path / "x.zip", name, old, new), tmp_path / "into", where)


def test_missing_verdicts_are_found(bundle: Path, tmp_path: Path) -> None:
    line = members(bundle)[VERDICTS].splitlines(keepends=True)[0]
    path = changed(bundle, tmp_path / "x.zip", VERDICTS, line, b"")
    refused(path, tmp_path / "into", f"{VERDICTS}: (?s:.*)1 problems, such as toy-a")


def test_a_cell_that_contradicts_itself_is_found(bundle: Path, tmp_path: Path) -> None:
    path = changed(bundle, tmp_path / "x.zip", CELL, b'"temperature": 1.0', b'"temperature": 0.5')
    refused(path, tmp_path / "into", f"{CELL}: (?s:.*)temperature")


def with_another_cell(bundle: Path, target: Path, path: str, old: bytes, new: bytes) -> Path:
    """A forgery: a cell of a real bundle a second time at `path`, edited."""
    there = members(bundle)
    del there[MANIFEST]
    there[path] = there[CELL].replace(old, new)
    return forged(target, sorted(there.items()))


def test_a_cell_twice_is_taken_and_the_testbeds_is_another(bundle: Path, tmp_path: Path) -> None:
    equal = with_another_cell(bundle, tmp_path / "x.zip", "other/cells/x.json", b'"abc123"', b'"def456"')
    assert unpack(equal, tmp_path / "a")[1] == ["mini", "other"]
    apart = with_another_cell(bundle, tmp_path / "y.zip", "testbed/cells/x.json", b'"0000"', b'"0001"')
    assert unpack(apart, tmp_path / "b")[1] == ["mini", "testbed"]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (b'"schema_version":1,"step":0,"values":{"accuracy":0.25}', "metrics.jsonl:1"),
        (b'"schema_version":1,"step":1,"values":{"reward":NaN}', "finite number"),
    ],
)
def test_a_trainings_line_that_cannot_be_is_found(bundle: Path, tmp_path: Path, new: bytes, said: str) -> None:
    name = "mini/train/stapo-s0/metrics.jsonl"
    lines = members(bundle)[name].splitlines(keepends=True)
    path = changed(
        bundle, tmp_path / "x.zip", name, lines[-1], b'{"schema_version":1,"step":0,"values":{}}\n{' + new + b"}\n"
    )
    refused(path, tmp_path / "into", f"(?s){name}:{len(lines) + 1}: .*{said}")


def test_content_that_is_not_the_manifests_is_found(bundle: Path, tmp_path: Path) -> None:
    """A whole zip, sealed again, with one reward changed to another of the same length: only its hash tells."""
    there = members(bundle)
    name = "mini/train/stapo-s0/metrics.jsonl"
    assert there[name].count(b"0.5") == 1
    there[name] = there[name].replace(b"0.5", b"0.9")
    (tmp_path / "x.zip").write_bytes(zipped(list(there.items())))
    assert "sha256" in refused(tmp_path / "x.zip", tmp_path / "into", f"^{name}")


# hostile names


@pytest.mark.parametrize("name", [
    "/etc/cron.d/run.json", "run/../../run.json", "../run.json", "run\\..\\run.json", "C:/run/run.json",
    "run/.git/run.json", "run//run.json", "run/./run.json", "run/" + "x" * 300 + "/run.json", "run/\n/run.json",
    "run/é/run.json", "run/x./run.json", "run/x /run.json", "run.json", "run/setup.py", "run/cells/evil.py",
    "run/hooks/run.json/x",
])  # fmt: skip
def test_names_that_no_bundle_has(tmp_path: Path, name: str) -> None:
    refused(forged(tmp_path / "x.zip", [(name, b"{}")]), tmp_path / "into", "plain path")
    assert {p.name for p in tmp_path.iterdir()} == {"x.zip"}


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    entry, target = link("run/run.json", "/etc/passwd")
    data = zipped([(MANIFEST, manifest_of([("run/run.json", target)])), (entry, target)])
    (tmp_path / "x.zip").write_bytes(data)
    refused(tmp_path / "x.zip", tmp_path / "into", "a link")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["run/run.json", "run/RUN.json", "RUN/run.json"])
def test_a_file_that_stands_twice_is_refused(tmp_path: Path, second: str) -> None:
    files = [("run/run.json", b"{}"), (second, b"{ }")]
    (tmp_path / "x.zip").write_bytes(zipped([(MANIFEST, manifest_of(files)), *files]))
    refused(tmp_path / "x.zip", tmp_path / "into", "stands twice|plain path")


@pytest.mark.parametrize("below", ["run/run.json/run.json", "RUN/run.json/x/cells/a.json"])
def test_a_file_that_is_also_a_folder_is_refused(tmp_path: Path, below: str) -> None:
    for names in (["run/run.json", below], [below, "run/run.json"]):
        refused(forged(tmp_path / "x.zip", [(n, b"{}") for n in names]), tmp_path / "into", "'run/run.json'")


def test_files_that_the_manifest_does_not_list_are_refused(tmp_path: Path) -> None:
    listed = manifest_of([("run/run.json", b"{}")])
    for files in ([], [("run/run.json", b"{}"), ("run/samples.jsonl", b"")]):
        (tmp_path / "x.zip").write_bytes(zipped([(MANIFEST, listed), *files]))
        refused(tmp_path / "x.zip", tmp_path / "into", "manifest")
    (tmp_path / "x.zip").write_bytes(zipped([("run/run.json", b"{}"), (MANIFEST, listed)]))
    refused(tmp_path / "x.zip", tmp_path / "into", "manifest")


# bombs


def _redeclared(data: bytes, name: str, size: int) -> bytes:
    """The zip with another uncompressed size declared for a member, in both of its headers."""
    out, needle = bytearray(data), name.encode()
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        offset = z.getinfo(name).header_offset
    struct.pack_into("<L", out, offset + 22, size)
    central = data.rindex(b"PK\x01\x02", 0, data.rindex(needle))
    struct.pack_into("<L", out, central + 24, size)
    return bytes(out)


def test_a_file_that_is_longer_than_it_says_is_refused(tmp_path: Path) -> None:
    """100 MB of blanks in 100 kB that claim to be two bytes: never more than those are read."""
    name, blanks = "run/run.json", b" " * 100_000_000
    data = zipped([(MANIFEST, manifest_of([(name, b"{}")])), (name, blanks)])
    (tmp_path / "x.zip").write_bytes(_redeclared(data, name, 2))
    refused(tmp_path / "x.zip", tmp_path / "into", name)


def test_sizes_are_limited_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = forged(tmp_path / "x.zip", [("run/run.json", b"{}" * 100), ("run/samples.jsonl", b"x" * 300)])
    monkeypatch.setattr(unpacking, "_write", None)  # whoever reads a file's content fails
    for limit, value in (("MAX_FILES", 2), ("MAX_FILE", 250), ("MAX_RECORD", 150), ("MAX_TOTAL", 499),
                         ("MAX_MANIFEST", 100)):  # fmt: skip
        with monkeypatch.context() as m:
            m.setattr(unpacking, limit, value)
            refused(path, tmp_path / "into", "too (many|large|long)")


def test_a_line_without_an_end_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_LINE", 1 << 20)
    path = forged(tmp_path / "x.zip", [("run/samples.jsonl", b"x" * (3 << 20))])
    refused(path, tmp_path / "into", "run/samples.jsonl")


def test_a_password_or_another_method_is_refused(tmp_path: Path) -> None:
    name = "run/run.json"
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_LZMA
    data = zipped([(MANIFEST, manifest_of([(name, b"{}")])), (info, b"{}")])
    (tmp_path / "x.zip").write_bytes(data)
    refused(tmp_path / "x.zip", tmp_path / "into", "method 14")
