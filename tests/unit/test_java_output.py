"""What Java prints reaches the user, without secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUBMIT = """\
#!/bin/sh
printf 'begins with q7-sec'
sleep 0.3
printf 'ret here\\nand \\377 ends with q7-secret'
"""
STARTS = """\
import sys
from pathlib import Path
from loader.runtime.gateway import Gateway
from loader.spec.redaction import Redactor
redactor = Redactor()
redactor.add("q7-secret")
gateway = Gateway([], Path(sys.argv[1]))
gateway._show()
gateway.process.wait()
gateway._printed.join()
"""


def test_what_java_prints_has_no_secret(tmp_path: Path) -> None:
    """Neither if it writes one in two pieces, nor in a last line without an end."""
    (tmp_path / "bin").mkdir()
    submit = tmp_path / "bin/spark-submit"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/spark-core_2.12-3.5.0.jar").touch()
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path)],
        env={**os.environ, "SPARK_HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert done.stderr == b"begins with *** here\nand \xff ends with ***", done
