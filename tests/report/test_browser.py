"""The page of `loader report` in Chromium: layout, contrast, keyboard and script policy.

`make test-report` runs it. The screenshots are written to the folder in REPORT_PICTURES, or to a
temporary one.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from loader.report.page import render_page
from loader.report.serve import ReportServer
from tests.report.simulation import REPORTS, report_with_incidents
from tests.unit.test_report_page import _poison

SCREENS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "device_scale_factor": 2,
    },
    "tablet": {"viewport": {"width": 820, "height": 1180}, "color_scheme": "light"},
}
CONTRAST = """
() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => {
      c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll("main *, header *, footer *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${element.className || element.tagName}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(low)];
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, without its sandbox if the tests run as root."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "Chromium is missing: `make test-report` installs it with apt-get"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        running = playwright.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages and their screenshots."""
    folder = Path(os.environ.get("REPORT_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in REPORTS.items():
        (folder / f"{name}.html").write_text(render_page(build()), encoding="utf-8")
    hostile = render_page(_poison(report_with_incidents()))
    (folder / "hostile.html").write_text(hostile, encoding="utf-8")
    return folder


class Watched:
    """An open page, with everything that it logs and requests."""

    def __init__(self, browser: Browser, address: str, **screen: Any) -> None:
        self.context = browser.new_context(**screen)
        self.page: Page = self.context.new_page()
        self.logged: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("dialog", lambda dialog: self.logged.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(address)
        self.page.wait_for_load_state("load")

    def close(self) -> None:
        """Closes the page, which must have logged nothing and requested nothing but itself."""
        self.context.close()
        assert self.logged == []
        assert [url for url in self.requested[1:] if not url.startswith("data:")] == []


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", REPORTS)
def test_layout_and_contrast_on_each_screen(
    browser: Browser, pictures: Path, name: str, screen: str
) -> None:
    watched = Watched(browser, (pictures / f"{name}.html").as_uri(), **SCREENS[screen])
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]  # type: ignore[index]
    drawn = page.locator(".chart canvas").count()
    assert drawn == page.locator(".chart[data-drawn]").count() > (0 if name != "empty" else -1)
    assert page.evaluate(CONTRAST) == []
    # The summary and all problems of the month are on the first screen.
    if name == "incidents":
        last = page.locator(".problems > li").last.bounding_box()
        assert last is not None
        assert last["y"] + last["height"] < SCREENS[screen]["viewport"]["height"]
    page.screenshot(path=pictures / f"{name}-{screen}-top.png")
    page.screenshot(path=pictures / f"{name}-{screen}.png", full_page=True)
    watched.close()


def test_a_dark_page_prints_dark_on_white(browser: Browser, pictures: Path) -> None:
    watched = Watched(browser, (pictures / "incidents.html").as_uri(), color_scheme="dark")
    watched.page.pdf(path=pictures / "incidents.pdf", format="A4", print_background=True)
    watched.page.emulate_media(media="print", color_scheme="dark")
    watched.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = watched.page.evaluate("getComputedStyle(document.body).color")
    assert (background, ink) == ("rgb(255, 255, 255)", "rgb(29, 28, 26)")
    assert (pictures / "incidents.pdf").stat().st_size > 20_000
    watched.page.screenshot(path=pictures / "incidents-print.png", full_page=True)
    watched.close()


def test_hostile_names_and_errors(browser: Browser, pictures: Path) -> None:
    watched = Watched(browser, (pictures / "hostile.html").as_uri(), **SCREENS["phone"])
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert "<img src=x onerror=alert(1)>" in page.locator("h1").inner_text()
    assert page.locator("img").count() == 0
    assert page.evaluate("[...document.scripts].length") == 3
    watched.close()


def test_the_policy_stops_a_script_that_is_planted_anyway(browser: Browser, pictures: Path) -> None:
    planted = pictures / "planted.html"
    text = (pictures / "good.html").read_text(encoding="utf-8")
    attack = "<script>document.title='owned'</script><img src=https://evil.example/x>"
    planted.write_text(text.replace("<main>", f"<main>{attack}"), encoding="utf-8")
    watched = Watched(browser, planted.as_uri(), **SCREENS["desktop"])
    assert watched.page.title() != "owned"
    assert len([text for text in watched.logged if "Content Security Policy" in text]) >= 2
    watched.context.close()
    planted.unlink()


def test_keyboard(browser: Browser, pictures: Path) -> None:
    watched = Watched(browser, (pictures / "incidents.html").as_uri(), **SCREENS["desktop"])
    page = watched.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "shop.payments"
    page.keyboard.press("Enter")
    assert page.url.endswith("#t3")
    # A link opens the section of a table and draws its charts.
    orders = page.locator("details[data-table=t0]")
    assert not orders.evaluate("each => each.open")
    page.locator(".overview a", has_text="shop.orders").focus()
    page.keyboard.press("Enter")
    expect(orders).to_have_attribute("open", "")
    expect(orders.locator("canvas")).to_have_count(4)
    # The arrow keys read a chart.
    plot = page.locator(".chart .plot").first
    assert "rows appended" in (plot.get_attribute("aria-label") or "").lower()
    plot.focus()
    readout = page.locator(".chart .readout").first
    page.keyboard.press("End")
    assert readout.inner_text().startswith("30 Nov 2026")
    page.keyboard.press("ArrowLeft")
    assert readout.inner_text().startswith("29 Nov 2026")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert readout.inner_text().startswith("2 Nov 2026")
    # The same numbers are also in a table.
    page.locator(".chart .numbers summary").first.click()
    expect(page.locator(".chart .numbers tbody tr")).to_have_count(30)
    watched.close()


def test_charts_are_redrawn_in_dark_mode(browser: Browser, pictures: Path) -> None:
    watched = Watched(browser, (pictures / "good.html").as_uri(), **SCREENS["desktop"])
    page = watched.page
    before = page.locator(".chart canvas").first.evaluate("canvas => canvas.toDataURL()")
    page.emulate_media(color_scheme="dark")
    for _ in range(100):
        after = page.locator(".chart canvas").first.evaluate("canvas => canvas.toDataURL()")
        if after != before:
            break
        page.wait_for_timeout(50)
    assert after != before
    watched.close()


def test_a_served_page_refreshes_and_keeps_open_sections(browser: Browser) -> None:
    count = iter(range(1000))

    def render() -> str:
        return render_page(report_with_incidents(), spec=f"round {next(count)}", refresh=1)

    with ReportServer(0, render, refresh=0.1) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        logged: list[str] = []
        page.on("console", lambda message: logged.append(message.text))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.goto(server.address)
        assert "round 0" in page.locator("footer").inner_text()
        page.locator("details[data-table=t0] > summary").click()
        expect(page.locator("footer")).not_to_contain_text("round 0")
        expect(page.locator("details[data-table=t0]")).to_have_attribute("open", "")
        context.close()
        server.shutdown()
    assert logged == []
