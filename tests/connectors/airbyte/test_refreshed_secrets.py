"""If a connector refreshes its configuration, only the secrets in it are redacted."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.airbyte.source import AirbyteSource
from loader.errors import TableError
from loader.spec.redaction import Redactor

SPEC = {
    "type": "SPEC",
    "spec": {
        "connectionSpecification": {
            "properties": {
                "login": {
                    "oneOf": [
                        {"properties": {"refresh": {"type": "string", "airbyte_secret": True}}}
                    ]
                }
            }
        }
    },
}


@pytest.fixture
def redactor() -> Redactor:
    return Redactor()


@pytest.fixture
def source(tmp_path: Path, redactor: Redactor) -> AirbyteSource:
    program = f"print({json.dumps(json.dumps(SPEC))})"
    options = AirbyteSource.options_model(command=[sys.executable, "-c", program], config={"a": 1})
    made = AirbyteSource("crm", options, None, tmp_path)  # type: ignore[arg-type]
    made.hide = redactor.add
    return made


def control(config: dict[str, Any]) -> dict[str, Any]:
    return {"type": "CONNECTOR_CONFIG", "connectorConfig": {"config": config}}


def test_only_declared_secrets_and_secret_keys_are_hidden(
    source: AirbyteSource, redactor: Redactor
) -> None:
    source._store_update(
        control(
            {
                "login": {"refresh": "q7-renewed", "kind": "zebra-crossing"},
                "access_token": "q8-token",
                "start_date": "2024-01-01",
                "tables": ["zebra-orders"],
            }
        )
    )
    assert redactor.redact("q7-renewed, q8-token, q7-renewedly") == "***, ***, q7-renewedly"
    text = "zebra-crossing since 2024-01-01 in zebra-orders"
    assert redactor.redact(text) == text


def test_a_connector_cannot_redact_any_number_of_texts(
    source: AirbyteSource, redactor: Redactor
) -> None:
    began = time.process_time()
    many = {f"token{n}": f"q-word-{n}" for n in range(4_000)}
    with pytest.raises(TableError, match=r"more than 1,000 secrets .* authors"):
        source._store_update(control(many))
    with pytest.raises(TableError, match="1,000,000 characters"):
        source._store_update(control({"token": "q" * 1_000_001}))
    source._store_update(control({f"token{n}": f"q-piece-{n}" for n in range(600)}))
    with pytest.raises(TableError, match="1,000 secrets"):  # nor by many messages
        source._store_update(control({f"token{n}": f"q-part-{n}" for n in range(600)}))
    assert redactor.redact("q-piece-5, q-part-5") == "***, q-part-5"
    assert redactor.redact("q-word-5 of 7") == "q-word-5 of 7"
    assert time.process_time() - began < 5  # without the limit, it took 33 seconds
