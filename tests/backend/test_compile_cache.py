"""The disk cache: what the key holds, many writers, damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coda_lang import folders
from coda_lang.backend_cutlass import fingerprint
from coda_lang.backend_cutlass.cache import Cache, key_of
from coda_lang.backend_cutlass.files import TEMPORARY, write_atomically

KEY = key_of("a kernel")
INFO = {"registers": 168, "text": "ü\n"}
ROOT = Path(__file__).resolve().parents[2]


def test_what_was_put_comes_back(store: Cache) -> None:
    assert store.get(KEY) is None
    store.put(KEY, INFO, b"\x00\ncubin\n\xff")
    assert store.get(KEY) == (INFO, b"\x00\ncubin\n\xff")
    assert Cache(store.root).get(KEY) == (INFO, b"\x00\ncubin\n\xff")


def test_every_damage_is_noticed_and_the_entry_removed(store: Cache) -> None:
    store.put(KEY, INFO, bytes(range(256)))
    path = store.path(KEY)
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 7)]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 5)]
    damaged += [whole + b"x", b"", b"null\n", b"[1]\n" + whole, b'{"info": 3}\n']
    for data in damaged:
        path.write_bytes(data)
        assert store.get(KEY) is None, data
        assert not path.exists()
    store.put(KEY, INFO, b"again")
    assert store.get(KEY) == (INFO, b"again")


def test_an_entry_under_another_key_is_not_taken(store: Cache) -> None:
    store.put(KEY, INFO, b"x")
    other = key_of("another kernel")
    store.path(other).parent.mkdir(parents=True, exist_ok=True)
    store.path(KEY).rename(store.path(other))
    assert store.get(other) is None


def test_keys_do_not_run_together() -> None:
    lists = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("ab\n1\nc",)]
    assert len({key_of(*parts) for parts in lists}) == len(lists)


def test_show_and_clear(store: Cache) -> None:
    assert store.show() == []
    assert store.clear() == (0, 0)
    keys = [key_of(str(i)) for i in range(3)]
    for i, key in enumerate(keys):
        store.put(key, {"n": i}, bytes(10))
        os.utime(store.path(key), (i, i))
    store.path(keys[0]).with_name("notes.txt").write_text("not ours")
    shown = store.show()
    assert [e.key for e in shown] == keys[::-1]
    assert [e.value[0]["n"] for e in shown] == [2, 1, 0]
    assert all(e.size == e.path.stat().st_size for e in shown)
    count, freed = store.clear()
    assert count == 3
    assert freed == sum(e.size for e in shown)
    assert store.show() == []
    assert [p.name for p in store.root.rglob("*.*") if p.is_file()] == ["notes.txt"]


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CODA_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert folders.cache_root() == Path("/home/someone/.cache/coda-lang")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert folders.cache_root() == Path("/xdg/coda-lang")
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "here"))
    assert Cache().root == tmp_path / "here"


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(OSError, match="/proc/coda"):
        Cache(Path("/proc/coda")).put(KEY, INFO, b"x")
    assert Cache(Path("/proc/coda")).get(KEY) is None


WRITER = """
import sys
from pathlib import Path
from coda_lang.backend_cutlass.cache import Cache, key_of
store, mine = Cache(Path(sys.argv[1])), sys.argv[2].encode()
keys = [key_of(str(i)) for i in range(4)]
for turn in range(60):
    for key in keys:
        found = store.get(key)
        if found is not None:
            info, data = found
            assert data == info["by"].encode() * 50_000, "a mixture of two writers"
        store.put(key, {"by": mine.decode()}, mine * 50_000)
"""


def run_python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.PIPE)


def test_eight_processes_write_and_read_the_same_entries(store: Cache) -> None:
    writers = [run_python(WRITER, str(store.root), str(i)) for i in range(8)]
    errors = [w.communicate(timeout=120)[1].decode() for w in writers]
    assert all(w.returncode == 0 for w in writers), errors
    assert len(store.show()) == 4
    assert not list(store.root.rglob(TEMPORARY + "*"))


def test_killed_writers_leave_no_half_entry_and_block_nobody(store: Cache) -> None:
    for round in range(6):
        writer = run_python(WRITER, str(store.root), str(round))
        deadline = time.monotonic() + 30
        while not list(store.root.rglob("*")) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.02 * round)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        before = [p for p in store.root.rglob("*") if p.is_file() and not p.name.startswith(TEMPORARY)]
        assert len(store.show()) == len(before), "an entry is damaged"
    store.put(KEY, INFO, b"x")
    assert store.get(KEY) == (INFO, b"x")


def test_old_leftovers_are_swept_and_new_ones_are_not(store: Cache) -> None:
    store.put(KEY, INFO, b"x")
    old, new = (store.path(KEY).with_name(TEMPORARY + n) for n in ("old", "new"))
    old.write_bytes(b"1")
    new.write_bytes(b"2")
    os.utime(old, (1, 1))
    store.put(KEY, INFO, b"y")
    assert not old.exists()
    assert new.exists()
    store.clear()
    assert not new.exists()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "entry"
    path.write_bytes(b"old")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["entry"]
    assert path.read_bytes() == b"old"


# The digest of the headers


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    root = tmp_path / "include"
    (root / "sub").mkdir(parents=True)
    (root / "a.h").write_text("1")
    (root / "sub" / "b.h").write_text("2")
    for file in root.rglob("*.h"):
        os.utime(file, (1, 1))
    return root


def test_the_digest_is_of_contents_not_of_times(headers: Path, tmp_path: Path) -> None:
    first = fingerprint.content_digest([headers])
    os.utime(headers / "a.h")
    assert fingerprint.content_digest([headers]) == first
    twin = tmp_path / "elsewhere"
    headers.rename(twin)
    assert fingerprint.content_digest([twin]) == first


@pytest.mark.parametrize("how", ["content", "name", "new", "gone", "moved"])
def test_any_change_changes_the_digest(headers: Path, tmp_path: Path, how: str) -> None:
    memo = tmp_path / "memo"
    first = fingerprint.content_digest([headers], memo)
    assert fingerprint.content_digest([headers], memo) == first
    match how:
        case "content":  # of the same length, and with the old time put back
            (headers / "a.h").write_text("3")
            os.utime(headers / "a.h", (1, 1))
        case "name":
            (headers / "a.h").rename(headers / "c.h")
        case "new":
            (headers / "sub" / "c.h").write_text("")
        case "gone":
            (headers / "sub" / "b.h").unlink()
        case "moved":
            (headers / "sub" / "b.h").rename(headers / "b.h")
    assert fingerprint.content_digest([headers], memo) != first


def test_settled_headers_are_not_read_again(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "SETTLED_SECONDS", -1.0)
    memo, read = tmp_path / "memo", []
    whole = fingerprint._read
    monkeypatch.setattr(fingerprint, "_read", lambda *a: read.append(1) or whole(*a))
    digests = {fingerprint.content_digest([headers], memo) for _ in range(3)}
    assert len(digests) == len(read) == 1
    next(memo.iterdir()).write_text('{"signature": 1')
    assert fingerprint.content_digest([headers], memo) in digests
    assert len(read) == 2


def test_headers_that_just_changed_are_read_each_time(headers: Path, tmp_path: Path) -> None:
    fingerprint.content_digest([headers], tmp_path / "memo")
    assert not (tmp_path / "memo").exists()


def test_a_memo_that_cannot_be_written(headers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "SETTLED_SECONDS", -1.0)
    assert fingerprint.content_digest([headers], Path("/proc/coda")) == fingerprint.content_digest([headers])
