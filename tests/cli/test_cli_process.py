"""What only a process of its own shows: exit codes, pipes, terminals, encodings, interruption."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness_cli import NO_GPU, PROGRAMS, ROOT, SWIGLU, WRONG, coda_run

from coda_lang.backend_cutlass import toolchain
from coda_lang.cli.progress import bar
from coda_lang.errors import BackendError


def test_help_has_examples_and_comes_fast() -> None:
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = coda_run("--help")
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start
    assert done.returncode == 0
    assert b"coda-run programs/rmsnorm_swiglu.coda" in done.stdout
    assert seconds < 1  # of work; 0.1 measured
    for command in ("check", "fmt", "ir", "list", "explain", "cuda", "cubin", "cache"):
        assert b"examples:" in coda_run(command, "--help").stdout
    assert coda_run("--version").stdout.startswith(b"coda-run ")


def test_help_and_fmt_do_not_import_numpy() -> None:
    code = "import sys; from coda_lang.cli import main; main(sys.argv[1:]); "
    code += "sys.exit(any(n in sys.modules for n in ('numpy', 'coda_lang.backend_cutlass')))"
    for arguments in (["--help"], ["cubin", "--help"], ["fmt", "--check", SWIGLU], ["list", SWIGLU]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, arguments


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "the following arguments are required: FILE"),
        (["gone.coda"], 2, "cannot read gone.coda: no such file or directory"),
        (["."], 2, "cannot read .: is a directory"),
        (["swiglu"], 2, "did you mean `programs/swiglu.coda`?"),
        (["chekc"], 2, "did you mean `check`? That is a command."),
        (["check"], 2, "the following arguments are required: FILE"),
        (["./check"], 2, "cannot read ./check"),
        (["a\x01b.coda"], 2, "cannot read"),
        (["fmt", "--check", "--diff", "x.coda"], 2, "not allowed with"),
    ],
)
def test_wrong_calls_say_so_in_one_message(arguments: list[str], code: int, text: str) -> None:
    done = coda_run(*arguments, cwd=ROOT)
    error = done.stderr.decode()
    assert done.returncode == code
    assert done.stdout == b""
    assert text in error
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert "usage:" not in error


def test_a_file_that_has_the_name_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "check").write_text("const A = 1\n", encoding="utf-8")
    done = coda_run("./check", cwd=tmp_path)
    assert done.returncode == 2
    assert b"defines no kernel to run" in done.stderr


def test_not_utf8_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "x.coda").write_bytes(b"kernel \xff")
    for arguments in (["x.coda"], ["check", "x.coda"], ["fmt", "x.coda"]):
        done = coda_run(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert b"byte 0xff is not UTF-8" in done.stderr
    assert coda_run("check", "-", input=b"\xff").returncode == 2


def test_a_pipe_that_is_closed_early() -> None:
    command = [sys.executable, "-m", "coda_lang.cli", "list", *map(str, sorted(PROGRAMS.glob("*.coda")) * 20)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert error == b""


def test_a_full_disk() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "coda_lang.cli", "list", SWIGLU]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def _wait_for_memory(pid: int, size: int) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    for _ in range(1200):
        if int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page > size:
            return
        time.sleep(0.05)
    raise AssertionError("the process does nothing")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_interruption() -> None:
    command = [sys.executable, "-m", "coda_lang.cli", SWIGLU, "--dim", "M=8192,N=8192,K=8192"]
    env = {**os.environ, **NO_GPU}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env)
    _wait_for_memory(process.pid, 300 << 20)  # it is drawing the inputs
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, error) == (b"", b"error: interrupted\n")


@pytest.mark.parametrize(
    ("line", "code"),
    [("{run} {file} >&-", 0), ("{run} --help >&-", 0), ("{run} nofile 2>&-", 2), ("{run} check - <&-", 2)],
)
def test_streams_that_are_closed(line: str, code: int) -> None:
    command = line.format(run=f"{sys.executable} -m coda_lang.cli", file=SWIGLU)
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.coda")
    (tmp_path / "y.coda").write_text('import "x.coda" { f }\n', encoding="utf-8")
    assert coda_run("list", cwd=tmp_path).returncode == 0
    done = coda_run("check", "y.coda", cwd=tmp_path)
    assert done.returncode == 1
    assert b"it is no file" in done.stderr


def test_names_of_files_cannot_turn_the_terminal_around(tmp_path: Path) -> None:
    done = coda_run("check", "a\x1b[31m\u202eb.coda", cwd=tmp_path)
    assert b"\x1b" not in done.stderr
    assert "\u202e".encode() not in done.stderr


def test_an_encoding_without_the_signs() -> None:
    done = coda_run("list", SWIGLU, cwd=ROOT, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"y = g?" in done.stdout


def _on_a_terminal(
    *arguments: str, command: tuple[str, ...] = ("-m", "coda_lang.cli"), **environment: str
) -> tuple[int, str]:
    """Exit code and what a terminal of 80 columns shows."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *command, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=ROOT,
        env={**os.environ, **NO_GPU, "TERM": "xterm", "NO_COLOR": "", **environment},
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the last follower is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    return process.wait(), seen.decode()


def test_colours_on_a_terminal_only(tmp_path: Path) -> None:
    path = tmp_path / "wrong.coda"
    path.write_text(WRONG, encoding="utf-8")
    code, seen = _on_a_terminal("check", str(path))
    assert code == 1
    assert "\x1b[1;31merror[E0101]\x1b[0m" in seen
    assert "^^^^^^^\x1b[0m" in seen
    assert "\x1b" not in _on_a_terminal("check", str(path), NO_COLOR="1")[1]
    assert "\x1b" not in _on_a_terminal("check", str(path), TERM="dumb")[1]
    assert b"\x1b" not in coda_run("check", str(path)).stderr


IMPATIENT = """
import sys
from coda_lang.cli import main, progress
progress.PATIENCE = progress.INTERVAL = 0.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_progress_bar_on_a_terminal_only() -> None:
    arguments = [SWIGLU, "--dim", "M=2048,N=1024,K=64"]  # several strips of rows
    code, seen = _on_a_terminal(*arguments, command=("-c", IMPATIENT))
    assert code == 0
    assert "running swiglu ━" in seen
    assert " s left" in seen
    last = seen.rindex("left")
    assert seen[last:].startswith("left\r\x1b[2K")  # cleared before the table
    quick = _on_a_terminal(SWIGLU)[1]
    assert "running" not in quick
    assert coda_run(*arguments).stderr == b""


def test_a_compile_says_so_on_a_terminal_only(tmp_path: Path) -> None:
    try:
        toolchain.find()
    except BackendError as error:
        pytest.skip(error.message)
    arguments = ("cubin", str(PROGRAMS / "reduces.coda"), "rstd_from_squares")
    code, seen = _on_a_terminal(*arguments, CODA_CACHE_DIR=str(tmp_path))
    assert code == 0
    assert "compiling rstd_from_squares for sm_90a …" in seen
    assert "compiling" not in _on_a_terminal(*arguments, CODA_CACHE_DIR=str(tmp_path))[1]  # it is in the cache
    assert coda_run(*arguments, CODA_CACHE_DIR=str(tmp_path / "new")).stderr == b""


def test_signatures_are_wrapped_on_a_terminal_only() -> None:
    path = str(PROGRAMS / "cross_entropy.coda")
    seen = _on_a_terminal("list", path, COLUMNS="80")[1]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen).replace("\r\n", "\n")
    signatures = [line for line in plain.splitlines() if re.match(r"  (kernel|imported) | {8}", line)]
    assert len(signatures) > 3
    assert max(map(len, signatures)) <= 80
    whole = coda_run("list", path).stdout.decode()
    assert max(map(len, whole.splitlines())) > 80
    assert " ".join(plain.split()) == " ".join(whole.split())


def test_the_bar() -> None:
    assert bar("x", 0, 10, 2.0) == f"x {'─' * 30}   0%  …"
    assert bar("x", 5, 10, 2.0) == f"x {'━' * 15}{'─' * 15}  50%  2 s left"
    assert bar("x", 10, 100, 33.0).endswith("10%  4 min 57 s left")
    assert bar("x", 4, 100, 3.0).endswith("4%  …")  # too early to tell
    assert bar("x", 50, 100, None).endswith("50%  …")
