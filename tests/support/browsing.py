"""The page in a real browser."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NO_BROWSER = "no browser here: apt-get install chromium, or put one on the PATH"


@contextmanager
def launched():
    """A browser; playwright is asked for here, since not everyone has it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER)
        yield browser
        browser.close()


@contextmanager
def opened(browser, url, path="/", paused=False, **options):
    """A page; whatever it complains about, or asks another host for, fails the test.

    Where it is `paused`, its timers wait for `page.clock.run_for`.
    """
    page = browser.new_page(**options)
    if paused:
        page.clock.install(time=0)
        page.clock.pause_at(1000)
    page.set_default_timeout(60_000)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: _only(url, request.url, page.complaints))
    page.goto(url + path)
    yield page
    page.close()
    assert page.complaints == []


def _only(url, requested, complaints):
    if not requested.startswith(url):
        complaints.append(f"requests {requested}")


@contextmanager
def complaint_about(page, what):
    """The browser itself logs every answer from 400 on."""
    before = len(page.complaints)
    yield
    assert any(what in complaint for complaint in page.complaints[before:])
    del page.complaints[before:]


def coloured(page, place):
    """The tokens shown in a place, each with its colour."""
    script = (
        "spans => spans.map(span => [span.textContent, span.className.match(/green|red/)?.[0]])"
    )
    return page.locator(f"{place} .token").evaluate_all(script)


def open_advanced(page):
    """Show the knobs."""
    if not page.get_by_label("Seed").is_visible():
        page.get_by_text("Advanced").click()
