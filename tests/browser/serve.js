// Walks through the pages of `tracekit serve` in a headless Chromium, as a person would, and tells what comes of it.
//
//   node serve.js '{"chromium": ..., "playwright": ..., "address": ..., "folder": for the pictures, "width": 1280, "height": 900,
//                   "dark": false, "scripts": true, "touch": false,
//                   "steps": [{"do": "press", "what": "Open in Perfetto"}, ...]}'
//
// Steps: {"do": "goto", "what": path}, {"do": "press", "what": words of a link or button}: with the mouse, or a finger;
// {"do": "keys", "what": words}: by Tab and Enter only; {"do": "type", "label", "what"}; {"do": "wait", "what": words on the page};
// {"do": "perfetto"}: takes the tab that opened as Perfetto's, and waits for its timeline; {"do": "shot", "what": name}.
//
// Prints {"pages": {name: {"address", "text", "beyond": pixels beyond the width, "unlabelled": fields without a name,
// "small": targets below 24 pixels}}, "ui": {"tracks", "pinned", "error"} or null, "problems": [what the consoles say]} as JSON.
'use strict';
const {task, TIMEOUT_MS, DIALOG, waitForTrace, drive, run} = require('../perfetto/chromium.js');

const timeline = (dialog) => {
  const tracks = [];
  const visit = (node) => { tracks.push(node.name); node.children.forEach(visit); };
  const workspace = window.app?.trace?.workspace;
  if (workspace) workspace.children.forEach(visit);
  const error = document.querySelector(dialog)?.innerText.trim() || null;
  const visible = window.app?.trace?.timeline?.visibleWindow?.toTimeSpan?.();
  return {visible: visible ? [String(visible.start), String(visible.end)] : null, tracks, pinned: workspace ? workspace.pinnedTracks.map((node) => node.name) : [], error};
};

const looks = () => ({
  text: document.body.innerText,
  beyond: document.documentElement.scrollWidth - window.innerWidth,
  unlabelled: [...document.querySelectorAll('input:not([type=hidden]), progress')].filter((field) => field.labels.length === 0).length,
  small: [...document.querySelectorAll('main button, main a.button, header a')]
    .filter((target) => target.offsetHeight > 0 && target.offsetHeight < 24).map((target) => target.innerText),
});

// A tap may be lost where the page has just been pictured; then it is tapped again, as a person would.
async function tap(page, target) {
  for (let tries = 0; tries < 3; tries++) {
    await page.evaluate(() => {
      window.clicked = false;
      addEventListener('click', () => { window.clicked = true; }, {capture: true, once: true});
    });
    await target.tap();
    for (const end = Date.now() + 15_000; Date.now() < end; await new Promise((done) => setTimeout(done, 50))) {
      // A page that has come meanwhile, or comes just now, knows nothing of it.
      if (await page.evaluate(() => window.clicked !== false).catch(() => true)) return;
    }
  }
  throw new Error('three taps were lost');
}

async function walk(browser) {
  const context = await browser.newContext({
    viewport: {width: task.width, height: task.height},
    colorScheme: task.dark ? 'dark' : 'light',
    javaScriptEnabled: task.scripts,
    hasTouch: task.touch,
  });
  context.setDefaultTimeout(TIMEOUT_MS);
  const problems = [];
  context.on('page', (page) => page.on('pageerror', (error) => problems.push(`${page.url()}: ${error}`)));
  context.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') problems.push(`${message.location().url}: ${message.text()}`);
  });
  const page = await context.newPage();
  const popups = [];
  context.on('page', (other) => popups.push(other));
  await page.goto(task.address);
  const pages = {};
  let ui = null;
  const named = (words) => page.getByRole('link', {name: words, exact: true}).or(page.getByRole('button', {name: words, exact: true})).first();
  for (const step of task.steps) {
    if (step.do === 'goto') {
      await page.goto(new URL(step.what, task.address).href);
    } else if (step.do === 'press') {
      await named(step.what).waitFor();
      await (task.touch ? tap(page, named(step.what)) : named(step.what).click());
    } else if (step.do === 'keys') {
      await named(step.what).waitFor();
      const words = async () => (task.scripts ? page.evaluate(() => document.activeElement.ariaLabel ?? document.activeElement.innerText) : '');
      for (let presses = 0; (await words()) !== step.what; presses++) {
        if (presses > 60) throw new Error(`the keyboard does not reach ${step.what}`);
        await page.keyboard.press('Tab');
      }
      const shown = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      if (shown === 'none') throw new Error(`it cannot be seen that the keyboard is at ${step.what}`);
      await page.keyboard.press('Enter');
    } else if (step.do === 'type') {
      await page.getByLabel(step.label).fill(step.what);
    } else if (step.do === 'wait') {
      await page.getByText(step.what).first().waitFor();
    } else if (step.do === 'perfetto') {
      for (const end = Date.now() + TIMEOUT_MS; popups.length === 0; await page.waitForTimeout(50)) {
        if (Date.now() > end) throw new Error(`no tab was opened; the page says: ${await page.locator('body').innerText()}`);
      }
      const tab = popups.pop();
      await waitForTrace(tab);
      await tab.screenshot({path: `${task.folder}/perfetto.png`});
      ui = await tab.evaluate(timeline, DIALOG);
      await tab.close();
      await page.bringToFront();
    } else if (step.do === 'shot') {
      // Its words may stand there before its style has come.
      await page.waitForLoadState('load');
      // Evaluated from outside, so that it works where the page's own scripts do not run.
      pages[step.what] = {address: page.url(), ...(task.scripts ? await page.evaluate(looks) : {text: await page.locator('body').innerText()})};
      await page.screenshot({path: `${task.folder}/${step.what}.png`, fullPage: !task.touch});
      // A full picture is taken of a page that is made as long as its content; what is pressed next must lie where it lay before.
      if (task.scripts) await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); setTimeout(done, 2_000); }));
    }
  }
  return {pages, ui, problems};
}

run(() => drive(walk, ['127.0.0.1', 'localhost'], {ignoreDefaultArgs: ['--disable-popup-blocking']}));
