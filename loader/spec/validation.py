"""Translates pydantic's errors into loader errors, which state the key, problem and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from loader.errors import SpecError, did_you_mean, one_error
from loader.spec.expansion import key_path
from loader.spec.redaction import Redactor, is_secret_key, redact_foreign

Model = TypeVar("Model", bound=BaseModel)

_MISSING = "this key is missing"
_LIST = ("must be a list", "Use a list, for example [a, b]")
_KEYS = ("must be a mapping", "Write `key: value`, indented below it")
_EXAMPLES = {"mask": "{email: hash}", "reconcile": "{every: 1 day}", "column_types": "{id: bigint}"}
# Maps the part of pydantic's error type before the first underscore to the problem and the remedy.
_TYPES = {
    "bool": ("must be true or false", "Use true or false"),
    "int": ("must be a whole number", "Use a whole number"),
    "float": ("must be a number", "Use a number"),
    "decimal": ("must be a number", "Use a number"),
    "string": ("must be a string", "Use a string; put it in quotes"),
    "tuple": _LIST,
    "list": _LIST,
    "dict": _KEYS,
    "model": _KEYS,
}


class OptionError(ValueError):
    """An error with a remedy, for validators of option models to raise."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def validate_options(
    model: type[Model], value: Mapping[str, Any], where: str, redactor: Redactor
) -> Model:
    """Validates a value, and reports all mistakes in one error.

    Args:
        model: the pydantic model, which may belong to a connector.
        value: the value in the spec, after expansion.

    Raises:
        SpecError: if there are mistakes. The error states the key, problem and remedy of each
            mistake.
    """
    errors = validation_errors(model, value, where, redactor)
    if isinstance(errors, model):
        return errors
    assert isinstance(errors, list)
    raise one_error(errors, where)


def validation_errors(
    model: type[Model], value: Mapping[str, Any], where: str, redactor: Redactor
) -> Model | list[SpecError]:
    """Returns the valid model, or an error for each mistake."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        errors = [_build_error(each, model, value, where, redactor) for each in details]
        # For a union, pydantic reports one error for each member. Only the first error is used.
        # Pydantic reports a misspelt required key both as unknown and as missing. The error for the
        # missing key is dropped.
        misspelt = {each.where.rpartition(".")[0] + each.remedy for each in errors if each.remedy}
        first: dict[str, SpecError] = {}
        for each in errors:
            level, _, key = each.where.rpartition(".")
            if not (each.what == _MISSING and f"{level}Did you mean `{key}`?" in misspelt):
                first.setdefault(each.where, each)
        return list(first.values())


def _build_error(
    detail: ErrorDetails, model: type[BaseModel], value: Any, where: str, redactor: Redactor
) -> SpecError:
    kind = detail["type"]
    keys = _find_keys(detail["loc"], value, absent_last=kind in ("missing", "extra_forbidden"))
    secret = any(isinstance(key, str) and is_secret_key(key) for key in keys)
    shown = "" if secret else redact_foreign(_format_value(detail["input"]))
    what, remedy = _explain(detail, model, keys, shown)
    path = key_path(keys)
    joint = "" if not path or path.startswith("[") else "."
    return SpecError(
        redactor.redact(what), where=f"{where}{joint}{path}", remedy=redactor.redact(remedy)
    )


def _explain(
    detail: ErrorDetails, model: type[BaseModel], keys: tuple[str | int, ...], shown: str
) -> tuple[str, str]:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = list_known_keys(model, keys[:-1])
        near = _find_other_level(model, keys) or did_you_mean(str(keys[-1]), known)
        return "unknown key", near or f"Valid keys: {', '.join(known) or 'none'}"
    if kind == "missing":
        return _MISSING, f"Add `{keys[-1]}: …`"
    if kind == "literal_error":
        near = did_you_mean(shown.strip("'"), _literals(context)) if shown else ""
        given = f", not {shown}" if shown else ""
        return f"must be {context['expected']}{given}", near or "Use one of these values"
    if kind == "value_error":
        error = context.get("error")
        remedy = error.remedy if isinstance(error, OptionError) else "Correct the value"
        return str(error), remedy
    if kind in ("too_short", "string_too_short"):
        return (
            "must not be empty",
            "List at least one value" if kind == "too_short" else "Enter a value",
        )
    given = f", not {shown}" if shown else ""
    family, _, rest = kind.partition("_")
    if family in _TYPES and rest in ("type", "parsing", "from_float", "parsing_size"):
        what, remedy = _TYPES[family]
        if _TYPES[family] is _LIST and shown.startswith("'"):
            items = ", ".join(f'"{item.strip()}"' for item in shown.strip("'").split(","))
            remedy = f"Write [{items}]"
        if _TYPES[family] is _KEYS and keys and keys[-1] in _EXAMPLES:
            remedy = f"Use for example {_EXAMPLES[str(keys[-1])]}"
        return what + given, remedy
    message = detail["msg"].removeprefix("Input ")
    return message[:1].lower() + message[1:] + given, "Correct the value"


def _find_other_level(model: type[BaseModel], keys: tuple[str | int, ...]) -> str:
    """Returns the remedy for a key that is only valid at a deeper level, or ""."""
    *above, key = keys
    if key == "table_options":
        return "Move it into the inner `spec`, which has the connector's options"
    if key in list_known_keys(model, (*above, "table_options", "*")):
        return f"Move it to a table: `table_options: {{<table>: {{{key}: …}}}}`"
    return ""


def _literals(context: Mapping[str, Any]) -> list[str]:
    return [
        part for part in str(context["expected"]).split("'") if part.strip() not in ("or", ",", "")
    ]


def _format_value(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return repr(value) if isinstance(value, str) and len(value) <= 60 else ""


def _find_keys(loc: Iterable[str | int], value: Any, *, absent_last: bool) -> tuple[str | int, ...]:
    """Returns the keys in the location of a pydantic error, without the names of validators.

    Args:
        absent_last: whether the last part of the location is a key that `value` does not contain.
    """
    parts = list(loc)
    keys: list[str | int] = []
    for i, part in enumerate(parts):
        is_key = isinstance(value, Mapping) and part in value
        is_index = isinstance(value, list | tuple) and part in range(len(value))
        if is_key or is_index:
            value = value[part]
        elif not (absent_last and i == len(parts) - 1):
            continue
        keys.append(part)
    return tuple(keys)


def list_known_keys(model: type[BaseModel], keys: Iterable[str | int]) -> list[str]:
    """Returns the keys that `model` accepts at a path, as written in a spec."""
    types: list[Any] = [model]
    for key in keys:
        types = [inner for each in types for inner in _list_types_below(each, key)]
    models = [each for each in types if isinstance(each, type) and issubclass(each, BaseModel)]
    return [name for each in models for name in _fields(each)]


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _list_types_below(annotation: Any, key: str | int) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = _fields(annotation).get(str(key))
        return [] if inner is None else _members(inner)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return _members(arguments[1])
    if origin in (list, tuple, set, frozenset) and arguments:
        return _members(arguments[0])
    return []


def _members(annotation: Any) -> list[Any]:
    """Returns the members of a union, or a list with just the type if it is not a union."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    arguments = get_args(annotation)
    is_generic = isinstance(get_origin(annotation), type) and issubclass(
        get_origin(annotation), Mapping | list | tuple | set | frozenset
    )
    if arguments and not is_generic:
        return [inner for argument in arguments for inner in _members(argument)]
    return [annotation]
