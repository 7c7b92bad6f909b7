/** The runtime's error: `kind` is its class there, such as "InputError"; `name` is the same. */
export class EkidenError extends Error {
  kind: string;
  backtrace: string;
  constructor(kind: string, message: string, backtrace?: string);
}

export type DType =
  | 'float32' | 'float64' | 'int8' | 'uint8' | 'int16' | 'uint16' | 'int32' | 'uint32'
  | 'int64' | 'uint64' | 'bool' | 'float16' | 'bfloat16';

export type Data =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array
  | Int32Array | Uint32Array | BigInt64Array | BigUint64Array;

/** Elements in row-major order; of bool in bytes, of float16 and bfloat16 as their bits. A call reads
 * `data` without a copy, and the data of a result is the runtime's memory. */
export class Tensor {
  readonly dtype: DType;
  readonly shape: number[];
  readonly data: Data;
  /** Without `data` a tensor of zeros. Throws TypeError, ValueError. */
  constructor(dtype: DType, shape: number[], data?: Data | Iterable<number>);
  readonly device: {type: number; id: number};
}

/** A whole number is an int of the runtime, another one a float. */
export type Value =
  | undefined | null | boolean | number | bigint | string | Tensor | Value[]
  | Func | Module | Obj | ((...args: any[]) => any);

declare class Counted {
  /** Gives it back before the collector does, which can only while the event loop turns: a loop that
   * never waits closes what it makes. Later use throws ValueError. */
  close(): void;
}

/** A function that any language may have made. */
export class Func extends Counted {
  /** Throws the function's error as an EkidenError. */
  call(...args: Value[]): any;
  /** The same on a thread of Node's pool; typed arrays must stay as they are meanwhile. Once a call
   * with as many bytes took less than 20 us, which is less than another thread costs, calls are made
   * here, before the promise is given. */
  callAsync(...args: Value[]): Promise<any>;
}

/** A module looks up functions by name: a compiled model, a shared library. */
export class Module extends Counted {
  /** Throws OSError, LoadError, ValueError for another suffix than .eki and .so. */
  static load(path: string): Module;
  names(): string[];
  /** Throws AttributeError if the module has no function of that name. */
  get(name: string): Func;
}

/** A compiled model of an .eki file. */
export class Model {
  constructor(module: Module);
  static load(path: string): Model;
  readonly module: Module;
  inputs(name?: string): string[];
  /** On a thread of Node's pool. Throws InputError that names the input. */
  run(inputs: Record<string, Tensor>, name?: string): Promise<any>;
  runSync(inputs: Record<string, Tensor>, name?: string): any;
  /** Results are written to the data of `outputs`. Throws ValueError where shapes differ. */
  runInto(inputs: Record<string, Tensor>, outputs: Tensor[], name?: string): void;
  /** Runs, and tells how often each kernel was called and for how long. */
  profile(inputs: Record<string, Tensor>, name?: string):
    {result: any; kernels: {name: string; calls: number; nanoseconds: number}[]};
  /** Threads of a run at most; 0 for as many as the process. */
  numThreads: number;
  close(): void;
}

/** An object of a type that any language defined. */
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

/** Defines a type, for every language of the process. Throws where it is there already. */
export function define(key: string, fields: Record<string, 'int' | 'bool' | 'float' | 'any'>): void;

/** The functions that all languages of the process know by name. */
export const registry: {
  /** Throws ValueError where the name is taken. */
  register(name: string, body: (...args: any[]) => any): void;
  remove(name: string): boolean;
  /** Throws KeyError. */
  get(name: string): Func;
};

/** Threads that share a loop; with `n` above 0, first sets it. */
export function numThreads(n?: number): number;
