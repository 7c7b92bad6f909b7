/** The runtime's error: `kind` is its class there, such as "InputError"; `name` is the same. `trace`
 * has the places in the program, the most recent call first. */
export class EkidenError extends Error {
  kind: string;
  trace: string;
  constructor(kind: string, message: string, trace?: string);
}

/** A class for each kind: `error instanceof errors.InputError`. */
export const errors: Record<
  | 'InputError' | 'LoadError' | 'OSError' | 'ValueError' | 'TypeError' | 'KeyError' | 'IndexError'
  | 'AttributeError' | 'MemoryError' | 'MemoryLimitError' | 'IndexRangeError' | 'LinAlgError' | 'BoundsError'
  | 'RunLimitError' | 'RuntimeError' | 'DeviceError' | 'InternalError',
  new (message: string, trace?: string) => EkidenError>;

export type DType =
  | 'float32' | 'float64' | 'int8' | 'uint8' | 'int16' | 'uint16' | 'int32' | 'uint32'
  | 'int64' | 'uint64' | 'bool' | 'float16' | 'bfloat16';

export type Data =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array
  | Int32Array | Uint32Array | BigInt64Array | BigUint64Array;

/** Elements in row-major order; of bool in bytes, of float16 and bfloat16 as their bits. A call copies
 * them into the memory of the runtime, and results out of it. */
export class Tensor {
  readonly dtype: DType;
  readonly shape: number[];
  readonly data: Data;
  /** Without `data` a tensor of zeros. Throws TypeError, ValueError. */
  constructor(dtype: DType, shape: readonly number[], data?: Data | Iterable<number>);
  readonly device: {type: number; id: number};
}

/** A whole number is an int of the runtime, another one a float. */
export type Value =
  | undefined | null | boolean | number | bigint | string | Tensor | Value[]
  | Func | Module | Obj | ((...args: any[]) => any);

/** Where a file is: a URL or, in Node, a path; a response; its bytes. */
export type Source = string | URL | Response | ArrayBuffer | Uint8Array;

/** Starts the runtime, once: `wasm` is where ekiden.wasm or, with threads, ekiden-threads.wasm is (beside
 * this file), its bytes, or a compiled module. `threads` is how many share a loop: as many as there are
 * cores, at most 8, where memory can be shared, else one. More than one where that cannot be is a
 * RuntimeError. `webgpu` is what runs kernels in WGSL: a GPUDevice, a GPU where navigator.gpu is none, or the
 * URL of a module whose default export is one of them. load() does it where it has not been done. */
export function init(
  options?: {wasm?: Source | WebAssembly.Module; threads?: number; webgpu?: object}): Promise<void>;

/** What the engine has: of the variants in an artifact the first that it can run is taken. `threads` share
 * a loop; where it is one, `oneThread` says why. `webgpu`: whether the engine offers it. */
export function abilities(): {
  simd: boolean; relaxedSimd: boolean; threads: number; webgpu: boolean; oneThread?: string};

/** Loads a model that was compiled for wasm32; `name` is for messages. Throws OSError if there is no
 * such file, LoadError for a damaged one or another machine's, ValueError for another kind of file,
 * DeviceError for one with WGSL kernels if the engine has no WebGPU. */
export function load(from: Source, options?: {name?: string}): Promise<Model>;

declare class Counted {
  /** Gives it back before the collector does, which can only while the event loop turns: a loop that
   * never waits closes what it makes. Later use throws ValueError. */
  close(): void;
}

/** A function of the runtime, or of JavaScript as the runtime knows it. */
export class Func extends Counted {
  /** Throws the function's error as an EkidenError; DeviceError if results are on a device. */
  call(...args: Value[]): any;
  /** The same, which waits for devices. */
  callAsync(...args: Value[]): Promise<any>;
}

/** A module looks up functions by name. */
export class Module extends Counted {
  /** As load(). */
  static load(from: Source, name?: string): Promise<Module>;
  names(): string[];
  /** Throws AttributeError if the module has no function of that name. */
  get(name: string): Func;
}

/** A compiled model. It runs on the thread that calls it: give it to a worker, and pages stay awake. One
 * with kernels on a device is run by run(), one run after the other; the others throw DeviceError, except
 * where the thread waits for the device: in a worker of an isolated page, or Node, without JSPI. */
export class Model {
  constructor(module: Module);
  readonly module: Module;
  inputs(name?: string): string[];
  /** A tensor, or a list of them. Throws InputError that names the input. */
  run(inputs: Record<string, Tensor>, name?: string): Promise<any>;
  runSync(inputs: Record<string, Tensor>, name?: string): any;
  /** Results are written to the data of `outputs`. Throws ValueError where shapes differ. */
  runInto(inputs: Record<string, Tensor>, outputs: Tensor[], name?: string): void;
  /** Runs, and tells how often each kernel was called and for how long. */
  profile(inputs: Record<string, Tensor>, name?: string):
    {result: any; kernels: {name: string; calls: number; nanoseconds: number}[]};
  numThreads: number;
  close(): void;
}

/** An object of a type that was defined. */
export class Obj extends Counted {
  /** Throws TypeError, ValueError. */
  static create(key: string, ...values: Value[]): Obj;
  readonly typeKey: string;
  fields(): string[];
  /** Throws AttributeError if the object has no such field. */
  get(name: string): any;
  set(name: string, value: Value): void;
  /** Structural equality. */
  equals(other: Obj): boolean;
}

/** Defines a type. Throws where it is there already. */
export function define(key: string, fields: Record<string, 'int' | 'bool' | 'float' | 'any'>): void;

/** The functions that are known by name. */
export const registry: {
  /** Throws ValueError where the name is taken. */
  register(name: string, body: (...args: any[]) => any): void;
  remove(name: string): boolean;
  /** Throws KeyError. */
  get(name: string): Func;
};
