"""The pages in a real browser: phone and desktop, light and dark. Needs Debian's Chromium."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LONGEST_MS = 300_000
"""No claim: a machine may be busy."""
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
PAGES = (
    *("index", "queue", "drift", "power", "shadow", "racks/3", "jobs/9002", "jobs/9103"),
    *("nodes/v100-r1-02", "nodes/v100-r1-03", "nodes/h100-r2-01", "nodes/v100-r4-01"),
)
LEAST_CONTRAST = 4.5
"""WCAG 2, level AA, of text."""
SHOTS = os.environ.get("GPU_AWARE_SCREENSHOTS")
"""Folder for pictures of the pages, to be looked at."""
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
  ).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    const circle = element.closest("g")?.querySelector("circle");
    if (circle) return parse(getComputedStyle(circle).fill);
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || element.closest("defs, style")) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    found.push([element.textContent.trim().slice(0, 40), ratio(ink, behind(element))]);
  }
  return found;
}"""
WIDE = """() => [...document.querySelectorAll("html, .scroll")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.className || "page")"""


def new_tab(browser: Any) -> Any:
    tab = browser.new_page()
    tab.set_default_timeout(LONGEST_MS)
    return tab


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: apt-get install {BROWSERS[0]}")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as engine:
        options = {"executable_path": program, "args": ["--no-sandbox"]}
        launched = engine.chromium.launch(**options, timeout=LONGEST_MS)
        yield launched
        launched.close()


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read(
    pages: Path, tmp_path: Path, browser: Any, scheme: str, width: int
) -> None:
    """No sideways scrolling, no error, nothing loaded from elsewhere, and enough contrast."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab = new_tab(context)
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    shots = Path(SHOTS) if SHOTS else tmp_path
    for name in PAGES:
        tab.goto((pages / f"{name}.html").as_uri())
        assert tab.evaluate(WIDE) == [], name
        contrasts = tab.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert [one for one in contrasts if one[1] < LEAST_CONTRAST] == [], name
        picture = shots / f"{name.replace('/', '-')}-{scheme}-{width}.png"
        tab.screenshot(path=str(picture), full_page=True)
        assert picture.stat().st_size > 5_000
    assert said == []
    assert asked == [(pages / f"{name}.html").as_uri() for name in PAGES]
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(16, 20, 25)"}[scheme]
    context.close()


def test_a_reader_gets_from_the_fleet_to_a_job(pages: Path, browser: Any) -> None:
    tab = new_tab(browser)
    tab.goto((pages / "index.html").as_uri())
    for link, title in (
        ("v100-r1", "Rack v100-r1"), ("v100-r1-01", "v100-r1-01"), ("9001", "Job 9001: started"),
        ("Queue", "Queue"), ("Drift", "Drift"), ("Power", "Power"),
        ("Shadow", "Shadow"), ("Fleet", "Fleet"),
    ):  # fmt: skip
        tab.get_by_role("link", name=link, exact=True).first.click()
        tab.get_by_role("heading", name=title, exact=True, level=1).wait_for()
    tab.close()


def test_the_browser_runs_no_script_of_a_page(tmp_path: Path, pages: Path, browser: Any) -> None:
    """What the policy of the page is for, if a text of others ever became HTML."""
    page = (pages / "index.html").read_text(encoding="utf-8")
    bad = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
    (tmp_path / "bad.html").write_text(page.replace("<main>", f"<main>{bad}"), encoding="utf-8")
    tab = new_tab(browser)
    tab.goto((tmp_path / "bad.html").as_uri())
    assert tab.title() == "Fleet - tessa"
    tab.close()
