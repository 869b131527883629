"""The page that hands a trace to Perfetto's UI: inside the browser, so that nothing leaves the machine."""

from __future__ import annotations

import html
import importlib.resources
import json
from typing import Final

__all__ = ["opening_page"]

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%(title)s · tracekit</title>
<style nonce="%(nonce)s">
  body { font: 1.1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 12vh auto; padding: 0 1rem }
  body { color: #1b1f24; background: #fff }
  button { font: inherit; padding: .6em 1.2em; border: 0; border-radius: .4em; cursor: pointer }
  button { color: #fff; background: #0b57d0 }
  button:disabled { opacity: .5 }
  button:focus-visible, a:focus-visible { outline: 3px solid #f5a623; outline-offset: 2px }
  code { overflow-wrap: anywhere }
  @media (prefers-color-scheme: dark) { body { color: #e6e6e6; background: #16181c } a { color: #8ab4f8 } }
</style>
<main>
<h1>%(title)s</h1>
<p><button id="open" type="button">Open in Perfetto</button></p>
<p id="status" role="status">Getting the trace ready.</p>
<p>It stays on this machine. If the button does not work: %(other)sopen
<a href="%(ui)s" rel="noreferrer noopener" target="_blank">%(ui)s</a> and drag this file onto it: <code>%(path)s</code></p>
</main>
<script type="application/json" id="given">%(given)s</script>
<script nonce="%(nonce)s">
%(handover)s
const given = JSON.parse(document.getElementById('given').textContent);
const button = document.getElementById('open');
const say = (words) => { document.getElementById('status').textContent = words; };

async function begin() {
  if (await handOver(given, button, say)) {
    button.disabled = true;
    say('Perfetto has the trace. This tab can be closed.');
    await fetch(given.done, {cache: 'no-store'});
  }
}

button.addEventListener('click', begin);
begin();
</script>
"""
_OTHER_WAY: Final = """<a href="%s" rel="noreferrer">let Perfetto fetch the trace</a>
(the browser asks whether it may reach this machine), or """


def opening_page(
    *, title: str, path: str, ui: str, origin: str, link: str, trace: str, done: str, direct: str | None, nonce: str
) -> bytes:
    """Return the page.

    Args:
        title: What the trace is called.
        path: Where it is, for those who must drag it.
        ui: The address of the UI, and
        origin: its origin, which alone is given the trace, and
        link: its address with what it shall do at the start.
        trace: Where the page gets the trace.
        done: What it asks for once the trace is handed over.
        direct: The address with which the UI fetches the trace itself; None where it must not.
        nonce: What the page's own script and style are known by.
    """
    gone = "tracekit no longer serves the trace. Run tracekit open again."
    given = json.dumps({"title": title, "origin": origin, "link": link, "trace": trace, "done": done, "gone": gone})
    return (
        _PAGE
        % {
            "title": html.escape(title),
            "path": html.escape(path),
            "ui": html.escape(ui),
            # Inside of a script element only the end tag and comments are not plain text.
            "given": given.replace("<", "\\u003c"),
            "other": "" if direct is None else _OTHER_WAY % html.escape(direct),
            "handover": (importlib.resources.files("tracekit.viewing") / "handover.js").read_text("utf-8"),
            "nonce": nonce,
        }
    ).encode("utf-8", "replace")
