'use strict';
// The buttons that hand a trace to Perfetto. Without this script, forms and links do the same in more steps.

const words = () => document.getElementById('status');

function say(text, address) {
  words().replaceChildren(text);
  if (address) {
    const link = document.createElement('a');
    link.href = address;
    link.textContent = 'What the merge says';
    words().append(' ', link);
  }
}

// On the page of a merged trace: the trace is there.
function ready() {
  const button = document.getElementById('open');
  if (!button || !button.hidden) return;
  button.hidden = false;
  button.addEventListener('click', async () => {
    if (await handOver(given(button), button, say)) say('Perfetto has the trace.');
  });
}

function given(button) {
  return {...button.dataset, gone: 'The trace is no longer there. Load this page again.'};
}

// On other pages: the tab of Perfetto opens with the click, as browsers demand; the trace is merged, and handed over when it is there.
async function mergeAndOpen(form) {
  const {link} = form.dataset;
  const tab = window.open(link);
  if (!tab) {
    form.submit();
    return;
  }
  document.body.dataset.busy = 'yes';
  try {
    let page = await load(form.action, {method: 'POST', body: new URLSearchParams()});
    for (; page.querySelector('.progress'); page = await load(form.action, {})) {
      const bar = page.querySelector('progress');
      say(`Merging the traces of ${form.dataset.name}: ${bar.value} %.`);
      await new Promise((resolve) => { setTimeout(resolve, 500); });
    }
    const button = page.getElementById('open');
    const offline = page.getElementById('offline');
    if (offline) {
      tab.location = offline.href;
      say(`The timeline of ${form.dataset.name} is open.`, form.action);
    } else if (!button) {
      tab.close();
      location.assign(form.action);
    } else if (await handOver(given(button), form.querySelector('button'), say, tab)) {
      say(`Perfetto has the trace of ${form.dataset.name}.`, form.action);
    }
  } catch (error) {
    tab.close();
    say(error instanceof TypeError ? 'The server does not answer.' : error.message);
  } finally {
    delete document.body.dataset.busy;
  }
}

async function load(address, options) {
  const answer = await fetch(address, {cache: 'no-store', ...options});
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  if (!answer.ok) throw new Error(page.querySelector('main p')?.textContent ?? `The server answers ${answer.status}.`);
  return page;
}

document.addEventListener('submit', (event) => {
  if (!event.target.matches('form[data-link]')) return;
  event.preventDefault();
  if (!document.body.dataset.busy) mergeAndOpen(event.target);
});
document.addEventListener('renewed', ready);
ready();
