'use strict';
// Comfort only: what a page shows is renewed in place while it is looked at. Without this, it is renewed by hand.

const main = document.getElementById('content');

// A press counts only where it begins and ends on the same element, and a click comes a while after a finger is lifted.
const AFTER_PRESS_MS = 400;
let pressed = false;
let lifted = -Infinity;
for (const kind of ['pointerdown', 'pointermove', 'pointerup', 'pointercancel']) {
  addEventListener(kind, (event) => {
    const before = pressed;
    pressed = kind !== 'pointercancel' && event.buttons > 0;
    if (before && !pressed) lifted = performance.now();
  }, {capture: true, passive: true});
}

function inUse() {
  const field = main.contains(document.activeElement) && document.activeElement.matches('input, select');
  return document.hidden || 'busy' in document.body.dataset || field || Boolean(String(getSelection())) || pressed || performance.now() - lifted < AFTER_PRESS_MS;
}

async function renew() {
  if (inUse()) return;
  const answer = await fetch(location.href, {cache: 'no-store'});
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  const fresh = page.getElementById('content');
  if (!fresh || inUse()) return;
  if (fresh.innerHTML !== main.innerHTML) show(fresh);
  main.dataset.refresh = fresh.dataset.refresh ?? '';
}

// Where the keyboard was, how far a table was scrolled, and what is unfolded, stays.
function show(fresh) {
  const at = main.contains(document.activeElement) && document.activeElement !== main ? known(document.activeElement) : null;
  const scrolled = [...main.querySelectorAll('.scroll')].map((part) => part.scrollLeft);
  const unfolded = new Map([...main.querySelectorAll('summary')].map((words) => [words.textContent, words.parentElement.open]));
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll('summary').forEach((words) => { words.parentElement.open = unfolded.get(words.textContent) ?? words.parentElement.open; });
  main.querySelectorAll('.scroll').forEach((part, number) => { part.scrollLeft = scrolled[number] ?? 0; });
  if (at) [...main.querySelectorAll('a, button, [tabindex]')].find((place) => known(place) === at)?.focus({preventScroll: true});
  document.dispatchEvent(new Event('renewed'));
}

// By what an element is found again: where it leads, and its words.
function known(element) {
  const address = element.getAttribute('href') ?? element.closest('form')?.getAttribute('action');
  return JSON.stringify([element.tagName, address, element.getAttribute('aria-label') ?? element.textContent.trim()]);
}

async function go() {
  try {
    await renew();
  } catch {
    // The server is away for a moment, or for ever: what is shown stays.
  }
  plan();
}

function plan() {
  const seconds = Number(main?.dataset.refresh);
  if (seconds > 0) setTimeout(go, 1000 * seconds);
}

plan();
