"""Chromium without a window: what it makes of a page, and what the page says of itself there."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

PROBE = r"""<script>
addEventListener("load", () => {
  const rgb = text => (text.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const element of document.querySelectorAll("body *:not(svg):not(svg *):not(script)")) {
    const said = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
    if (!said || !element.getClientRects().length) continue;
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push([ratio.toFixed(2), said.slice(0, 40)]);
  }
  const found = {
    weak,
    headings: [...document.querySelectorAll("h1, h2, h3, h4")].map(h => Number(h.tagName[1])),
    unnamed: [...document.querySelectorAll("img:not([alt]), [role=img]:not([aria-label]), svg")]
      .filter(e => e.tagName !== "svg" || !e.closest("[role=img]")).length,
    heads: document.querySelectorAll("th:not([scope])").length,
    width: [document.documentElement.scrollWidth, document.documentElement.clientWidth],
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    paper: getComputedStyle(document.body).backgroundColor,
    requests: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:")),
    marks: [...document.querySelectorAll(".example")].map(e => [
      e.querySelector(".before").textContent, e.querySelector(".after").textContent,
      [...e.querySelectorAll("del")].map(m => m.textContent), [...e.querySelectorAll("mark")].map(m => m.textContent)]),
    seen: {},
    seconds: performance.now() / 1000,
  };
  for (const choice of document.querySelectorAll("input[name=family]")) {
    choice.checked = true;
    const shown = [...document.querySelectorAll(".example")].filter(e => e.getClientRects().length);
    found.seen[choice.parentElement.textContent.trim()] = [...new Set(shown.map(e => e.dataset.family))];
  }
  document.body.insertAdjacentHTML("beforeend", "<pre id=probe></pre>");
  document.getElementById("probe").textContent = JSON.stringify(found);
});
</script>"""


def browse(path, profile, *flags, errors=False):
    """What Chromium prints; with `errors` what it logs, too."""
    if BROWSER is None:
        pytest.skip("no chromium and no google-chrome on PATH")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", f"--user-data-dir={profile}",
        "--window-size=1100,2400", *flags, path.as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(profile)}
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=True, timeout=120, env=environment
    )
    return done.stdout + done.stderr if errors else done.stdout


def probe(path, folder, *flags):
    """What a page says of itself in the browser: see PROBE. `console` holds what it complained of."""
    copy = folder / "probed.html"
    copy.write_text(path.read_text("utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    said = browse(copy, folder / "browser", "--enable-logging=stderr", "--dump-dom", *flags, errors=True)
    (found,) = re.findall(r'<pre id="probe">(.*?)</pre>', said, re.DOTALL)
    return json.loads(html.unescape(found)) | {"console": re.findall(r".*CONSOLE.*", said)}
