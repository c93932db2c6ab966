"""Parses options whose value is a duration, such as ``--every '5 min'``."""

from __future__ import annotations

import click

from loader.duration import seconds_of

_EXAMPLES = "write it as '30s', '5 min' or '2h'"


def read_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Converts an option such as '5 min' to seconds (a click callback)."""
    if value is None:
        return None
    try:
        seconds = float(seconds_of(value.strip(), "a duration", _EXAMPLES))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds <= 0:
        raise click.BadParameter(f"{value!r} is not a positive duration: {_EXAMPLES}")
    return seconds
