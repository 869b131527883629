'use strict';

// Perfetto's answer to PING is the only sign that it listens:
// https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
function answered(tab, origin) {
  return new Promise((resolve, reject) => {
    const stop = (end, value) => { clearInterval(timer); removeEventListener('message', hear); end(value); };
    const hear = (event) => {
      if (event.source === tab && event.origin === origin && event.data === 'PONG') stop(resolve);
    };
    addEventListener('message', hear);
    const timer = setInterval(() => {
      if (tab.closed) stop(reject, new Error('The tab of Perfetto is closed.'));
      else tab.postMessage('PING', origin);
    }, 200);
  });
}

async function read(address, gone) {
  const answer = await fetch(address, {cache: 'no-store'});
  if (!answer.ok) throw new Error(gone);
  return answer.arrayBuffer();
}

// Opens Perfetto's UI in a tab, unless there is one, and hands it a trace; returns whether it has it.
//   given: {link, origin: of the UI; trace: its address; title; gone: what to say when the trace cannot be had}
//   button: what to press; say: shows words.
async function handOver(given, button, say, tab = window.open(given.link)) {
  if (!tab) {
    say('The browser wants a click first.');
    button.focus();
    return false;
  }
  button.disabled = true;
  try {
    say('Waiting for Perfetto.');
    const [buffer] = await Promise.all([read(given.trace, given.gone), answered(tab, given.origin)]);
    tab.postMessage({perfetto: {buffer, title: given.title, fileName: given.title}}, given.origin, [buffer]);
    return true;
  } catch (error) {
    say(String(error.message ?? error));
    return false;
  } finally {
    button.disabled = false;
  }
}
