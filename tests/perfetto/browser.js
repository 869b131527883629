// Opens one trace in Perfetto's UI in a headless Chromium and takes a picture.
//
//   node browser.js '{"webRoot": ..., "chromium": ..., "playwright": ..., "trace": ..., "png": ..., "expand": true}'
//
// Prints {"tracks": [{"name", "depth"}], "error": text or null} as JSON.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');

const {task, TIMEOUT_MS, DIALOG, waitForTrace, drive, run} = require('./chromium.js');

const TYPES = {
  '.css': 'text/css', '.html': 'text/html', '.js': 'text/javascript', '.json': 'application/json',
  '.png': 'image/png', '.svg': 'image/svg+xml', '.wasm': 'application/wasm', '.woff2': 'font/woff2',
};
// The UI shows the last part of this address as the title of the trace.
const TRACE_ADDRESS = '/the-trace/' + encodeURIComponent(path.basename(task.trace));

const server = http.createServer((request, response) => {
  const address = request.url.split(/[?#]/)[0];
  const page = path.join(task.webRoot, path.normalize(decodeURIComponent(address === '/' ? '/index.html' : address)));
  const file = address === TRACE_ADDRESS ? task.trace : page;
  fs.readFile(file, (error, content) => {
    response.writeHead(error ? 404 : 200, {
      'Content-Type': TYPES[path.extname(file)] ?? 'application/octet-stream',
      'Cache-Control': 'no-store',
    });
    response.end(error ? '' : content);
  });
});

// These run inside the page.
const readTracks = () => {
  const tracks = [];
  const visit = (node, depth) => {
    tracks.push({name: node.name, depth});
    for (const child of node.children) visit(child, depth + 1);
  };
  for (const node of window.app.trace.workspace.children) visit(node, 0);
  return tracks;
};

const expandTracks = () => {
  const visit = (node) => {
    if (node.children.length > 0) node.expand();
    node.children.forEach(visit);
  };
  window.app.trace.workspace.children.forEach(visit);
  window.app.raf.scheduleFullRedraw();
};

async function look(browser, origin) {
  const page = await browser.newPage({viewport: {width: 1600, height: 1000}});
  page.setDefaultTimeout(TIMEOUT_MS);
  // The UI asks servers for news and statistics, and looks for an engine on port 9001; nothing may leave this page.
  await page.route('**/*', (route) => (
    route.request().url().startsWith(origin) ? route.continue() : route.abort()
  ));
  await page.goto(`${origin}/#!/?hideSidebar=true&url=${encodeURIComponent(origin + TRACE_ADDRESS)}`);
  const loaded = await waitForTrace(page);
  if (loaded && task.expand) {
    await page.evaluate(expandTracks);
    await waitForTrace(page);
  }
  await page.screenshot({path: task.png});
  const error = await page.evaluate((dialog) => document.querySelector(dialog)?.innerText.trim() || null, DIALOG);
  return {tracks: loaded ? await page.evaluate(readTracks) : [], error};
}

async function main() {
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    await drive((browser) => look(browser, `http://127.0.0.1:${server.address().port}`), ['127.0.0.1']);
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

run(main);
