// What the programs that drive a headless Chromium have in common: their task, the browser, their patience, Perfetto's UI.
'use strict';
const task = JSON.parse(process.argv[2]);
const {chromium} = require(task.playwright);

const TIMEOUT_MS = 120_000;
const IDLE_MS = 60_000;
const QUIET_MS = 500;
const DIALOG = '.pf-modal-dialog, .modal-dialog';

// Runs inside the UI: whether it shows a trace, or a dialog.
const isReady = (dialog) =>
  document.querySelector(dialog)?.innerText.trim()
  || (window.app?.trace && !window.app.isLoadingTrace && document.querySelector('.pf-viewer-page'));

// Waits until the UI in this tab shows a trace, or a dialog, and has drawn it; tells whether it is a trace.
async function waitForTrace(tab) {
  await tab.waitForFunction(isReady, DIALOG, {polling: 100});
  const loaded = await tab.evaluate(() => Boolean(window.app?.trace));
  if (loaded) {
    // A tab behind another one draws nothing, and would never be idle.
    await tab.bringToFront();
    // The UI's own tests wait with this function: no query, task, drawing or animation is under way.
    await Promise.race([tab.evaluate((quietMs) => window.waitForPerfettoIdle(quietMs), QUIET_MS), tab.waitForTimeout(IDLE_MS)]);
  }
  return loaded;
}

// Prints as JSON what `look` makes of a browser that reaches these hosts only.
async function drive(look, hosts, options = {}) {
  const browser = await chromium.launch({
    executablePath: task.chromium,
    headless: true,
    timeout: TIMEOUT_MS,
    // Without --no-sandbox root cannot run it; the resolver rule keeps the browser itself off the network.
    args: ['--no-sandbox', '--disable-gpu', `--host-resolver-rules=${['MAP * ~NOTFOUND', ...hosts.map((host) => `EXCLUDE ${host}`)].join(', ')}`],
    ...options,
  });
  try {
    process.stdout.write(JSON.stringify(await look(browser)));
  } finally {
    await browser.close();
  }
}

// Runs the program; what goes wrong is told on stderr.
function run(program) {
  program().catch((error) => {
    process.stderr.write(String(error?.stack ?? error));
    process.exitCode = 1;
  });
}

module.exports = {task, TIMEOUT_MS, DIALOG, waitForTrace, drive, run};
