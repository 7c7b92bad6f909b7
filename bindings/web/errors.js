// Errors of the runtime as classes of JavaScript.

/** The runtime's error: `kind` is its class there, such as "InputError"; `trace` what it knows of the
 * place in the program. */
export class EkidenError extends Error {
  constructor(kind, message, trace = '') {
    super(message);
    this.name = kind;
    this.kind = kind;
    this.trace = trace;
  }
}

const KINDS = [
  'InputError', 'LoadError', 'OSError', 'ValueError', 'TypeError', 'KeyError', 'IndexError',
  'AttributeError', 'MemoryError', 'MemoryLimitError', 'IndexRangeError', 'LinAlgError',
  'BoundsError', 'RunLimitError', 'RuntimeError', 'DeviceError', 'InternalError',
];

/** A class for each kind of error: `error instanceof errors.InputError`. */
export const errors = Object.fromEntries(KINDS.map((kind) => [kind, class extends EkidenError {
  constructor(message, trace) {
    super(kind, message, trace);
  }
}]));

export function errorOf(kind, message, trace = '') {
  const known = errors[kind];
  return known ? new known(message, trace) : new EkidenError(kind, message, trace);
}
