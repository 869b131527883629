'use strict';
// The button that hands the trace to Perfetto. Without this script, the link below it is enough.

function ready() {
  const button = document.getElementById('open');
  if (!button || !button.hidden || typeof handOver !== 'function') return;
  const status = document.getElementById('status');
  const say = (words) => { status.textContent = words; };
  const given = {...button.dataset, gone: 'The trace is no longer there. Load this page again.'};
  button.hidden = false;
  button.addEventListener('click', async () => {
    if (await handOver(given, button, say)) say('Perfetto has the trace.');
  });
}

document.addEventListener('renewed', ready);
ready();
