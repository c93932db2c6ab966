"""Builds the JSON Schema of ``loader.yml``, which lets editors complete and check keys.

The schema describes one YAML document. It is generated from the pydantic models that validate the
spec, with descriptions from the `Attributes` sections of the models' docstrings. It accepts the
same keys as the loader, and every value that the loader accepts, except booleans in place of
numbers and numbers in place of booleans. It also accepts some values that only the loader can
reject.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from loader.spec.document import TEXT_KEYS
from loader.spec.plugins import LakeOptions, PluggedDestination, SourceSpec
from loader.spec.redaction import is_secret_key

# The YAML language server reads draft-07. Its support for later drafts is incomplete.
DIALECT = "http://json-schema.org/draft-07/schema#"
_VARIABLE = r"\$\{|@@plugins\."
# The value of a variable is a string, which pydantic converts to the option's type. So quoted
# values are also valid.
_TEXTS = {
    "integer": r"^\s*[+-]?[0-9][0-9_]*(\.0*)?\s*$",
    "number": r"^\s*[+-]?[0-9._eE+-]+\s*$|[iI][nN][fF]|[nN][aA][nN]",
    "boolean": "^([tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?"
    "|[oO]([nN]|[fF][fF])|[01])$",
}
_ANNOTATIONS = ("description", "default", "examples")

Schema = dict[str, Any]


def build_schema(
    connectors: Mapping[str, type[BaseModel] | None],
    stores: Mapping[str, type[BaseModel] | None],
) -> Schema:
    """Returns the JSON Schema of a document.

    Args:
        connectors: maps the `path` of a source to the model of the connector's options. None
            accepts all options.
        stores: maps the `path` of a destination that stores state to the model of its options.
    """
    destinations: dict[str, type[BaseModel] | None] = {"spark": LakeOptions, **stores}
    documents: dict[str, type[BaseModel]] = {
        "source": SourceSpec,
        "destination": PluggedDestination,
    }
    options = [model for model in (*connectors.values(), *destinations.values()) if model]
    references, generated = models_json_schema(
        [(model, "validation") for model in dict.fromkeys((*documents.values(), *options))],
        ref_template="#/definitions/{model}",
        schema_generator=_Generator,
    )
    definitions: dict[str, Schema] = generated["$defs"]
    for kind, paths in (("source", connectors), ("destination", destinations)):
        reference = references[documents[kind], "validation"]["$ref"]
        document = definitions[reference.rpartition("/")[2]]
        document["properties"]["path"]["enum"] = sorted(paths)
        document["allOf"] = [
            _when("path", path, _spec_of(options_model, references[options_model, "validation"]))
            for path, options_model in sorted(paths.items())
            if options_model is not None
        ]
    return {
        "$schema": DIALECT,
        "title": "A document of loader.yml",
        "type": "object",
        "required": ["kind", "spec"],
        "additionalProperties": False,
        "properties": {
            "kind": {
                "description": "A source is read. A destination is a lake or a store of state.",
                "enum": list(documents),
            },
            "spec": {"type": "object"},
        },
        "allOf": [
            _when("kind", kind, {"properties": {"spec": references[model, "validation"]}})
            for kind, model in documents.items()
        ],
        "definitions": {name: _adapt(value) for name, value in sorted(definitions.items())},
    }


class _Generator(GenerateJsonSchema):
    """Generates the schemas of models, with descriptions from the models' docstrings."""

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        result = super().model_schema(schema)
        model = schema["cls"]
        descriptions = describe_attributes(model)
        for name, field in model.model_fields.items():
            part = result["properties"][field.alias or name]
            if name in descriptions:
                part.setdefault("description", descriptions[name])
            if model.model_config.get("coerce_numbers_to_str"):
                _accept_numbers(part)
        result["description"] = _plain(inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0])
        return result


def describe_attributes(model: type[BaseModel]) -> dict[str, str]:
    """Returns the descriptions in the `Attributes` sections of a class and its base classes.

    If several classes describe an attribute, the description in the base class comes first.
    """
    descriptions: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        text = inspect.cleandoc(vars(cls).get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        for names, words in re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", section, re.M):
            for name in names.split(", "):
                description = _plain(words)
                before = descriptions.get(name)
                descriptions[name] = f"{before} {description}" if before else description
    return descriptions


def _plain(text: str) -> str:
    text = re.sub(r"\s*\(:\w+:`[^`]*`\)", "", " ".join(text.split()))
    text = re.sub(r":\w+:(?=`)", "", text).replace("``", "`")
    return text[:1].upper() + text[1:]


def _accept_numbers(node: Any) -> None:
    """Makes a schema accept numbers in place of strings. Does not change referenced schemas."""
    if isinstance(node, list):
        for part in node:
            _accept_numbers(part)
    elif isinstance(node, dict):
        if node.get("type") == "string" and not {"enum", "const", "pattern"} & node.keys():
            node["type"] = ["string", "number"]
        for key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf"):
            _accept_numbers(node.get(key))


def _spec_of(model: type[BaseModel], reference: Schema) -> Schema:
    if any(field.is_required() for field in model.model_fields.values()):
        return {"properties": {"spec": reference}, "required": ["spec"]}
    return {"properties": {"spec": {"anyOf": [reference, {"type": "null"}]}}}


def _when(key: str, value: str, then: Schema) -> Schema:
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def _adapt(node: Any, name: str = "") -> Any:
    """Adapts a generated schema to the values that a spec can contain.

    Allows a variable or reference in place of each single value, and removes generated titles.

    Args:
        name: the name of the property that `node` describes.
    """
    if isinstance(node, list):
        return [_adapt(part, name) for part in node]
    if not isinstance(node, dict):
        return node
    result = {key: value for key, value in node.items() if key != "title"}
    if "default" in result and result["default"] is None:
        del result["default"]
    if "properties" in result:
        result["properties"] = {key: _adapt(part, key) for key, part in node["properties"].items()}
    for key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "then"):
        if key in result:
            result[key] = _adapt(result[key], name)
    if "$ref" in result and len(result) > 1:  # draft-07 ignores the keywords beside `$ref`
        return {"allOf": [{"$ref": result.pop("$ref")}], **result}
    kind = str(result.get("type"))
    if kind == "string" and (name in TEXT_KEYS or is_secret_key(name)):
        result["type"] = ["string", "number", "boolean"]  # the loader reads them as text
    elif kind == "string" and "pattern" in result:
        result["pattern"] += f"|{_VARIABLE}"
    elif kind in _TEXTS or "enum" in result or "const" in result:
        text = f"{_TEXTS[kind]}|{_VARIABLE}" if kind in _TEXTS else _VARIABLE
        literal = {key: value for key, value in result.items() if key not in _ANNOTATIONS}
        annotations = {key: value for key, value in result.items() if key in _ANNOTATIONS}
        return {**annotations, "anyOf": [literal, {"type": "string", "pattern": text}]}
    return result
