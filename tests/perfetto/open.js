// Opens Perfetto's UI, or a page that leads to it, in a headless Chromium, as a person would, and tells what comes of it.
//
//   node open.js '{"chromium": ..., "playwright": ..., "address": ..., "png": ..., "click": "#open", "expand": true}'
//
// "click" is what to press on the page, if the address does not lead to the UI itself; "expand" opens all groups.
//
// Prints {"page": the words of the page, "after": what its status says in the end, "address": of the UI, "tracks", "groups" (the top
// level), "pinned", "expanded": [names], "error": text or null, "problems": [what the consoles say is wrong]} as JSON.
'use strict';
const {task, TIMEOUT_MS, DIALOG, waitForTrace, drive, run} = require('./chromium.js');

// Runs inside the UI.
const readTracks = () => {
  const tracks = [];
  const groups = [];
  const expanded = [];
  const visit = (node, depth) => {
    tracks.push(node.name);
    if (depth === 0) groups.push(node.name);
    if (!node.collapsed && node.children.length > 0) expanded.push(node.name);
    for (const child of node.children) visit(child, depth + 1);
  };
  const workspace = window.app.trace.workspace;
  for (const node of workspace.children) visit(node, 0);
  return {tracks, groups, expanded, pinned: workspace.pinnedTracks.map((node) => node.name)};
};

const expandTracks = () => {
  const visit = (node) => {
    if (node.children.length > 0) node.expand();
    node.children.forEach(visit);
  };
  window.app.trace.workspace.children.forEach(visit);
  window.app.raf.scheduleFullRedraw();
};

async function look(browser) {
  const context = await browser.newContext({viewport: {width: 1600, height: 1000}});
  context.setDefaultTimeout(TIMEOUT_MS);
  const problems = [];
  context.on('page', (page) => page.on('pageerror', (error) => problems.push(String(error))));
  context.on('console', (message) => {
    if (message.type() === 'error') problems.push(`${message.location().url}: ${message.text()}`);
  });
  const page = await context.newPage();
  const popup = context.waitForEvent('page', {predicate: (other) => other !== page, timeout: TIMEOUT_MS});
  popup.catch(() => {});
  await page.goto(task.address);
  let shown = '';
  if (task.click) {
    await page.waitForFunction(() => /click/.test(document.getElementById('status').innerText));
    shown = await page.locator('body').innerText();
    await page.click(task.click);
  }
  // A page that was not left has opened the UI in a tab of its own.
  if (task.click) await Promise.race([popup, page.waitForURL(/#!/)]);
  const ui = page.url().includes('#!') ? page : await popup;
  const loaded = await waitForTrace(ui);
  if (loaded && task.expand) {
    await ui.evaluate(expandTracks);
    await waitForTrace(ui);
  }
  await ui.screenshot({path: task.png});
  const error = await ui.evaluate((dialog) => document.querySelector(dialog)?.innerText.trim() || null, DIALOG);
  const seen = loaded ? await ui.evaluate(readTracks) : {tracks: [], groups: []};
  const after = ui === page ? '' : await page.locator('#status').innerText();
  return {page: shown, after, address: ui.url(), ...seen, error, problems};
}

run(() => drive(look, ['127.0.0.1', 'localhost'], {
  // Playwright lets pages open tabs by themselves; a browser of a person does not.
  ignoreDefaultArgs: ['--disable-popup-blocking'],
}));
