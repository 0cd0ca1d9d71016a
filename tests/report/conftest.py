"""A browser for the tests of pages: Playwright (in the test extra) with a Chromium of the system, none downloaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from report_cases import DONE

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium found: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """Opens a report, and afterwards fails if the page had an error or requested anything but files and data."""
    pages, faults = [], []

    def open_page(
        file: Path,
        part: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        init_script: str = "",
        wait: bool = True,
        **options,
    ):
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        page.set_default_timeout(30_000)  # on a busy machine a page takes that long
        pages.append(page)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("requestfailed", lambda request: faults.append(f"failed: {request.url[:80]}"))
        page.on("request", lambda request: _allow(request.url, faults))
        page.add_init_script(init_script)
        page.goto(file.as_uri() + part)
        if wait:
            page.locator(DONE).wait_for()
        return page

    yield open_page
    for page in pages:
        page.close()
    assert faults == []


def _allow(address: str, faults: list[str]) -> None:
    if not address.startswith(("file:", "data:", "blob:")):
        faults.append(address)
