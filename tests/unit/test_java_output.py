"""The output of Spark's Java process reaches the user with secrets masked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

JAVA = """\
#!/bin/sh
printf 'begins with q7-sec'
sleep 0.3
printf 'ret here\\nand \\377 ends with q7-secret'
"""
STARTS = """\
import os
import sys
from pathlib import Path
from loader.spark.jvm import Gateway
from loader.spark.jvm_command import JvmCommand
from loader.spec.redaction import Redactor
redactor = Redactor()
redactor.add("q7-secret")
folder = Path(sys.argv[1])
gateway = Gateway(JvmCommand((str(folder / "java"),), os.environ, {}, {}), folder)
gateway._show()
gateway.process.wait()
gateway._printed.join()
"""


def test_what_java_prints_has_no_secret(tmp_path: Path) -> None:
    """Even if Java writes a secret in two parts, or in a last line without a line break."""
    (tmp_path / "java").write_text(JAVA)
    (tmp_path / "java").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path)], capture_output=True, check=False
    )
    assert done.stderr == b"begins with *** here\nand \xff ends with ***", done
