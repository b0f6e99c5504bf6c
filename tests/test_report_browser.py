"""The report in a real browser: links, sorting, hostile responses, phones, dark mode. `tox -e report` runs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import hostile_run
import pytest
import tools

if not tools.required():
    pytest.importorskip("selenium", reason="selenium is not installed: tox -e report has it")

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from stapo_repro import labels, paper
from stapo_repro.pages import outputs
from stapo_repro.paper import checkout
from stapo_repro.text import visible

pytestmark = tools.needs("chromium", "chromedriver")
WIDE, PHONE = (1280, 900), (375, 812)
COMMITTED = checkout() / "results" / "report.html"


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    """Chromium without a window; its log of the console is kept."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    # its sandbox does not start for root, as which containers run
    flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--force-device-scale-factor=1"]
    for flag in [*flags, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield opened
    finally:
        opened.quit()


def look(driver: WebDriver, page: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
    """Open a page at a size, as a reader who prefers `scheme` sees it."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page.resolve().as_uri())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    page = folder / "report.html"
    for path, data in outputs.report_page([], [hostile_run.build(folder)], page, 600).items():
        path.write_bytes(data)
    return page


def open_all(driver: WebDriver) -> None:
    driver.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_loaded_and_nothing_complains(driver: WebDriver, scheme: str):
    look(driver, COMMITTED, WIDE, scheme)
    open_all(driver)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert driver.title == "STAPO reproduction"


@pytest.mark.parametrize("page", ["committed", "hostile"])
def test_a_phone_scrolls_tables_and_not_the_page(driver: WebDriver, hostile: Path, page: str):
    look(driver, COMMITTED if page == "committed" else hostile, PHONE)
    open_all(driver)
    inner, scrolled = driver.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    assert inner == 375
    assert scrolled <= 375
    # something is wider than the page, and it scrolls in a region of its own
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    )
    assert wide > 0


def test_every_link_leads_somewhere(driver: WebDriver):
    look(driver, COMMITTED)
    links = driver.execute_script("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    names = set(driver.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)"))
    assert len(links) > 100
    assert [x for x in links if x.startswith("#") and x[1:] not in names] == []
    assert [x for x in links if not x.startswith("#") and not (COMMITTED.parent / x).is_file()] == []


def column(driver: WebDriver, table: str) -> list[str]:
    """Headings of the rows, from top to bottom."""
    return driver.execute_script(
        "return [...document.getElementById(arguments[0]).closest('table').tBodies[0].rows]"
        ".map(r => r.cells[0].textContent.trim())",
        table,
    )


def test_tables_are_sorted_by_keyboard_with_what_is_not_run_last(driver: WebDriver):
    look(driver, COMMITTED)
    section = driver.find_element(By.XPATH, "//caption[contains(., 'Qwen3-8B')]")
    name = str(section.get_attribute("id"))
    before = column(driver, name)
    head = section.find_element(By.XPATH, "./..").find_elements(By.CSS_SELECTOR, "thead th")[1]
    button = head.find_element(By.TAG_NAME, "button")
    assert (head.text.split()[0], head.get_attribute("aria-sort")) == ("AIME24", "none")
    rows = [(f"{label}, paper", paper.load().get("qwen3-8b", m, "t1.0")) for m, label in labels.METHODS.items()]
    values = {text: float(row.values["aime24"]) for text, row in rows if row is not None}
    for key, state, sign in ((Keys.ENTER, "descending", -1), (Keys.SPACE, "ascending", 1)):
        button.send_keys(key)
        assert head.get_attribute("aria-sort") == state
        ordered = sorted((n for n in before if n in values), key=lambda n: sign * values[n])
        assert column(driver, name) == [*ordered, *(n for n in before if n not in values)]
    button.send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "none"
    assert column(driver, name) == before


def test_hostile_responses_are_read_and_run_nothing(driver: WebDriver, hostile: Path):
    look(driver, hostile)
    open_all(driver)
    assert driver.title == "STAPO reproduction"
    assert driver.find_elements(By.ID, "hit") == []
    assert driver.get_log("browser") == []
    shown = driver.execute_script(
        "return [...document.querySelectorAll('.answer')].map("
        "a => [...a.querySelectorAll('pre.response')].map(p => p.textContent))"
    )
    assert len(shown) == len(hostile_run.RESPONSES)
    for parts, response in zip(shown, hostile_run.RESPONSES, strict=True):
        head, *tail = parts
        assert head == visible(response[:3000] if tail else response)
        assert "".join(tail) == (visible(response[-1000:]) if tail else "")
    assert driver.execute_script("return document.querySelectorAll('script').length") == 1


def test_the_policy_stops_a_script_that_would_get_into_the_page(driver: WebDriver, hostile: Path):
    look(driver, hostile)
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = arguments[0]; document.body.append(s);"
        "const d = document.createElement('div'); d.innerHTML = '<img src=x onerror=\"' + arguments[0] + '\">';"
        "document.body.append(d)",
        hostile_run.HIT,
    )
    driver.execute_async_script("setTimeout(arguments[0], 200)")
    assert driver.title == "STAPO reproduction"
    complaints = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert complaints.count("Content Security Policy") >= 2, "the script, and the picture with its handler"


def test_figures_are_drawn_with_all_their_letters(driver: WebDriver):
    look(driver, COMMITTED)
    # a name that text of the page has taken would draw nothing; a space has no outline
    wrong = driver.execute_script(
        "return [...document.querySelectorAll('svg use')].map(u => u.getAttribute('href').slice(1))"
        ".filter(name => !(document.getElementById(name) instanceof SVGElement))"
    )
    assert wrong == []
    drawn = driver.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => s.getBBox().width * s.getBBox().height)"
    )
    assert len(drawn) >= 10
    assert min(drawn) > 10_000
