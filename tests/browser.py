"""What a real browser makes of a page, where one is installed."""

import json
import re
import shutil
import subprocess
from html import escape
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

# What the browser finds, written into the page by a script that only the test adds.
LOOK = """<script>
addEventListener("load", () => {
  const rects = [...document.querySelectorAll("figure > svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    const out = [...svg.querySelectorAll("text")].filter(text => {
      const inner = text.getBoundingClientRect();
      return inner.left < box.left - 3 || inner.right > box.right + 3
        || inner.top < box.top - 3 || inner.bottom > box.bottom + 3;
    });
    return [box.left, box.right, box.height, out.map(text => text.textContent)];
  });
  const forest = document.querySelector(".forest"), cut = forest && [...forest.querySelectorAll("th, td")].filter(
    cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent);
  const places = [...document.querySelectorAll("figure > svg")].map(svg => [...svg.querySelectorAll("text")].map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.right, box.top, box.bottom];
  }));
  const style = getComputedStyle(document.body), text = document.querySelector("figure > svg text");
  document.title = JSON.stringify({
    width: innerWidth, scroll: document.documentElement.scrollWidth, rects, cut, places,
    bottom: forest && forest.getBoundingClientRect().bottom,
    paper: style.backgroundColor, ink: style.color, label: getComputedStyle(text).fill,
    letters: text.getBoundingClientRect().height,
  });
});
</script></head>"""


def look(page: str, folder: Path, width: int, dark: bool) -> dict:
    """Sizes and colours of the page in a window of so many pixels, in light or dark mode. Writes into `folder`."""
    # a frame, since no window of the browser gets as narrow as a phone
    (folder / "page.html").write_text(
        f'<title></title><iframe style="width: {width}px; height: 900px; border: 0" srcdoc="'
        f'{escape(page.replace("</head>", LOOK))}" onload="document.title = this.contentDocument.title"></iframe>',
        encoding="utf-8",
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", "--window-size=1400,1000"]
    flags += ["--virtual-time-budget=5000", f"--user-data-dir={folder / 'profile'}"]
    flags += dark * ["--blink-settings=preferredColorScheme=0"]
    command = [BROWSER, *flags, "--dump-dom", f"file://{folder / 'page.html'}"]
    dumped = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    return json.loads(ElementTree.fromstring(re.search(r"<title>.*?</title>", dumped.stdout)[0]).text)


def check_layout(seen: dict, width: int) -> None:
    """Nothing runs over the edge, no label leaves its plot or lies over another, letters are of a readable size."""
    assert seen["width"] == width and seen["scroll"] <= width
    for left, right, height, outside in seen["rects"]:
        assert 0 <= left < right <= width and right - left > min(width - 60, 400) and height > 200
        assert not outside, outside
    for texts in seen["places"]:
        for (one, left, right, top, bottom), (other, *box) in combinations(texts, 2):
            across, down = min(right, box[1]) - max(left, box[0]), min(bottom, box[3]) - max(top, box[2])
            assert across <= 1 or down <= 4, f"{one!r} over {other!r}"  # px; a line is higher than its letters
    assert not seen["cut"]
    assert seen["letters"] >= 9
