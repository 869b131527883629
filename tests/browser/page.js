// Opens a page that needs nothing else in a headless Chromium, with scripts of its own switched off, and tells what is there.
//
//   node page.js '{"chromium": ..., "playwright": ..., "address": ..., "png": ..., "width": 390, "height": 844,
//                  "scheme": "light"}'
//
// All that is folded is unfolded first.
//
// Prints {"title", "lang", "headings": [{"level", "text"}], "landmarks": [{"role", "name"}], "wider": by how many pixels the page is
// wider than the screen, "wide": [what reaches beyond it], "images": [{"name", "description"}], "tables": [{"caption", "scopes"}],
// "text", "faint": [text whose contrast is too low], "requests": [addresses], "problems": [what the console says]} as JSON.
'use strict';
const {task, TIMEOUT_MS, drive, run} = require('../perfetto/chromium.js');

// Runs inside the page.
const look = () => {
  const text = (node) => (node ? node.textContent.trim() : '');
  const all = (selector, use) => [...document.querySelectorAll(selector)].map(use);
  const label = (node) =>
    node.getAttribute('aria-label')
    || (node.getAttribute('aria-labelledby') ?? '').split(' ').map((id) => text(document.getElementById(id))).join(' ');

  // https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = parts(colour).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const faint = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data.trim()).join('');
    const visible = own && node.getClientRects().length > 0 && !['title', 'desc'].includes(node.tagName);
    // Letters on the colours of a plot are looked at by themselves.
    if (visible && !node.matches('.tk-key')) {
      const style = getComputedStyle(node);
      const [one, other] = [luminance(node.closest('svg') ? style.fill : style.color), luminance(behind(node))];
      const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (contrast < 4.5) faint.push(`${own.slice(0, 60)}: ${contrast.toFixed(2)}`);
    }
  }
  const screen = document.documentElement.clientWidth;
  const held = (node) => node.closest('.scroll') !== null || node.closest('svg') !== null;
  return {
    title: document.title,
    lang: document.documentElement.lang,
    headings: all('h1, h2, h3, h4, h5, h6', (node) => ({level: Number(node.tagName[1]), text: text(node)})),
    landmarks: all('header, nav, main, footer, section', (node) => ({role: node.tagName.toLowerCase(), name: label(node)})),
    wider: document.documentElement.scrollWidth - screen,
    wide: all('body *', (node) => node)
      .filter((node) => !held(node) && node.getBoundingClientRect().right > screen + 1)
      .map((node) => node.outerHTML.slice(0, 120)),
    images: all('svg[role=img]', (node) => ({
      name: text(node.querySelector(':scope > title')), description: text(node.querySelector(':scope > desc')),
    })),
    tables: all('table', (node) => ({
      caption: text(node.caption), scopes: [...node.querySelectorAll('th')].map((cell) => cell.scope),
    })),
    scripts: all('script, [onerror], [onload], [onclick], iframe, object, embed, img, link', (node) => node.outerHTML.slice(0, 120)),
    text: document.body.innerText,
    faint,
  };
};

async function visit(browser) {
  const page = await browser.newPage({
    viewport: {width: task.width, height: task.height}, colorScheme: task.scheme,
  });
  page.setDefaultTimeout(TIMEOUT_MS);
  const requests = [];
  const problems = [];
  page.on('request', (request) => requests.push(request.url()));
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('dialog', (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(message.text());
  });
  await page.goto(task.address, {waitUntil: 'load'});
  await page.evaluate(() => document.querySelectorAll('details').forEach((node) => { node.open = true; }));
  const seen = await page.evaluate(look);
  await page.screenshot({path: task.png, fullPage: true});
  return {...seen, requests, problems};
}

run(() => drive(visit, []));
