"""Writes the pages of the reference from the code: commands, spec, macros, tests, models, API.

No page is stored in the repository, so that none can be out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from loader.cli import main
from loader.cli.setup import render_schema

ROOT = Path(__file__).resolve().parents[1]
_MACROS = ("macros/_macros.yml", "macros/maintenance/_maintenance.yml")
_TESTS = "macros/generic_tests/_generic_tests.yml"
_MODELS = "models/_strandline__models.yml"


def write_reference(folder: Path) -> int:
    """Writes all pages and returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "commands": _describe_commands(),
        "spec": _describe_spec(json.loads(render_schema(_fail))),
        "macros": _describe_macros("dbt macros", "models", _read_yaml(*_MACROS, key="macros")),
        "tests": _describe_macros("dbt tests", "tests", _read_yaml(_TESTS, key="macros")),
        "models": _describe_models(_read_yaml(_MODELS, key="models")),
        "python-api": _describe_api(),
    }
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(pages)


def _fail(problem: str) -> None:
    raise SystemExit(problem)


def _cell(text: str) -> str:
    """Formats a text as one cell of a table. A test finds texts with a bar, which ends a cell."""
    return " ".join(text.split())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield ""
        yield "| " + " | ".join(head) + " |"
        yield "|" + "---|" * len(head)
        yield from ("| " + " | ".join(map(_cell, row)) + " |" for row in rows)
        yield ""


# Commands ---------------------------------------------------------------------------------------


def _describe_commands() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "Generated from the commands themselves. `loader COMMAND --help` shows the same texts."
    context = click.Context(main, info_name="loader", help_option_names=["-h", "--help"])
    yield from _describe_command(main, context, 2)


def _describe_command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield ""
    yield f"{'#' * level} `{context.command_path}`"
    yield ""
    yield inspect.cleandoc(command.help or "").replace("\b", "")
    yield ""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    rows = [_describe_option(option, context) for option in shown]
    yield from _table(("option", "meaning", "default"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child and not child.hidden:
                inner = click.Context(child, info_name=name, parent=context)
                yield from _describe_command(child, inner, level + 1)


def _describe_option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" `{option.make_metavar(context)}`"
    default = option.get_default(context, call=False)
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool)
    return names + value, option.help or "", f"`{default}`" if is_shown and default != "" else ""


# Spec -------------------------------------------------------------------------------------------

_SECTIONS = {
    "SourceSpec": "A source",
    "TableOptions": "`table_options`, any connector",
    "ColumnSelection": "`columns`",
    "ReconcileOptions": "`reconcile`",
    "JdbcOptions": "`path: jdbc`",
    "JdbcTableOptions": "`path: jdbc`, `table_options`",
    "FileOptions": "`path: file`",
    "FileTableOptions": "`path: file`, `table_options`",
    "AirbyteOptions": "`path: airbyte`",
    "SingerOptions": "`path: singer`",
    "CloudQueryOptions": "`path: cloudquery`",
    "PluggedDestination": "A destination",
    "LakeOptions": "`path: spark`",
    "StateStoreOptions": "A destination for state",
    "BackendOptions": "`backend_options`",
    "BackendSpec": "`backend_spec`",
}
"""The headings of the schema's definitions, in the order of the page; others follow by name."""


def _describe_spec(schema: dict[str, Any]) -> Iterator[str]:
    definitions = schema["definitions"]
    yield "# Every key of `loader.yml`"
    yield ""
    yield "Generated from the JSON Schema that `loader schema` prints and editors use. The [spec"
    yield "reference](../spec.md) explains the keys with examples. A value can also be a variable,"
    yield "such as `${PGPASSWORD}`."
    names = [name for name in _SECTIONS if name in definitions]
    for name in [*names, *sorted(set(definitions) - set(names))]:
        definition = definitions[name]
        required = definition.get("required", [])
        yield ""
        yield f"## {_SECTIONS.get(name, name)} {{ #{name.lower()} }}"
        yield ""
        yield definition.get("description", "")
        rows = [
            (
                f"`{key}`" + (", required" if key in required else ""),
                _name_type(part),
                part.get("description", ""),
                _format_default(part.get("default")),
            )
            for key, part in definition.get("properties", {}).items()
        ]
        yield from _table(("key", "type", "meaning", "default"), rows)


def _format_default(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _name_type(part: dict[str, Any]) -> str:
    """Names the values of a key, without variables, which every key accepts."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{_SECTIONS.get(name, name)}](#{name.lower()})"
    if "enum" in part:
        return ", ".join(f"`{json.dumps(v)[1:-1]}`" for v in part["enum"] if isinstance(v, str))
    if "anyOf" in part:
        accepted = [_name_type(each) for each in part["anyOf"] if not _is_variable(each)]
        return " or ".join(dict.fromkeys(name for name in accepted if name))
    if part.get("examples") and "pattern" in part:
        return f"a time, such as `{part['examples'][0]}`"
    kinds = part.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "array" in kinds:
        return f"a list of {_name_type(part.get('items', {})) or 'values'}"
    if "object" in kinds:
        return "a mapping"
    names = {"string": "text", "number": "a number", "integer": "a whole number"}
    names["boolean"] = "`true` or `false`"
    if "string" in kinds:
        return "text"
    return " or ".join(names[kind] for kind in kinds if kind in names)


def _is_variable(part: dict[str, Any]) -> bool:
    """Returns whether an alternative only allows a number or a choice as a text or a variable."""
    return (
        part.get("type") == "string"
        and "@@plugins" in part.get("pattern", "")
        and ("examples" not in part)
    )


# dbt --------------------------------------------------------------------------------------------


def _read_yaml(*paths: str, key: str) -> list[dict[str, Any]]:
    documents = [yaml.safe_load((ROOT / path).read_text(encoding="utf-8")) for path in paths]
    return [entry for document in documents for entry in document[key]]


def _describe_macros(title: str, page: str, macros: list[dict[str, Any]]) -> Iterator[str]:
    yield f"# {title}"
    yield ""
    yield f"Generated from the package's yml files. For examples, see [{page}](../dbt/{page}.md)."
    for macro in macros:
        yield ""
        yield f"## `{macro['name'].removeprefix('test_')}`"
        yield ""
        yield macro["description"].strip()
        rows = [
            (f"`{each['name']}`", each.get("type", ""), each.get("description", ""))
            for each in macro.get("arguments", [])
        ]
        yield from _table(("argument", "type", "meaning"), rows)


def _describe_models(models: list[dict[str, Any]]) -> Iterator[str]:
    yield "# dbt models"
    yield ""
    yield "Generated from the package's yml files. [Models](../dbt/models.md) describes how to use"
    yield "and enable them."
    for model in models:
        yield ""
        yield f"## `{model['name']}`"
        yield ""
        yield model.get("description", "").strip()
        rows = [
            (f"`{each['name']}`", each.get("description", "")) for each in model.get("columns", [])
        ]
        yield from _table(("column", "meaning"), rows)


# Python -----------------------------------------------------------------------------------------


def _describe_api() -> Iterator[str]:
    """Names the public members of `loader.api`. mkdocstrings inserts their docstrings."""
    yield "# Python API"
    yield ""
    yield "Generated from the docstrings of `loader.api`. The page [Python API](../python-api.md)"
    yield "shows how to use it."
    first = ["Loader", "load_spec", "build_spec"]
    for name in [*first, *sorted(_list_exports(ROOT / "loader" / "api.py") - set(first))]:
        yield ""
        yield f"::: loader.api.{name}"


def _list_exports(module: Path) -> set[str]:
    """Reads `__all__` without an import, which would need Spark."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no __all__")
