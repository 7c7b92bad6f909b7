// Modules of WebAssembly as bytes: what an engine takes, the code in artifacts, and code for shared memory.

const SIMD = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15,
  253, 98, 11,
];
const RELAXED = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15,
  65, 2, 253, 15, 253, 128, 2, 11,
];
const IMPORT = 2, DATA = 11, MEMORY = 2; // sections of a module, a kind of import
/** Shared memory declares its maximum size: 4 GB. runtime/web links with the same. */
export const FIRST_PAGES = 512, MAX_PAGES = 65535;
const IMAGE_SECTION = 5, PAGE = 4096;
const DEVICE_SECTION = 10, FIRST_KERNEL = 12, WEBGPU = 15; // of an artifact

/** Whether WebAssembly can wait for a promise (JSPI). */
export const CAN_SUSPEND = typeof WebAssembly.Suspending === 'function';

/** Returns the engine's features as the runtime's bits: SIMD 1, relaxed SIMD 2. */
export function features() {
  return [SIMD, RELAXED].reduce(
    (found, probe, bit) => found | Number(WebAssembly.validate(new Uint8Array(probe))) << bit, 0);
}

/** Returns the number of table entries that a kernel module needs, from its section "dylink.0". */
export function numTableEntries(module) {
  const [part] = WebAssembly.Module.customSections(module, 'dylink.0');
  const bytes = new Uint8Array(part);
  const numbers = [];
  for (let at = 1; at < bytes.length;) {
    const [value, behind] = decodeLeb(bytes, at);
    numbers.push(value);
    at = behind;
  }
  return numbers[3]; // behind the row's size, the memory and its alignment
}

/** The sections of an artifact of one kind. */
function* sections(bytes, kind) {
  if (bytes.length < 32) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = view.getUint32(24, true);
  for (let at = 32; at + 24 <= bytes.length && at < 32 + 24 * count; at += 24) {
    const [offset, length] = [8, 16].map((by) => Number(view.getBigUint64(at + by, true)));
    if ((view.getUint32(at, true) & 0xffff) !== kind) continue;
    if (offset + length > bytes.length) return;
    yield new DataView(bytes.buffer, bytes.byteOffset + offset, length);
  }
}

/** The texts of the native code in an artifact. */
export function* codeIn(bytes) {
  for (const part of sections(bytes, IMAGE_SECTION)) {
    if (part.byteLength < PAGE) continue;
    const size = Number(part.getBigUint64(16, true));
    if (size + PAGE <= part.byteLength) yield new Uint8Array(part.buffer, part.byteOffset + PAGE, size);
  }
}

/** Whether an artifact has kernels for WebGPU. */
export function needsWebGpu(bytes) {
  const [part] = sections(bytes, DEVICE_SECTION);
  return part !== undefined && part.byteLength >= FIRST_KERNEL + 4 && part.getUint32(FIRST_KERNEL, true) === WEBGPU;
}

/** Decodes a LEB128 integer at an offset; returns its value and the offset behind it. */
function decodeLeb(bytes, at) {
  let value = 0;
  let shift = 0;
  for (; bytes[at] >= 0x80; at++, shift += 7) value |= (bytes[at] & 0x7f) << shift;
  return [(value | bytes[at] << shift) >>> 0, at + 1];
}

/** The same as bytes. */
function encodeLeb(value) {
  const bytes = [];
  for (; value >= 0x80; value >>>= 7) bytes.push(value & 0x7f | 0x80);
  return [...bytes, value];
}

/** The content of an import section whose memory is one that threads share. */
function sharedImports(bytes) {
  const made = [];
  let [count, at] = decodeLeb(bytes, 0);
  made.push(...bytes.subarray(0, at));
  for (; count > 0; count--) {
    const from = at;
    for (let name = 0; name < 2; name++) {
      const [size, behind] = decodeLeb(bytes, at);
      at = behind + size;
    }
    const kind = bytes[at++];
    if (kind === MEMORY) {
      made.push(...bytes.subarray(from, at));
      const hasMaximum = (bytes[at] & 1) !== 0;
      const [least, behind] = decodeLeb(bytes, at + 1);
      at = hasMaximum ? decodeLeb(bytes, behind)[1] : behind;
      made.push(3, ...encodeLeb(least), ...encodeLeb(MAX_PAGES));
      continue;
    }
    if (kind === 0) at = decodeLeb(bytes, at)[1]; // the type of a function
    else if (kind === 3) at += 2; // that of a global
    else { // the table: its elements, then how many
      const hasMaximum = (bytes[at + 1] & 1) !== 0;
      at = decodeLeb(bytes, at + 2)[1];
      if (hasMaximum) at = decodeLeb(bytes, at)[1];
    }
    made.push(...bytes.subarray(from, at));
  }
  return made;
}

/** A module of kernels over memory that threads share, which engines tell from other memory; for a
 * thread that follows another without its data, which are there already. */
export function sharedModule(bytes, withData) {
  const parts = [bytes.slice(0, 8)];
  for (let at = 8; at < bytes.length;) {
    const number = bytes[at];
    const [size, from] = decodeLeb(bytes, at + 1);
    const content = bytes.slice(from, from + size);
    at = from + size;
    if (number === DATA && !withData) continue;
    const made = number === IMPORT ? sharedImports(content) : content;
    parts.push(new Uint8Array([number, ...encodeLeb(made.length)]), new Uint8Array(made));
  }
  const whole = new Uint8Array(parts.reduce((n, each) => n + each.length, 0));
  parts.reduce((at, each) => (whole.set(each, at), at + each.length), 0);
  return whole;
}

/** Whether a module of the runtime is that with threads: its memory is given to it. */
export function importsMemory(wasm) {
  return WebAssembly.Module.imports(wasm).some((each) => each.kind === 'memory');
}
