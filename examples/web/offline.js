// Keeps the files of the page, so that it works without a network.

const CACHE = 'ekiden-1';

async function keep() {
  const cache = await caches.open(CACHE);
  const files = await (await fetch('files.json')).json();
  await cache.addAll(['./', 'files.json', ...files]);
}

self.addEventListener('install', (event) => {
  event.waitUntil(keep());
  self.skipWaiting();
});
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));
self.addEventListener('fetch', (event) => {
  event.respondWith(fetch(event.request).catch(() => caches.match(event.request)));
});
