// Shows what the model says of a file. It runs in a worker, so that the page stays awake.

import {features} from './magika.js';

const at = (id) => document.getElementById(id);
const worker = new Worker(new URL('./worker.js', import.meta.url), {type: 'module'});
let config;

function fail(message) {
  at('status').textContent = '';
  at('answer').hidden = true;
  at('error').textContent = message;
  at('error').hidden = false;
}

function show(name, {best, times}) {
  at('status').textContent = `${name} was looked at.`;
  at('best').textContent = `${name}: ${best[0].label}`;
  at('scores').replaceChildren(...best.map(({label, score}) => {
    const row = document.createElement('tr');
    for (const text of [label, `${(100 * score).toFixed(1)} %`]) {
      row.append(Object.assign(document.createElement('td'), {textContent: text}));
    }
    return row;
  }));
  at('times').replaceChildren(...times.map(
    (text) => Object.assign(document.createElement('li'), {textContent: text})));
  at('answer').hidden = false;
}

async function look(file) {
  at('error').hidden = true;
  at('status').textContent = `Looking at ${file.name} …`;
  try {
    const data = new Uint8Array(await file.arrayBuffer());
    worker.postMessage({name: file.name, row: features(data, config)});
  } catch (error) {
    fail(`${file.name} cannot be looked at: ${error.message}`);
  }
}

worker.onerror = (event) => fail(`The model does not run here: ${event.message}`);
worker.onmessage = ({data}) => {
  if (data.ready) {
    config = data.ready;
    at('status').textContent = 'Ready.';
    document.documentElement.dataset.ready = 'yes';
  } else if (data.error) fail(data.error);
  else show(data.name, data);
};

at('file').addEventListener('change', () => {
  const [file] = at('file').files;
  if (file && config) look(file);
});
for (const [event, over] of [['dragover', true], ['dragleave', false], ['drop', false]]) {
  at('drop').addEventListener(event, (happened) => {
    happened.preventDefault();
    at('drop').classList.toggle('over', over);
    const file = event === 'drop' ? happened.dataTransfer.files[0] : undefined;
    if (file && config) look(file);
    else if (event === 'drop' && config) fail('That is no file.');
  });
}
navigator.serviceWorker?.register('offline.js').catch(() => {}); // where it may not, the page works online
