"""A project whose runs a scheduler starts."""

from tests.sync.conftest import project as project
from tests.telemetry.conftest import shop as shop
