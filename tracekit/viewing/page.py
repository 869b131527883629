"""The page that hands a trace to Perfetto's UI: inside the browser, so that nothing leaves the machine."""

from __future__ import annotations

import html
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
'use strict';
const given = JSON.parse(document.getElementById('given').textContent);
const button = document.getElementById('open');
const say = (words) => { document.getElementById('status').textContent = words; };

// Perfetto's answer to PING is the only sign that it listens:
// https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
function answered(tab) {
  return new Promise((resolve, reject) => {
    const stop = (end, value) => { clearInterval(timer); removeEventListener('message', hear); end(value); };
    const hear = (event) => {
      if (event.source === tab && event.origin === given.origin && event.data === 'PONG') stop(resolve);
    };
    addEventListener('message', hear);
    const timer = setInterval(() => {
      if (tab.closed) stop(reject, new Error('The tab of Perfetto is closed.'));
      else tab.postMessage('PING', given.origin);
    }, 200);
  });
}

async function read() {
  const answer = await fetch(given.trace, {cache: 'no-store'});
  if (!answer.ok) throw new Error('tracekit no longer serves the trace. Run tracekit open again.');
  return answer.arrayBuffer();
}

async function handOver() {
  const tab = window.open(given.link);
  if (!tab) {
    say('The browser wants a click first.');
    button.focus();
    return;
  }
  button.disabled = true;
  try {
    say('Waiting for Perfetto.');
    const [buffer] = await Promise.all([read(), answered(tab)]);
    tab.postMessage({perfetto: {buffer, title: given.title, fileName: given.title}}, given.origin, [buffer]);
    say('Perfetto has the trace. This tab can be closed.');
    await fetch(given.done, {cache: 'no-store'});
  } catch (error) {
    say(String(error.message ?? error));
    button.disabled = false;
  }
}

button.addEventListener('click', handOver);
handOver();
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
    given = json.dumps({"title": title, "origin": origin, "link": link, "trace": trace, "done": done})
    return (
        _PAGE
        % {
            "title": html.escape(title),
            "path": html.escape(path),
            "ui": html.escape(ui),
            # Inside of a script element only the end tag and comments are not plain text.
            "given": given.replace("<", "\\u003c"),
            "other": "" if direct is None else _OTHER_WAY % html.escape(direct),
            "nonce": nonce,
        }
    ).encode("utf-8", "replace")
