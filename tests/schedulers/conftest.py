"""A project for the tests of schedulers."""

from tests.sync.conftest import project as project
from tests.telemetry.conftest import shop as shop
