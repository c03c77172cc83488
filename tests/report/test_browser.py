"""The page as people see it, in a real browser, at both widths and in both colour schemes."""

import browser
import pytest

pytestmark = pytest.mark.skipif(browser.found() is None, reason="no Chromium is installed")

# All text that is shown, with the colour it has and the first opaque colour behind it, as contrast ratios.
CONTRAST = """(() => {
  const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const read = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const c = read(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || !parent.checkVisibility() || parent.tagName.toLowerCase() === 'title') continue;
    const style = getComputedStyle(parent), inSvg = parent.ownerSVGElement;
    const ink = read(inSvg ? style.fill : style.color).slice(0, 3);
    const [low, high] = [light(ink), light(behind(parent))].sort((a, b) => a - b);
    found.push([(high + .05) / (low + .05), node.data.trim().slice(0, 40)]);
  }
  return found;
})()"""
# What is wider than the window and does not scroll by itself.
TOO_WIDE = """[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll, pre, svg'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
# Texts of figures that lie outside their figure.
CLIPPED = """[...document.querySelectorAll('.drawn svg')].filter(s => s.checkVisibility()).flatMap(s => {
  const box = s.getBoundingClientRect();
  return [...s.querySelectorAll('text')].filter(t => {
    const r = t.getBoundingClientRect();
    return r.left < box.left - 2 || r.right > box.right + 2 || r.top < box.top - 2 || r.bottom > box.bottom + 2;
  }).map(t => t.textContent);
})"""

# Pairs of texts of one figure that lie on one another.
OVERLAPPING = """[...document.querySelectorAll('.drawn svg')].filter(s => s.checkVisibility()).flatMap(s => {
  const texts = [...s.querySelectorAll('text')].filter(t => t.textContent.trim());
  const boxes = texts.map(t => t.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).flatMap((b, j) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const meet = across > 1 && down > .25 * Math.min(a.height, b.height);
    return meet ? [texts[i].textContent + ' / ' + texts[i + 1 + j].textContent] : [];
  }));
})"""


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read(study, page, width, scheme):
    page.open(study.folder / "report.html", width, scheme=scheme)
    assert page.requested() == [(study.folder / "report.html").resolve().as_uri()]
    page.value("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(TOO_WIDE) == []
    assert page.value(CLIPPED) == []
    assert page.value(OVERLAPPING) == []
    dark = page.value("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    contrasts = page.value(CONTRAST)
    assert len(contrasts) > 2000
    assert [pair for pair in contrasts if pair[0] < 4.5] == []


def test_a_phone_gets_the_narrow_figures(study, page):
    shown = "[...document.querySelectorAll('.drawn')].filter(e => e.checkVisibility()).map(e => e.className)"
    for width, name in ((360, "narrow"), (1280, "wide")):
        page.open(study.folder / "report.html", width)
        assert set(page.value(shown)) == {f"drawn {name}"}


def test_a_label_on_another_would_be_seen(study, page):
    page.open(study.folder / "report.html", 1280)
    page.value("""(() => {
      const [one, other] = document.querySelectorAll('#figure-census .wide text');
      for (const name of ['transform', 'x', 'y', 'style']) one.setAttribute(name, other.getAttribute(name));
    })()""")
    assert len(page.value(OVERLAPPING)) == 1
