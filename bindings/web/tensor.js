// Tensors in the memory of JavaScript.

import {errorOf} from './errors.js';

/** dtype -> [code, bits, typed array] */
export const DTYPES = {
  float32: [2, 32, Float32Array], float64: [2, 64, Float64Array], int8: [0, 8, Int8Array],
  uint8: [1, 8, Uint8Array], int16: [0, 16, Int16Array], uint16: [1, 16, Uint16Array],
  int32: [0, 32, Int32Array], uint32: [1, 32, Uint32Array], int64: [0, 64, BigInt64Array],
  uint64: [1, 64, BigUint64Array], bool: [6, 8, Uint8Array], float16: [2, 16, Uint16Array],
  bfloat16: [4, 16, Uint16Array],
};
/** The same by code and bits. */
export const DTYPE_OF = new Map(
  Object.entries(DTYPES).map(([name, [code, bits]]) => [code << 8 | bits, name]));

/** Elements in row-major order, in the memory of JavaScript. */
export class Tensor {
  constructor(dtype, shape, data) {
    const row = DTYPES[dtype];
    if (!row) throw errorOf('TypeError', `no tensors of dtype '${dtype}'`);
    const kind = row[2];
    shape.forEach((extent, at) => {
      if (Number.isSafeInteger(extent) && extent >= 0) return;
      throw errorOf('ValueError', `tensor: dimension ${at} of its shape is no size: ${extent}`);
    });
    const size = shape.reduce((a, b) => a * b, 1);
    this.dtype = dtype;
    this.shape = [...shape];
    this.data = data === undefined ? new kind(size) : data instanceof kind ? data : kind.from(data);
    if (this.data.length !== size) {
      const got = this.data.length;
      const message = `tensor of shape [${shape}]: ${size} elements expected, got ${got}`;
      throw errorOf('ValueError', message);
    }
  }

  get device() {
    return {type: 1, id: 0};
  }
}

/** Whether a shape with strides is contiguous in row-major order. */
export function isCompact(shape, strides) {
  let expected = 1;
  for (let i = shape.length - 1; i >= 0; i--) {
    if (shape[i] === 0) return true;
    if (shape[i] !== 1 && strides[i] !== expected) return false;
    expected *= shape[i];
  }
  return true;
}

/** Returns the offset of the element with a row-major index. */
export function offset(index, shape, strides) {
  let at = 0;
  for (let i = shape.length - 1, rest = index; i >= 0; i--) {
    at += rest % shape[i] * strides[i];
    rest = Math.floor(rest / shape[i]);
  }
  return at;
}
