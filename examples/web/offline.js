// Keeps the files of the page, so that it works without a network.

const CACHE = 'ekiden-1';
const FILES = [
  './', 'index.html', 'page.css', 'page.js', 'worker.js', 'magika.js', 'magika.json', 'index.js',
  'runtime.js', 'thread.js', 'webgpu.js', 'ekiden.wasm', 'ekiden-threads.wasm', 'model.eki',
  'gpu.eki',
];

self.addEventListener('install', (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)));
  self.skipWaiting();
});
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));
self.addEventListener('fetch', (event) => {
  event.respondWith(fetch(event.request).catch(() => caches.match(event.request)));
});
