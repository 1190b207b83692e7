"""The page at three sizes: nothing overlaps, nothing is cut, everything can be read and named.

With DLLMARK_SCREENSHOTS=1 the last test writes docs/page/*.png, with the embedded model.
"""

import os
from pathlib import Path

import pytest
from browsing import BROWSER, NO_BROWSER, open_advanced, opened
from samples import marked_text
from serving import Gate, serving

from dllmark import load_model
from dllmark.server.service import Service

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = sync_api.expect
expect.set_options(timeout=60_000)  # a busy machine is no failure

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "page"
SIZES = {"wide": (1280, 900), "tablet": (768, 1024), "phone": (390, 844), "small": (320, 640)}
every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)

LOOKS = (Path(__file__).parents[1] / "support" / "looks.js").read_text(encoding="utf-8")


def wrong(page, what):
    """What one of the searches in `looks.js` finds on a page."""
    return page.evaluate(f"{LOOKS.strip()}.{what}()")


@pytest.fixture
def text(key, tokenizer):
    """A marked text with stretches and pairs of both colours."""
    return marked_text(key, tokenizer, 120, share=0.95)


@pytest.fixture
def at_size(browser, server, text, size):
    """The page at a size, with the example at its end and a checked text."""
    width, height = size
    viewport = {"width": width, "height": height}
    with opened(browser, server.url, reduced_motion="reduce", viewport=viewport) as page:
        page.wait_for_selector("html[data-ready]", state="attached")
        page.get_by_label("Text to check").fill(text)
        expect(page.locator("#curve svg")).to_be_visible()
        expect(page.locator("#spans li")).not_to_have_count(0)
        yield page


@every_size
def test_nothing_overlaps_nothing_is_cut_and_everything_can_be_read(at_size):
    page = at_size
    for step in ("End", "Home"):
        page.get_by_role("slider", name="Step").press(step)
        assert wrong(page, "overlaps") == []
        assert wrong(page, "cut") == []
    page.get_by_role("slider", name="Step").press("End")
    open_advanced(page)
    assert wrong(page, "overlaps") == []
    assert wrong(page, "cut") == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert wrong(page, "faint") == []
    for button in page.locator("button:visible").all():
        assert button.bounding_box()["height"] >= 40


@pytest.mark.parametrize("size", [SIZES["wide"]])
def test_the_searches_find_what_they_look_for(at_size):
    """Or they would prove nothing."""
    at_size.evaluate("() => { document.getElementById('reason').style.marginTop = '-3rem'; }")
    at_size.evaluate("() => { document.getElementById('next').style.color = '#aaa'; }")
    at_size.evaluate("() => { document.getElementById('copy-link').style.width = '20px'; }")
    at_size.evaluate("() => { document.getElementById('stop').hidden = false; }")
    at_size.evaluate("() => { document.getElementById('stop').textContent = ''; }")
    searches = {
        "overlaps": "#reason",
        "faint": "What next",
        "cut": "#copy-link",
        "nameless": "stop",
    }
    for what, found in searches.items():
        assert any(found in one for one in wrong(at_size, what)), what


@pytest.mark.parametrize("size", [SIZES["wide"], SIZES["tablet"], SIZES["phone"]])
def test_text_and_verdict_are_in_sight_while_it_is_written_and_when_it_is_done(
    browser, server, gate, size
):
    width, height = size
    with opened(browser, server.url, viewport={"width": width, "height": height}) as page:
        page.wait_for_selector("html[data-ready]", state="attached")
        page.locator("#length").evaluate("field => { field.value = 32; }")
        gate.let(8)
        page.get_by_label("Your prompt").press("Control+Enter")
        expect(page.get_by_text("step 8 of 16")).to_be_visible()
        for state in ("writing", "done"):
            expect(page.locator("#marked .token").first).to_be_in_viewport()
            expect(page.locator("#marked-verdict .name")).to_be_in_viewport(ratio=1)
            if width >= 768:
                expect(page.locator("#unmarked .token").first).to_be_in_viewport()
                expect(page.locator("#unmarked-verdict .name")).to_be_in_viewport(ratio=1)
            if state == "writing":
                gate.open()
                expect(page.get_by_text("Done:")).to_be_visible()


def test_texts_stand_side_by_side_and_on_a_phone_below_each_other(browser, server):
    for name, beside in (("wide", True), ("tablet", True), ("phone", False)):
        width, height = SIZES[name]
        with opened(browser, server.url, viewport={"width": width, "height": height}) as page:
            expect(page.locator("#marked .mask, #marked .token").first).to_be_visible()
            left, right = (
                page.locator(f"#{side}-side").bounding_box() for side in ("marked", "unmarked")
            )
            assert (left["y"] == right["y"]) is beside
            assert (left["x"] == right["x"]) is not beside


def test_everything_has_a_name_for_screen_readers(page, text):
    page.get_by_label("Text to check").fill(text)
    expect(page.locator("#curve svg")).to_be_visible()
    open_advanced(page)
    assert wrong(page, "nameless") == []
    assert page.locator("[role=status]").count() == 2
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("#marked [aria-hidden=false]").count() == 0
    assert page.locator("h1").count() == 1


def test_everything_that_can_be_pressed_is_reached_by_keyboard_in_the_order_of_the_page(page, text):
    page.get_by_label("Text to check").fill(text)
    expect(page.locator("#spans button").first).to_be_visible()
    page.get_by_role("slider", name="Step").press("End")
    wanted = page.locator(
        "a:visible, button:enabled:visible, input:visible, textarea:visible, summary:visible"
    ).evaluate_all("all => all.filter(one => !one.disabled).map(one => one.id || one.textContent)")
    page.locator(".skip").focus()
    reached = ["Skip to the texts"]
    while len(reached) < 60:
        page.keyboard.press("Tab")
        name = page.evaluate(
            "() => document.activeElement === document.body ? null"
            " : document.activeElement.id || document.activeElement.textContent"
        )
        if name is None or name in reached:
            break
        reached.append(name)
    assert [name for name in reached if name in wanted] == wanted


def test_a_print_has_the_texts_and_verdicts_and_nothing_to_press(page, text):
    page.get_by_label("Text to check").fill(text)
    expect(page.locator("#curve svg")).to_be_visible()
    page.emulate_media(media="print")
    for shown in ("#marked", "#marked-verdict", "#tokens", "#reason", "footer"):
        expect(page.locator(shown)).to_be_visible()
    for hidden in ("#write-form", "#check-form", "#copy-link", "#play", "nav"):
        expect(page.locator(hidden)).to_be_hidden()
    assert page.locator("#tokens").evaluate("one => one.scrollHeight <= one.clientHeight + 1")


@pytest.mark.skipif(not os.environ.get("DLLMARK_SCREENSHOTS"), reason="set DLLMARK_SCREENSHOTS=1")
def test_screenshots(browser, key):
    wide = {"viewport": {"width": 1280, "height": 900}}
    phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
    looks = {"light": wide, "dark": {**wide, "color_scheme": "dark"}, "phone": phone}
    model = load_model("embedded")
    gate = Gate(model)
    with serving(Service([key], model.tokenizer, model)) as server:
        gate.let(60)
        for name, options in looks.items():
            with opened(browser, server.url, **options) as page:
                page.wait_for_selector("html[data-ready]", state="attached")
                open_advanced(page)
                page.get_by_label("Seed").fill("1")
                page.get_by_text("Advanced").click()
                page.get_by_label("Your prompt").press("Control+Enter")
                if name == "light":
                    expect(page.get_by_text("step 60 of 128")).to_be_visible(timeout=600_000)
                    page.screenshot(path=SCREENSHOTS / "writing.png")
                    gate.open()
                expect(page.get_by_text("Done:")).to_be_visible(timeout=600_000)
                if name == "phone":
                    page.screenshot(path=SCREENSHOTS / "phone.png")
                    continue
                page.locator("#check-marked").click()
                expect(page.locator("#curve svg")).to_be_visible()
                page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
