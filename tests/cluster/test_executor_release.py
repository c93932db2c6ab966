"""`run --every` releases its executors between rounds, if set up as in docs/operations.md."""

from __future__ import annotations

import pytest
import yaml

from tests.cluster.commands import start_loader
from tests.cluster.project import Place
from tests.cluster.slow_sync import wait_for
from tests.crash import shop
from tests.services import Database
from tests.setup.pages import ROOT, blocks
from tests.sync.project import Project

PAGE = (ROOT / "docs" / "operations.md").read_text()
TABLES = ["orders"]
EVERY = 20


@pytest.mark.parametrize("place", ["jdbc"], indirect=True)
def test_executors_are_released_between_rounds(
    place: Place, lakehouse: Project, postgres_database: Database
) -> None:
    [text] = [b for b in blocks(PAGE, "yaml") if "spark.dynamicAllocation.enabled" in b]
    settings = yaml.safe_load(text.replace("60s", "3s"))
    path = lakehouse.folder / "profiles.yml"
    profiles = yaml.safe_load(path.read_text())
    profiles["strandline"]["outputs"]["cluster"]["server_side_parameters"] |= settings
    path.write_text(yaml.safe_dump(profiles))
    shop.create(postgres_database, TABLES)
    shop.configure(lakehouse, postgres_database, TABLES)
    before = {each["id"] for each in place.cluster.state()["activeapps"]}
    loop = start_loader(place, lakehouse, "run", "--every", f"{EVERY}s")

    def cores() -> int:
        assert loop.poll() is None, "the loop has ended"
        apps = place.cluster.state()["activeapps"]
        return sum(int(each["cores"]) for each in apps if each["id"] not in before)

    try:
        for number in range(2):
            wait_for(f"no executor in round {number}", lambda: cores() > 0)
            if number == 0:
                shop.change(postgres_database, TABLES)
            wait_for(f"executors were kept after round {number}", lambda: cores() == 0)
        loop.terminate()
        output, _ = loop.communicate(timeout=60)
        assert loop.returncode == 0, output
    finally:
        loop.kill()
        loop.wait()
    batches = [shop.FIRST, shop.ADDED + shop.UPDATED]
    shop.assert_whole(lakehouse, postgres_database, TABLES, batches)
