package dev.ekiden;

/** The type of a tensor's elements, by DLPack's numbers. */
public enum DType {
  FLOAT32(2, 32),
  FLOAT64(2, 64),
  FLOAT16(2, 16),
  BFLOAT16(4, 16),
  INT8(0, 8),
  INT16(0, 16),
  INT32(0, 32),
  INT64(0, 64),
  UINT8(1, 8),
  UINT16(1, 16),
  UINT32(1, 32),
  UINT64(1, 64),
  BOOL(6, 8);

  final int code;
  final int bits;

  DType(int code, int bits) {
    this.code = code;
    this.bits = bits;
  }

  /** Bytes of an element. */
  public int size() {
    return bits / 8;
  }

  /** The four bytes of an ek_dtype. */
  int packed() {
    return code | bits << 8 | 1 << 16;
  }

  static DType of(int packed) {
    for (DType each : values()) {
      if (each.packed() == packed) return each;
    }
    String message = "elements of dtype " + (packed & 255) + " of " + (packed >> 8 & 255) + " bits";
    throw new EkidenException("TypeError", message + " are not for Java");
  }

  /** NumPy's name, such as "float32". */
  @Override
  public String toString() {
    return name().toLowerCase(java.util.Locale.ROOT);
  }
}
