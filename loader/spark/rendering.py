"""Renders Jinja in profiles.yml as dbt 1.11 does: ``dbt/config/renderer.py``."""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import jinja2
import jinja2.nativetypes
import jinja2.sandbox

from loader.error_report import did_you_mean
from loader.errors import SpecError
from loader.spec.redaction import excerpt

SECRET_PREFIX = "DBT_ENV_SECRET"  # dbt keeps the values of such variables out of logs and filters


class _Text(str):
    """Stays text, even if it looks like another type."""


class _Native(str):
    """Is read as a Python literal if it is one."""


class _Bool(_Native):
    """Must be a Python literal that is a boolean."""


class _Number(_Native):
    """Must be a Python literal that is a number."""


def _native_concat(nodes: Iterator[Any]) -> Any:
    """dbt's ``quoted_native_concat``: text stays text unless a filter asks for something else."""
    head = list(islice(nodes, 2))
    if not head:
        return ""
    if len(head) > 1:
        return "".join(str(node) for node in chain(head, nodes))
    raw = head[0]
    if isinstance(raw, _Text):
        return str(raw)
    if not isinstance(raw, _Native):
        return raw
    try:
        value = ast.literal_eval(raw)
    except (ValueError, SyntaxError, MemoryError):
        value = str(raw)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(raw, _Bool) and not isinstance(value, bool):
        raise _RenderError("the value is not a boolean", "Write True or False")
    if isinstance(raw, _Number) and not is_number:
        raise _RenderError("the value is not a number", "Write a number")
    return value


class _RenderError(Exception):
    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class _Template(jinja2.nativetypes.NativeTemplate):
    def render(self, *args: Any, **kwargs: Any) -> Any:
        return _native_concat(self.root_render_func(self.new_context(dict(*args, **kwargs))))


class _Environment(jinja2.sandbox.SandboxedEnvironment):
    code_generator_class = jinja2.nativetypes.NativeCodeGenerator
    template_class = _Template


class Renderer:
    """Renders one value of a profile, with the functions that dbt provides there."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self._jinja = _Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])
        self._jinja.filters.update(
            as_text=_Text,
            as_native=_Native,
            as_bool=_Bool,
            as_number=_Number,
            is_list=lambda value: isinstance(value, list),
        )

    def render(self, value: Any, where: str, keys: tuple[str | int, ...] = ()) -> Any:
        """Returns the value, rendered if it is text; raises SpecError."""
        if isinstance(value, dt.date):
            return value.isoformat()
        if not isinstance(value, str):
            return value
        try:
            template = self._jinja.from_string(value)
            result = template.render(env_var=self._env_var, var=self._var)
        except _RenderError as error:
            raise SpecError(error.what, where=where, remedy=error.remedy) from None
        except Exception as error:  # Jinja evaluates expressions, so Python may raise anything
            if "password" in keys:
                return value  # as dbt: a password may look like Jinja
            raise SpecError(
                f"cannot be rendered: {excerpt(str(error), 500)}",
                where=where,
                remedy="Correct the expression",
            ) from None
        if isinstance(result, jinja2.Undefined):
            raise SpecError(
                f"{result._undefined_name!r} is not defined here",
                where=where,
                remedy="Use env_var(…) or var(…)",
            )
        return self._with_secrets(result)

    def _env_var(self, name: str, default: Any = None) -> Any:
        if name in self.env:
            # A secret's value is put in afterwards, out of reach of filters.
            return _placeholder(name) if name.startswith(SECRET_PREFIX) else self.env[name]
        if default is not None:
            return default
        raise _RenderError(
            f"the environment variable {name} is not set",
            f"{did_you_mean(name, self.env)} Set it, or give a default: "
            f"env_var('{name}', '…')".strip(),
        )

    def _var(self, name: str, *default: Any) -> Any:
        if default:
            return default[0]
        raise _RenderError(
            f"the variable {name} has no value",
            f"Give it a default: var('{name}', '…'); or use env_var, which the loader knows too",
        )

    def _with_secrets(self, result: Any) -> Any:
        if not isinstance(result, str) or SECRET_PREFIX not in result:
            return result
        return re.sub(
            re.escape(_placeholder("NAME")).replace("NAME", r"(\w+)"),
            lambda found: self.env.get(found[1], found[0]),
            result,
        )


def _placeholder(name: str) -> str:
    return f"$$$DBT_SECRET_START$$${name}$$$DBT_SECRET_END$$$"
