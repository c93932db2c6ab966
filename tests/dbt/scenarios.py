"""Runs the tests of a file in parallel steps and merges their dbt commands to save time.

A scenario is a test that yields the dbt commands that it needs and receives the answers. A command
costs as much as several models: dbt starts, parses the project, lists tables, writes records.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject, Result


@dataclass(frozen=True)
class Command:
    """A dbt command on some nodes. Equal commands of one step are run as one.

    Args:
        words: the command and its options.
        nodes: what it selects.
        read: computes the answer to the scenario from all results of the step.
    """

    words: tuple[str, ...]
    nodes: tuple[str, ...]
    read: Callable[[Mapping[str, Result]], Any] = field(compare=False)


Steps = Generator[Command, Any, None]


class Outcomes:
    """Runs scenarios to their end and keeps their errors.

    Args:
        scenarios: by name.
    """

    def __init__(self, project: DbtProject, scenarios: Mapping[str, Steps]) -> None:
        self._scenarios = scenarios
        self._wanted: dict[str, Command] = {}
        self._errors: dict[str, BaseException] = {}
        for name in scenarios:
            self._advance(name, None)
        while self._wanted:
            step, results, asked = {**self._wanted}, {}, {}
            for words in dict.fromkeys(command.words for command in step.values()):
                alike = [command for command in step.values() if command.words == words]
                nodes = dict.fromkeys(node for command in alike for node in command.nodes)
                results[words] = project.run(words[0], "--select", *nodes, *words[1:])
                asked[words] = project.asked
            for name, command in step.items():
                project.asked = asked[command.words]
                self._advance(name, command, results[command.words])

    def _advance(
        self, name: str, command: Command | None, results: Mapping[str, Result] | None = None
    ) -> None:
        """Runs a scenario up to its next command."""
        self._wanted.pop(name, None)
        try:
            answer = command.read(results or {}) if command else None
            self._wanted[name] = self._scenarios[name].send(answer)
        except StopIteration:
            pass
        except Exception as error:  # its own test raises it
            self._errors[name] = error

    def check(self, name: str) -> None:
        """Raises the error that ended a scenario, if any."""
        if name in self._errors:
            raise self._errors[name]


def in_step(scenario: Callable[..., Steps]) -> Callable[[Outcomes], None]:
    """Turns a scenario into a test that runs together with the others of its module.

    Its parameters are fixtures of the module or the session. The module needs :func:`outcomes`.
    """

    def test(outcomes: Outcomes) -> None:
        outcomes.check(scenario.__name__)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    test.scenario = scenario  # type: ignore[attr-defined]
    return test


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, project: DbtProject) -> Outcomes:
    """Runs those scenarios of the module that pytest has selected."""
    scenarios = {}
    for item in request.session.items:
        scenario = getattr(getattr(item, "function", None), "scenario", None)
        if scenario is not None and item.path == request.path:
            given = {name: request.getfixturevalue(name) for name in _parameters(scenario)}
            scenarios[item.name] = scenario(**given)
    return Outcomes(project, scenarios)


def _parameters(scenario: Callable[..., Steps]) -> list[str]:
    return [*inspect.signature(scenario).parameters]
