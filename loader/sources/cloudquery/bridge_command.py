"""Builds the command of the bridge: a Python with the packages that it needs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from loader.errors import SpecError

_RUN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "import runpy; runpy.run_module('bridge', run_name='__main__', alter_sys=True)"
)


def command(python: str | None, where: str, verb: str, files: Mapping[str, Path]) -> list[str]:
    """Returns the bridge's command line.

    Args:
        python: a Python that has `cloudquery-plugin-pb`; None is the loader's own.
        where: the part that needs it, for the error.
        files: by the option that they are given with.

    Raises:
        SpecError: if the loader's own lacks that package.
    """
    if python is None and importlib.util.find_spec("cloudquery") is None:
        raise SpecError(
            "CloudQuery's protocol needs the package `cloudquery-plugin-pb`, which is not "
            "installed",
            where=where,
            remedy="Run `pip install 'strandline[cloudquery]'`; or install it into an environment "
            "of its own, and name that environment's Python (`python`, `--python`)",
        )
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    return [python or sys.executable, "-c", _RUN, str(Path(__file__).parent), verb, *given]
