/** Waits at a proxy, `ws://127.0.0.1:9300` for `rpc.Proxy(web_port=9300)`, as a server of `key` ('browser'), and serves
 * clients, one after the other, until `close`. `done` ends then, and is rejected where no proxy is there. Other options
 * are those of `init`. */
export function serve(
  url: string,
  options?: {key?: string; threads?: number},
): Promise<{done: Promise<void>; close(): void}>;
