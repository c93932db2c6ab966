"""Writes YAML in codegen's style: two spaces, indented dashes, double quotes, no folding."""

from __future__ import annotations

import re
from typing import Any

import yaml

# The values of these keys are written on one line.
_IN_LINE = frozenset({"unique_key", "warn_after", "error_after", "quoting"})


class _Flow:
    """A value to write in flow style (in brackets)."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def choose_scalar_style(self) -> Any:
        # Single-quoted YAML would double the single quotes of Jinja expressions.
        style = super().choose_scalar_style()
        return '"' if style == "'" else style


def _flow(dumper: _Dumper, flow: _Flow) -> yaml.Node:
    if isinstance(flow.value, dict):
        return dumper.represent_mapping("tag:yaml.org,2002:map", flow.value, flow_style=True)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", flow.value, flow_style=True)


_Dumper.add_representer(_Flow, _flow)


def _style(value: Any, key: Any = None) -> Any:
    if key in _IN_LINE and isinstance(value, dict | list):
        return _Flow(value)
    if isinstance(value, dict):
        return {name: _style(item, name) for name, item in value.items()}
    return [_style(item) for item in value] if isinstance(value, list) else value


def lines(value: Any) -> list[str]:
    """Returns the lines of a value in block style, from column 0."""
    return _dump(_style(value), flow=False).splitlines()


def in_line(key: str, value: Any) -> str | None:
    """Returns the text of a value after `key: `, or None if it needs more than one line."""
    [first, *more] = lines({"k": _style(value, key)})
    return None if more or first == "k:" else first.removeprefix("k: ")


def flow(value: Any) -> str:
    """Returns a value in flow style, without the outer brackets."""
    return _dump([value], flow=True).strip()[1:-1]


def document(value: Any, header: str, spaced: tuple[int, ...]) -> str:
    """Returns the text of a new file.

    Args:
        spaced: indents of dashes. A blank line precedes each list item with one of these indents,
            except the first item of a list.
    """
    output: list[str] = []
    for line in lines(value):
        dash = re.match(r" *(?=- name:)", line)
        if dash and len(dash[0]) in spaced and not output[-1].endswith(":"):
            output.append("")
        output.append(line)
    return "\n".join([*(f"# {line}".rstrip() for line in header.splitlines()), "", *output, ""])


def _dump(value: Any, flow: bool) -> str:
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=flow,
        width=float("inf"),
    )
    return text
