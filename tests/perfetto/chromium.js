// What the programs that drive a headless Chromium have in common: their task, the browser, their patience, Perfetto's UI.
'use strict';
const task = JSON.parse(process.argv[2]);
const {chromium} = require(task.playwright);

const TIMEOUT_MS = 120_000;
const DIALOG = '.pf-modal-dialog, .modal-dialog';

// Runs inside the UI: whether it shows a trace, or a dialog.
const isReady = (dialog) =>
  document.querySelector(dialog)?.innerText.trim()
  || (window.app?.trace && !window.app.isLoadingTrace && document.querySelector('.pf-viewer-page'));

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

module.exports = {task, TIMEOUT_MS, DIALOG, isReady, drive, run};
