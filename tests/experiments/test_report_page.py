"""The page of a report in a real browser: it loads nothing, fits a phone, and can be read."""

import shutil
from dataclasses import replace

import pytest
from samples import marked_text, plain_text

from dllmark.detection.detector import Detector
from dllmark.experiments.evaluation.cost import StepTime
from dllmark.experiments.evaluation.inputs import InputFile, Sample
from dllmark.experiments.evaluation.page import page
from dllmark.experiments.evaluation.run import evaluate, given_texts

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
HOSTILE = "<script>alert(1)</script><img src=//example.org/x>"

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser here: apt-get install chromium, or put one on the PATH"
)

CONTRAST = """() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = element => {
        for (; element; element = element.parentElement) {
            const colour = parse(getComputedStyle(element).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll('body *')].filter(element =>
        [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) &&
        !['TITLE', 'DESC', 'STYLE'].includes(element.tagName.toUpperCase()));
    return texts.map(element => {
        const style = getComputedStyle(element);
        const ink = parse(element.closest('svg') ? style.fill : style.color);
        const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), element.textContent.slice(0, 40)];
    });
}"""


@pytest.fixture(scope="module")
def written(key, tokenizer, tmp_path_factory):
    """The page of some texts, with a name in it that would like to run."""
    marked = [Sample(marked_text(key, tokenizer, 80, n, 0.9), f"p{n}") for n in range(5)]
    plain = [Sample(plain_text(tokenizer, 80, n), f"p{n}") for n in range(5)]
    texts = given_texts(marked, plain, {"model": HOSTILE}, None)
    texts = replace(texts, step=StepTime(0.5, 0.51, 8, "a machine"))
    families = {HOSTILE: [one.text for one in plain], "a family": [plain[0].text]}
    files = [InputFile("nulls", HOSTILE, "ab" * 32, 6), InputFile("model", HOSTILE, "c" * 64, None)]
    report = evaluate(Detector(key, tokenizer), texts, families, [], files, "dllmark report " * 9)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, written):
    """Open the page; whatever it complains about or asks for fails the test."""
    pages, complaints = [], []

    def opened(**options):
        view = browser.new_page(**options)
        view.on("console", lambda message: complaints.append(message.text))
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.on("dialog", lambda dialog: complaints.append("a dialog"))
        view.on("request", lambda request: complaints.append(request.url))
        view.goto(written.as_uri())
        pages.append(view)
        return view

    yield opened
    for view in pages:
        view.close()
    assert complaints == [written.as_uri()] * len(pages)


def test_names_in_a_report_are_shown_and_never_run(opened):
    view = opened()
    assert view.locator("script, img").count() == 0
    assert HOSTILE in view.locator("body").inner_text()


def test_a_phone_does_not_scroll_sideways(opened):
    view = opened(viewport={"width": 360, "height": 640})
    assert view.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"),
                                               ("light", "print"), ("dark", "print")])  # fmt: skip
def test_all_text_has_the_contrast_of_level_aa(opened, scheme, media):
    view = opened(color_scheme=scheme)
    view.emulate_media(media=media, color_scheme=scheme)
    contrasts = view.evaluate(CONTRAST)
    assert len(contrasts) > 100
    assert min(contrasts)[0] >= 4.5, min(contrasts)


def test_print_is_dark_on_white_whatever_the_screen(opened):
    view = opened(color_scheme="dark")
    view.emulate_media(media="print", color_scheme="dark")
    colours = view.evaluate("[getComputedStyle(document.body).color, "
                            "getComputedStyle(document.body).backgroundColor]")  # fmt: skip
    assert colours == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]


def test_a_screen_reader_hears_headings_plots_and_tables(opened):
    view = opened()
    assert view.locator("html").get_attribute("lang") == "en"
    assert view.get_by_role("heading", level=1).count() == 1
    headings = view.get_by_role("heading", level=2).all_inner_texts()
    assert headings == ["Verdict", "False positives", "Detection", "Cost", "Robustness",
                        "What was not tested", "How it was made"]  # fmt: skip
    for name in ("Marked texts found, by length", "False positives observed against stated",
                 "Marked texts found after each attack"):  # fmt: skip
        plot = view.get_by_role("img", name=name)
        assert plot.count() == 1
        assert "%" in plot.locator("desc").text_content()
    for table in view.get_by_role("table").all():
        assert table.locator("caption").inner_text()
        assert table.locator("tbody tr").count() == table.locator("tbody th[scope=row]").count()


def test_the_plots_stay_inside_their_frames(opened):
    view = opened()
    outside = view.evaluate("""() => [...document.querySelectorAll('svg')].flatMap(svg => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text, rect, line, polyline, circle')].filter(part => {
            const box = part.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1 ||
                box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
        }).map(part => part.outerHTML);
    })""")
    assert outside == []
