"""The loop's arithmetic and dbt's arguments, without a loop."""

from __future__ import annotations

import pytest

from loader.cli.building import _given
from loader.cli.loop import rest_after


@pytest.mark.parametrize(
    ("failures", "every", "seconds"),
    [(1, 30, 30), (2, 30, 60), (4, 30, 240), (5, 30, 300), (5000, 0.5, 300), (7, 3600, 3600)],
)
def test_a_rest_grows_to_five_minutes_or_one_interval(
    failures: int, every: float, seconds: float
) -> None:
    assert rest_after(failures, every) == seconds


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--select", "x"], None),
        (["--target", "prod"], "prod"),
        (["--target=prod"], "prod"),
        (["-t", "prod"], "prod"),
        (["-tprod"], "prod"),
        (["-t", "dev", "-tprod"], "prod"),
        (["-t"], None),
    ],
)
def test_every_way_to_name_a_target_is_seen(arguments: list[str], target: str | None) -> None:
    assert (_given(arguments, "--target") or _given(arguments, "-t")) == target
