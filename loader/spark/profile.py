"""Reads a target from dbt's profiles.yml, so that the loader and dbt share Spark settings.

Behaves like dbt 1.11 (``dbt/config/profile.py``, ``dbt/config/renderer.py``), but does not import
dbt, because that takes three seconds.
"""

from __future__ import annotations

import ast
import datetime as dt
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import jinja2
import jinja2.nativetypes
import jinja2.sandbox
import yaml

from loader.errors import SpecError, did_you_mean, one_error
from loader.spec.document import refuse_large_aliases
from loader.spec.expansion import key_path
from loader.spec.redaction import Redactor, excerpt, is_secret_key, url_secrets

_VARIABLE = re.compile(r"\bSTRANDLINE_[A-Z0-9_]+\b")
NEVER_EMPTY = re.compile(r"spark\.master|spark\.sql\.catalog\.[^.]+\.(?:type|warehouse)")
"""Settings that must not be empty, because Spark or Iceberg would use its own default."""
_WAREHOUSE = re.compile(r"spark\.sql\.catalog\.[^.]+\.warehouse")
# References to variables, which Iceberg's REST catalog and Hadoop's file systems resolve.
_FROM_ENVIRONMENT = re.compile(r"env:(?P<iceberg>\w+)|\$\{env\.(?P<hadoop>\w+)[^}]*\}")
_SESSION = "Use a target with `type: spark` and `method: session`: the loader runs Spark in-process"


@dataclass(frozen=True)
class Profile:
    """A rendered target of a profile.

    Attributes:
        name, target: the names in profiles.yml.
        schema: dbt's default schema.
        conf: Spark's settings (`server_side_parameters` in the target).
        secrets: the keys of `conf` whose values contain secrets.
    """

    name: str
    target: str
    schema: str
    conf: dict[str, str] = field(repr=False)
    path: Path
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


def load_profile(
    name: str,
    target: str | None,
    folder: Path,
    profiles_dir: str | None = None,
    env: Mapping[str, str] | None = None,
    redactor: Redactor | None = None,
) -> Profile:
    """Finds and renders a target.

    Args:
        target: the target's name; by default DBT_TARGET, or else the profile's default target.
        folder: the spec's folder, against which relative paths are resolved.
        profiles_dir: the folder of profiles.yml; by default DBT_PROFILES_DIR, or else the first of
            `folder`, `folder`/profiles and ~/.dbt that contains a profiles.yml.
        env: the variables for `env_var`; by default those of this process.
        redactor: receives the secrets that the target contains.

    Raises:
        SpecError: if the file, the profile, the target or a variable is missing, or if the target
            does not use dbt-spark's `session` method.
    """
    # dbt usually runs in the project's folder, which is the spec's folder here.
    env = {**(os.environ if env is None else env), "PWD": str(folder.absolute())}
    path = _find(folder, profiles_dir, env)
    profiles = _read(path)
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        known = [key for key in profiles if key != "config"]
        raise SpecError(
            f"there is no profile {name!r}", where=str(path), remedy=_instead(name, known)
        )
    where = f"{path}, profile {name}"
    target, raw = _target(profile, target, where, env)
    where = f"{where}, target {target}"
    rendered = _render(raw, where, env)
    if redactor is not None:
        _register(rendered, env, redactor)
    conf = _conf(rendered.get("server_side_parameters"), where, folder)
    _refuse_other_methods(rendered, where)
    return Profile(
        name=name,
        target=target,
        schema=_schema(rendered, where),
        conf=conf,
        path=path,
        secrets=find_secrets(conf, env),
    )


def find_named_profile(project: Path) -> Path | None:
    """Returns the path of the profiles.yml that contains a dbt project's profile, if any."""
    try:
        path = _find(project, None, os.environ)
        return path if read_profile_name(project) in _read(path) else None
    except SpecError:
        return None


def read_profile_name(project: Path) -> str | None:
    """Returns the name of a dbt project's profile, or None if only dbt can resolve it."""
    try:
        read = yaml.safe_load((project / "dbt_project.yml").read_text("utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError):
        return None  # dbt reports the error later
    name = read.get("profile") if isinstance(read, dict) else None
    return name if isinstance(name, str) and "{" not in name else None


def find_misspelt_variables(profile: Profile, spec: str, env: Mapping[str, str]) -> dict[str, str]:
    """Finds environment variables that may be misspelt, because nothing reads them.

    Args:
        spec: the text of loader.yml, which may also read variables.

    Returns:
        For each name that may be misspelt, the similar name of a variable that the profile reads.
    """
    text = profile.path.read_text(encoding="utf-8", errors="replace")
    known = set(_VARIABLE.findall(text))
    unset = [name for name in known if name not in env]
    found = {}
    for name in env:
        if _VARIABLE.fullmatch(name) and name not in known and name not in spec:
            for near in difflib.get_close_matches(name, unset, 1, cutoff=0.85):
                found[name] = near
    return found


def refuse_moved_project(profile: Profile, folder: Path) -> None:
    """Raises a SpecError if the parent folder of the project's warehouse is missing.

    Spark would otherwise create an empty warehouse.
    """
    if profile.path.parent.absolute() not in (folder.absolute(), folder.absolute() / "profiles"):
        return
    for key in filter(_WAREHOUSE.fullmatch, profile.conf):
        place = Path(profile.conf[key].removeprefix("file:"))
        if place.is_absolute() and not place.parent.exists():
            raise SpecError(
                f"the warehouse is {place}, but there is no folder {place.parent}",
                where=str(profile.path),
                remedy="If the project was moved: tables can be read only at the path where they "
                "were created, so move it back, or create a link at the old path; or run `loader "
                "setup` for a new warehouse here. If it was not moved, create the folder",
            )


def _find(folder: Path, profiles_dir: str | None, env: Mapping[str, str]) -> Path:
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    if profiles_dir is not None:
        places = [folder / os.path.expanduser(profiles_dir)]
    elif env.get("DBT_PROFILES_DIR"):
        places = [Path(os.path.abspath(os.path.expanduser(env["DBT_PROFILES_DIR"])))]
    else:
        # Searches in dbt's order, and in profiles/, which `loader init` creates in an existing dbt
        # project so that dbt still finds the profile in ~/.dbt.
        places = [folder, folder / "profiles", home / ".dbt"]
    for place in places:
        if (place / "profiles.yml").is_file():
            return place / "profiles.yml"
    searched = ", ".join(str(place) for place in places)
    raise SpecError(
        f"there is no profiles.yml in {searched}",
        where="profile",
        remedy="Run `loader setup` in a clone of a project, or `loader init` in a new one, or set "
        "profiles_dir or DBT_PROFILES_DIR",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        loader = yaml.SafeLoader(path.read_text("utf-8-sig"))
        node = loader.get_single_node()
        if node is not None:
            refuse_large_aliases(node)
        profiles = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        bomb = error.problem if "alias" in (error.problem or "") else ""
        raise SpecError(
            f"not valid YAML{f': {bomb}' if bomb else ''}",
            where=f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path),
            remedy="Correct the YAML there; put values with {{ … }} in quotes",
        ) from None
    except RecursionError:
        raise SpecError(
            "nested too deeply to be read", where=str(path), remedy="Nest it less deeply"
        ) from None
    except (OSError, ValueError, yaml.YAMLError):
        raise SpecError(
            "cannot be read as text", where=str(path), remedy="Make it readable, in UTF-8"
        ) from None
    if not isinstance(profiles, dict):
        raise SpecError(
            "contains no profiles",
            where=str(path),
            remedy="Delete it, and run `loader init` to write one",
        )
    return profiles


def _target(
    profile: Mapping[str, Any], target: str | None, where: str, env: Mapping[str, str]
) -> tuple[str, Any]:
    """Returns the target's name and its settings, which are not rendered yet.

    Other targets are never rendered, because their variables may be missing.
    """
    target = target or env.get("DBT_TARGET") or None
    if target is None:
        target = str(Renderer(env).render(profile.get("target", "default"), f"{where}, target"))
    outputs = profile.get("outputs")
    outputs = {str(k): v for k, v in outputs.items()} if isinstance(outputs, dict) else {}
    if not isinstance(outputs.get(target), dict):
        raise SpecError(
            f"there is no target {target!r}", where=where, remedy=_instead(target, outputs)
        )
    return target, outputs[target]


def _instead(name: str, known: Any) -> str:
    names = [str(each) for each in known]
    return f"{did_you_mean(name, names)} Existing names: {', '.join(names) or 'none'}".strip()


def _render(raw: Mapping[str, Any], where: str, env: Mapping[str, str]) -> dict[str, Any]:
    renderer = Renderer(env)
    errors: list[SpecError] = []

    def render(value: Any, keys: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            return {key: render(item, (*keys, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [render(item, (*keys, i)) for i, item in enumerate(value)]
        try:
            return renderer.render(value, f"{where}, {key_path(keys)}", keys)
        except SpecError as error:
            errors.append(error)
            return None

    result: dict[str, Any] = render(raw, ())
    if errors:
        raise one_error(errors, where)
    return result


def _refuse_other_methods(rendered: Mapping[str, Any], where: str) -> None:
    for key, wanted in (("type", "spark"), ("method", "session")):
        if rendered.get(key) != wanted:
            given = rendered.get(key)
            what = f"is {given!r}" if given is not None else "is missing"
            raise SpecError(f"`{key}` {what}", where=where, remedy=_SESSION)


def _schema(rendered: Mapping[str, Any], where: str) -> str:
    schema = rendered.get("schema")
    if schema is None or isinstance(schema, dict | list | bool) or not str(schema):
        raise SpecError(
            "`schema` is missing",
            where=where,
            remedy="Add it: dbt creates its tables in this schema",
        )
    return str(schema)


def _conf(parameters: Any, where: str, folder: Path) -> dict[str, str]:
    """Returns Spark's settings as strings. Makes the paths of local warehouses absolute.

    Omits empty settings, which usually come from variables that are not set. The master, and a
    catalog's type and warehouse, must not be empty, because Spark would use its own defaults.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise SpecError(
            "must have keys and values",
            where=f"{where}, server_side_parameters",
            remedy="Write Spark's settings below it as `key: value`",
        )
    errors: list[SpecError] = []
    conf: dict[str, str] = {}
    for key, value in parameters.items():
        if value == "" and NEVER_EMPTY.fullmatch(str(key)):
            errors.append(
                SpecError(
                    f"the setting `{key}` is empty",
                    where=f"{where}, server_side_parameters",
                    remedy="Set it, or the variable that it reads",
                )
            )
        elif value is None or isinstance(value, dict | list):
            errors.append(
                SpecError(
                    f"the setting `{key}` does not have a single value",
                    where=f"{where}, server_side_parameters",
                    remedy="Write Spark's keys with dots and a value in one line",
                )
            )
        elif value != "":
            conf[str(key)] = str(value).lower() if isinstance(value, bool) else str(value)
    if errors:
        raise one_error(errors, where)
    for key in filter(_WAREHOUSE.fullmatch, list(conf)):
        kind = conf.get(key.removesuffix("warehouse") + "type", "")
        implementation = conf.get(key.removesuffix("warehouse") + "catalog-impl", "")
        on_files = kind == "hadoop" or implementation.endswith("HadoopCatalog")
        conf[key] = _absolute(conf[key], folder, on_files)
    return conf


def _absolute(warehouse: str, folder: Path, on_files: bool) -> str:
    """Makes a local path absolute. URLs and the names of REST warehouses are not changed."""
    scheme, local = re.fullmatch(r"(file:(?!/))?(.*)", warehouse, re.DOTALL).groups()  # type: ignore[union-attr]
    if not scheme and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", local):
        return warehouse
    if not (scheme or on_files or re.match(r"\.{1,2}(?:/|\Z)|~", local)):
        return warehouse
    return (scheme or "") + os.path.abspath(folder / os.path.expanduser(local))


def find_secrets(conf: Mapping[str, str], env: Mapping[str, str]) -> frozenset[str]:
    """Returns the keys whose values contain a secret, not just a variable's name."""
    hidden = [v for name, v in env.items() if name.startswith(SECRET_PREFIX) and v.strip()]
    return frozenset(
        key
        for key, value in conf.items()
        if (is_secret_key(key) and value and not _FROM_ENVIRONMENT.fullmatch(value))
        or any(secret in value for secret in hidden)
        or any(url_secrets(value))
    )


def _register(value: Any, env: Mapping[str, str], redactor: Redactor, key: str = "") -> None:
    for name, secret in env.items():
        if not key and name.startswith(SECRET_PREFIX):
            redactor.add(secret)
    if isinstance(value, dict):
        for inner, item in value.items():
            _register(item, env, redactor, str(inner))
    elif isinstance(value, str | int) and not isinstance(value, bool):
        match = _FROM_ENVIRONMENT.fullmatch(str(value))
        if match is not None:
            redactor.add(env.get(match["iceberg"] or match["hadoop"], ""))
        elif is_secret_key(key):
            redactor.add(str(value))
        else:
            for secret in url_secrets(str(value)):
                redactor.add(secret)


SECRET_PREFIX = "DBT_ENV_SECRET"  # dbt hides the values of variables with this prefix


class _Text(str):
    """The result of the `as_text` filter, which stays a string."""


class _Native(str):
    """The result of the `as_native` filter, which is parsed if it is a Python literal."""


class _Bool(_Native):
    """The result of the `as_bool` filter, which must be a boolean literal."""


class _Number(_Native):
    """The result of the `as_number` filter, which must be a numeric literal."""


def _native_concat(nodes: Iterator[Any]) -> Any:
    """Implements dbt's ``quoted_native_concat``, which parses strings only after a filter."""
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
        raise SpecError("the value is not a boolean", remedy="Write True or False")
    if isinstance(raw, _Number) and not is_number:
        raise SpecError("the value is not a number", remedy="Write a number")
    return value


class _Template(jinja2.nativetypes.NativeTemplate):
    def render(self, *args: Any, **kwargs: Any) -> Any:
        return _native_concat(self.root_render_func(self.new_context(dict(*args, **kwargs))))


class _Environment(jinja2.sandbox.SandboxedEnvironment):
    code_generator_class = jinja2.nativetypes.NativeCodeGenerator
    template_class = _Template


class Renderer:
    """Renders the values of a profile, with the functions that dbt provides for profiles."""

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
        """Renders a string, and formats a date. Returns other values unchanged.

        Raises:
            SpecError: if the string cannot be rendered.
        """
        if isinstance(value, dt.date):
            return value.isoformat()
        if not isinstance(value, str):
            return value
        try:
            template = self._jinja.from_string(value)
            result = template.render(env_var=self._env_var, var=self._var)
        except SpecError as error:
            raise SpecError(error.what, where=where, remedy=error.remedy) from None
        except Exception as error:  # Jinja evaluates expressions, which may raise any exception
            if "password" in keys:
                return value  # a password may look like Jinja; dbt does the same
            raise SpecError(
                f"cannot be rendered: {excerpt(str(error), 500)}",
                where=where,
                remedy="Correct the expression",
            ) from None
        if isinstance(result, jinja2.Undefined):
            raise SpecError(
                f"{result._undefined_name!r} is not defined in profiles",
                where=where,
                remedy="Use env_var(…) or var(…)",
            )
        return self._with_secrets(result)

    def _env_var(self, name: str, default: Any = None) -> Any:
        if name in self.env:
            # Secrets are inserted only after rendering, so that Jinja filters cannot read them.
            return _placeholder(name) if name.startswith(SECRET_PREFIX) else self.env[name]
        if default is not None:
            return default
        raise SpecError(
            f"the environment variable {name} is not set",
            remedy=f"{did_you_mean(name, self.env)} Set it, or add a default: "
            f"env_var('{name}', '…')".strip(),
        )

    def _var(self, name: str, *default: Any) -> Any:
        if default:
            return default[0]
        raise SpecError(
            f"the variable {name} has no value",
            remedy=f"Give it a default: var('{name}', '…'); or use env_var",
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
