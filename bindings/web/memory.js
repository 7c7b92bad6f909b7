// The memory of the runtime: what a call needs of it, texts, and the error that is there.

import {errorOf} from './errors.js';

/** Bytes in front of what an object holds. */
export const HEADER = 24;

/** Memory of one instance, `this.c` its functions. */
export class Memory {
  constructor() {
    this.utf8 = {encode: new TextEncoder(), decode: new TextDecoder()};
  }

  takeScratch(size) {
    this.scratch = this.c.ek_web_alloc(size, 16) >>> 0;
    this.scratchEnd = this.scratch + size;
  }

  get view() {
    const {buffer} = this.c.memory; // of a longer one once memory has grown
    if (this.seen?.buffer !== buffer) this.seen = new DataView(buffer);
    return this.seen;
  }

  get u8() {
    return new Uint8Array(this.c.memory.buffer);
  }

  text(at, size) {
    const from = at >>> 0;
    const bytes = this.isShared ? this.u8.slice(from, from + size) : this.u8.subarray(from, from + size);
    return this.utf8.decode.decode(bytes);
  }

  pointer(at) {
    return this.view.getUint32(at, true);
  }

  /** What a call needs until it ends: memory, and references. */
  frame() {
    return {scratch: this.scratch, blocks: [], objects: []};
  }

  leave(owned) {
    owned.objects.forEach((each) => this.c.ek_object_release(each));
    owned.blocks.forEach((each) => this.c.ek_web_free(each));
    this.scratch = owned.scratch;
  }

  alloc(size, owned) {
    const at = this.scratch;
    const end = at + (size + 15 & ~15);
    if (end <= this.scratchEnd) {
      this.scratch = end;
      return at;
    }
    const block = this.c.ek_web_alloc(size, 16) >>> 0;
    if (!block) throw errorOf('MemoryError', `out of memory: ${size} bytes`);
    owned.blocks.push(block);
    return block;
  }

  /** The text at an address, up to a zero. */
  cstringAt(at) {
    return this.text(at, this.u8.indexOf(0, at) - at);
  }

  cstring(text, owned) {
    const bytes = this.utf8.encode.encode(text);
    const at = this.alloc(bytes.length + 1, owned);
    this.u8.set(bytes, at);
    this.u8[at + bytes.length] = 0;
    return at;
  }

  /** Runs `body(frame)` in a frame of its own. */
  within(body) {
    const owned = this.frame();
    try {
      return body(owned);
    } finally {
      this.leave(owned);
    }
  }

  /** Throws this thread's error unless a function of the runtime said 0. */
  check(code) {
    if (code === 0) return;
    const pointer = this.c.ek_error_take() >>> 0;
    if (!pointer) throw errorOf('InternalError', 'the runtime failed without an error');
    const [kind, message, trace] = [0, 8, 16].map(
      (by) => this.text(this.pointer(pointer + HEADER + by), this.pointer(pointer + HEADER + by + 4)));
    this.c.ek_object_release(pointer);
    throw errorOf(kind, message, trace);
  }
}
