/* Pages that are opened as files may start no worker: search then runs in a frame of its own. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        if (this.onmessage) this.onmessage(event);
      });
      const page = frame.contentDocument;
      page.open();
      page.write(`<!doctype html><script>
        postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", {data, source: window}));
        importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise((loaded, failed) => {
          const script = document.createElement("script");
          script.src = url; script.onload = loaded; script.onerror = failed;
          document.head.appendChild(script);
        })), Promise.resolve());
      <\/script>`);
      this.ready = new Promise((loaded) => {
        const script = page.createElement("script");
        script.src = url;
        script.onload = loaded;
        page.head.appendChild(script);
      });
      page.close();
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.inside.frameElement.remove(); }
  };
}
