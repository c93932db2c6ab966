"""If output cannot be written, a command still does its work, and its exit code shows the loss."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Like every command, it reports to both streams while it works, and then prints its result.
COMMAND = """
import sys, threading
import click
from loader.cli.app import main
from loader.cli.progress import Progress
from loader.errors import TableError

@main.command()
@click.argument("ends", type=int)
@click.pass_obj
def work(settings, ends):
    output = settings.output
    with Progress(output, lambda table: None) as progress:
        def sync():
            for n in range(3):
                progress.report_phase("shop.orders", "reading", n)
                progress.warn("shop.orders", "slow")
                if ends == 0:
                    output.say("said")
        threads = [threading.Thread(target=sync) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        progress.done("shop.orders", "synced")
    output.table("table", ("table", "rows"), [("shop.orders", 1)])
    open("done", "w").write("all of it")
    if ends == 1:
        output.error(TableError("it failed", where="table shop.orders"))
    if ends == 2:
        sys.exit(0)
    sys.exit(1) if ends else None

main(prog_name="loader")
"""


class Worked:
    """The result of a command whose output goes to `output` (a shell redirection)."""

    def __init__(
        self, folder: Path, output: str, *arguments: str, unbuffered: bool = False
    ) -> None:
        (folder / "command.py").write_text(COMMAND)
        words = " ".join(["command.py", *(arguments or ("work", "0"))])
        # Python buffers its output unless PYTHONUNBUFFERED is set, as it often is in containers.
        ours = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        ours |= {"PYTHONUNBUFFERED": "1"} if unbuffered else {}
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} {words} {output}; echo ${{PIPESTATUS[0]}} > code"],
            cwd=folder,
            env={**ours, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        self.code = int((folder / "code").read_text())
        self.err = done.stderr
        self.out = done.stdout
        self.finished = (folder / "done").exists()


CLOSED = "| (exec <&-; true)"
LOST = "error: standard output: it cannot be written to: "
WORK = "The command itself succeeded; `loader status` shows the tables"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("output", "code", "reported"),
    [
        (CLOSED, 141, ""),
        (">&-", 1, "it is closed"),
        ("> /dev/full", 1, "No space left on device"),
    ],
)
def test_the_work_is_done_without_standard_output(
    tmp_path: Path, form: str, unbuffered: bool, output: str, code: int, reported: str
) -> None:
    worked = Worked(tmp_path, output, "--log-format", form, "work", "2", unbuffered=unbuffered)
    assert (worked.finished, worked.code) == (True, code), worked.err
    assert "Traceback" not in worked.err
    assert "Exception" not in worked.err
    if form == "text":
        assert ((LOST + reported) in worked.err, WORK in worked.err) == (
            bool(reported),
            bool(reported),
        )


@pytest.mark.parametrize("output", ["2>&-", "2>&1 >&- | true", "2> /dev/full"])
def test_the_work_is_done_without_standard_error(tmp_path: Path, output: str) -> None:
    worked = Worked(tmp_path, output)
    assert worked.finished
    assert worked.code == (1 if ">&- |" in output else 0)


def test_a_failed_command_keeps_its_exit_code(tmp_path: Path) -> None:
    worked = Worked(tmp_path, CLOSED, "work", "1")
    assert worked.code == 1
    assert "error: table shop.orders: it failed" in worked.err


def test_a_command_that_writes_nothing_needs_no_output(tmp_path: Path) -> None:
    assert Worked(tmp_path, ">&-", "--quiet", "work", "0").code == 0


def test_help_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    worked = Worked(tmp_path, "> /dev/full", "--help")
    assert (worked.code, worked.err) == (1, f"{LOST}No space left on device\n")
