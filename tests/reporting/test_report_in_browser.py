"""The report in Chromium, as people have it: ``make test-browser`` installs what drives it.

On a phone, in the dark, on paper, by the keyboard, and for a screen reader.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from drlpp.placement.measurements_file import Entry, append
from drlpp.reporting.page import write_report
from tests.support.measured import measurement
from tests.support.reports import ONE, TWO, Page, learned_run, raced_and_trained

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.browser

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = (1100, 900), (390, 844)
"""Width and height in pixels."""

SHEET = 718
"""Pixels of A4 between its margins."""

CONTRAST = """
const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = colour => {
  const found = colour.match(/[\\d.]+/g).map(Number);
  return found.length < 4 ? [...found.slice(0, 3), 1] : found;
};
const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => c * a + below[i] * (1 - a));
const paper = element => {
  if (!element) return [255, 255, 255];
  const own = numbers(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, paper(element.parentElement));
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement, style = getComputedStyle(element);
  if (!texts.currentNode.data.trim() || !element.getClientRects().length) continue;
  const ink = numbers(element.closest("svg") ? style.fill : style.color);
  for (let at = element; at; at = at.parentElement) ink[3] *= Number(getComputedStyle(at).opacity);
  // Vega hides labels that would overlap.
  if (ink[3] === 0) continue;
  const below = paper(element), [more, less] = [light(over(ink, below)), light(below)];
  const ratio = (Math.max(more, less) + 0.05) / (Math.min(more, less) + 0.05);
  found.push([texts.currentNode.data.trim(), ratio]);
}
return found;
"""
"""Every text that is shown, and the contrast to what is below it (WCAG 2)."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section."""
    folder = learned_run(tmp_path_factory.mktemp("run"))
    # Not in the order of their times, nor in that of their texts.
    for placement, seconds in ((ONE, 0.0999), (TWO, 0.0081), (ONE, 1.5)):
        append(
            folder / "measurements.jsonl",
            Entry(placement=placement, outcome=measurement(seconds, len(placement.stages))),
        )
    raced_and_trained(folder)
    return write_report(folder)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "needs `apt-get install chromium`"
    assert driver, "needs `apt-get install chromium-driver`"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as chrome:
        yield chrome


@pytest.fixture
def show(browser: Chrome, report: Path) -> Callable[..., Chrome]:
    """Opens the page on a screen, a phone or paper, and waits until it is drawn."""

    def opened(
        size: tuple[int, int] = DESKTOP, media: str = "screen", dark: bool = False
    ) -> Chrome:
        from selenium.webdriver.support.wait import WebDriverWait

        width, height = size
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE},
        )
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": size == PHONE})
        emulate(browser, "screen", dark)
        browser.get(report.as_uri())
        WebDriverWait(browser, 120).until(
            lambda found: found.execute_script(
                "return document.querySelectorAll('.chart svg[role=img]').length === CHARTS.length"
            )
        )
        return browser

    return opened


def emulate(browser: Chrome, media: str, dark: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})


def boxes(browser: Chrome, selector: str) -> list[dict[str, Any]]:
    """The boxes of some elements: how wide they are shown, and how wide their content is."""
    found: list[dict[str, Any]] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => ({shown: e.clientWidth, "
        "content: e.scrollWidth, right: e.getBoundingClientRect().right, "
        "overflow: getComputedStyle(e).overflowX}))",
        selector,
    )
    assert found, selector
    return found


def test_nothing_fails_and_nothing_is_loaded_from_elsewhere(
    show: Callable[..., Chrome], report: Path
) -> None:
    page = show()
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource')") == []
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
        and event["params"]["documentURL"] == report.as_uri()
    }
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {report.as_uri()}


def test_every_chart_is_a_picture_with_a_description(
    show: Callable[..., Chrome], report: Path
) -> None:
    page = show()
    found = page.execute_script(
        "return [...document.querySelectorAll('.chart svg.marks')].map(picture => "
        "[picture.getAttribute('aria-label'), picture.querySelectorAll('path, line, text').length])"
    )
    charts = Page(report).charts
    assert [name for name, _ in found] == [chart["description"] for chart in charts]
    assert all(marks > 10 for _, marks in found), found
    described = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    pictures = [node["name"]["value"] for node in described if node["role"]["value"] == "image"]
    assert set(pictures) >= {chart["description"] for chart in charts}


def test_headings_are_in_order(show: Callable[..., Chrome]) -> None:
    levels = show().execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(h => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_a_phone_shows_it_without_moving_the_page_aside(show: Callable[..., Chrome]) -> None:
    page = show(PHONE)
    (whole,) = boxes(page, "html")
    assert whole["content"] == whole["shown"] == PHONE[0]
    tables = boxes(page, ".scroll")
    assert all(box["right"] <= PHONE[0] and box["overflow"] == "auto" for box in tables)
    # Or this test would say nothing of wide tables.
    assert any(box["content"] > box["shown"] for box in tables)
    for chart in boxes(page, ".chart"):
        assert chart["content"] <= chart["shown"]


def test_a_phone_that_is_turned_has_charts_as_wide_as_it_is_then(
    show: Callable[..., Chrome],
) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    page = show(PHONE)
    narrow = boxes(page, "#chart0 svg.marks")[0]["shown"]
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": PHONE[1], "height": PHONE[0], "deviceScaleFactor": 1, "mobile": True},
    )
    WebDriverWait(page, 60).until(
        lambda found: boxes(found, "#chart0 svg.marks")[0]["shown"] > narrow + 200
    )


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(show: Callable[..., Chrome], dark: bool) -> None:
    page = show(dark=dark)
    texts = page.execute_script(CONTRAST)
    assert len(texts) > 100
    assert {text for text, _ in texts} >= {"The race", "milliseconds per minibatch"}
    assert [(text, ratio) for text, ratio in texts if ratio < 4.5] == []
    paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark


def test_paper_has_everything_and_is_white(show: Callable[..., Chrome], report: Path) -> None:
    """Also where the screen is dark, and nothing is cut off at the margin."""
    page = show(dark=True)
    # Charts have been drawn for the screen: a page that is printed is not told its new width.
    emulate(page, "print", dark=True)
    page.execute_script("document.body.style.width = arguments[0] + 'px'", SHEET)
    edge = page.execute_script("return document.body.getBoundingClientRect().right")
    for box in (*boxes(page, ".scroll"), *boxes(page, ".chart"), *boxes(page, "pre")):
        assert box["content"] <= box["shown"]
    for picture in boxes(page, "svg.marks"):
        assert picture["right"] <= edge
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    texts = page.execute_script(CONTRAST)
    assert [(text, ratio) for text, ratio in texts if ratio < 4.5] == []
    shown = {text for text, _ in texts}
    expected = Page(report)
    assert {heading for heading in expected.headings if heading not in shown} == set()
    assert {cell for cell in expected.cells if cell and cell.strip() not in shown} == set()
    hidden = page.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => "
        "getComputedStyle(e).display === 'none' && "
        "!e.closest('details, .tip, .vega-bindings, svg'))"
        ".map(e => e.outerHTML)"
    )
    assert hidden == []


def test_a_click_on_a_heading_sorts(show: Callable[..., Chrome]) -> None:
    page = show()
    button = page.find_element("xpath", "//th/button[text()='a minibatch']")

    def column() -> list[str]:
        return page.execute_script(
            "const th = arguments[0].closest('th'), rows = th.closest('table').tBodies[0].rows;"
            "return [...rows].map(row => row.cells[th.cellIndex].textContent)",
            button,
        )

    def direction() -> str | None:
        return page.execute_script(
            "return arguments[0].closest('th').getAttribute('aria-sort')", button
        )

    failure = "failed: nobody said a word"
    rising = ["6.00 ms", "8.10 ms", "10.00 ms", "99.90 ms", "1.50 s"]
    assert column() == ["10.00 ms", "6.00 ms", failure, "99.90 ms", "8.10 ms", "1.50 s"]
    assert direction() is None
    button.click()
    assert column() == [*rising, failure]
    assert direction() == "ascending"
    button.click()
    assert column() == [*reversed(rising), failure]
    assert direction() == "descending"


def shown_tips(page: Chrome) -> list[str]:
    """The text of every tooltip that can be seen, whole and on the screen."""
    return page.execute_script(
        "return [...document.querySelectorAll('[role=tooltip]')].filter(tip => {"
        "const box = tip.getBoundingClientRect(); return box.width > 0 && box.left >= 0 && "
        "box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;"
        "}).map(tip => tip.textContent)"
    )


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_placement_shows_its_stages_under_the_mouse_and_by_keyboard(
    show: Callable[..., Chrome], size: tuple[int, int]
) -> None:
    from selenium.webdriver import ActionChains, Keys

    page = show(size)
    first, second = page.find_elements("css selector", "button.look")[:2]
    one, two = "stage 0 on accelerator 0: 4 operators", "stage 1 on accelerator 1: 2 operators"
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", first)
    assert shown_tips(page) == []
    ActionChains(page).move_to_element(first.find_element("xpath", "./../../td[2]")).perform()
    (tip,) = shown_tips(page)
    assert one in tip
    assert two not in tip
    ActionChains(page).move_to_element(page.find_element("tag name", "h1")).perform()
    assert shown_tips(page) == []
    page.execute_script("arguments[0].focus()", first)
    ActionChains(page).send_keys(Keys.TAB).perform()
    assert page.switch_to.active_element == second
    (tip,) = shown_tips(page)
    assert two in tip
    # What a screen reader says of it.
    assert second.get_attribute("aria-describedby") == page.execute_script(
        "return document.querySelector('[role=tooltip]:not([hidden])').id"
    )
    ActionChains(page).send_keys(Keys.ESCAPE).perform()
    assert shown_tips(page) == []
