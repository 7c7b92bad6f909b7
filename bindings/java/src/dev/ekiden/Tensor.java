package dev.ekiden;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SegmentAllocator;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;

/**
 * Elements in row-major order. A call reads native memory of its arguments without a copy; that of a
 * result belongs to the runtime, until nothing refers to the segment any more. Results of up to 4096
 * bytes are copied to Java's heap: what its collector needs to give others back costs more.
 *
 * <p>A result that is a constant of its program has memory that is read-only. What is written to that
 * of another no argument, other result or later run sees.
 */
public final class Tensor {
  private final DType dtype;
  private final long[] shape;
  private final MemorySegment data;

  /** Whether the memory is a caller's, whose arena may be closed before the tensor is used. */
  private final boolean isBorrowed;

  private static final int MAX_HEAP_BYTES = 4096;

  /**
   * A tensor over memory that is the caller's. A call with it throws ValueError once the arena of that
   * memory is closed; an arena cannot be closed during such a call.
   *
   * @throws EkidenException ValueError where the memory has another size, or is not native
   */
  public Tensor(DType dtype, long[] shape, MemorySegment data) {
    this(dtype, shape, data, true);
  }

  private Tensor(DType dtype, long[] shape, MemorySegment data, boolean isBorrowed) {
    long wanted = dtype.size();
    for (long extent : shape) {
      if (extent < 0) throw new EkidenException("ValueError", "tensor: a dimension below 0");
      wanted = Math.multiplyExact(wanted, extent);
    }
    if (data.byteSize() != wanted) {
      String message = "tensor of shape " + Arrays.toString(shape) + ": " + wanted;
      throw new EkidenException("ValueError", message + " bytes expected, got " + data.byteSize());
    }
    if (!data.isNative()) throw new EkidenException("ValueError", "tensor: native memory expected");
    this.dtype = dtype;
    this.shape = shape.clone();
    this.data = data;
    this.isBorrowed = isBorrowed;
  }

  /** A result, whose memory is one that nobody closes. */
  private Tensor(DType dtype, MemorySegment data, long[] shape) {
    this.dtype = dtype;
    this.shape = shape;
    this.data = data;
    this.isBorrowed = false;
  }

  /** Memory of Java's heap with a copy of a small result. */
  private static MemorySegment copyToHeap(MemorySegment from, long size) {
    MemorySegment to = MemorySegment.ofArray(new long[(int) (size + 7) / 8]).asSlice(0, size);
    MemorySegment.copy(from, 0, to, 0, size);
    return to;
  }

  /** A tensor with a copy of elements. */
  public static Tensor of(float[] data, long... shape) {
    return owned(DType.FLOAT32, shape, MemorySegment.ofArray(data));
  }

  /** A tensor with a copy of elements. */
  public static Tensor of(double[] data, long... shape) {
    return owned(DType.FLOAT64, shape, MemorySegment.ofArray(data));
  }

  /** A tensor with a copy of elements. */
  public static Tensor of(int[] data, long... shape) {
    return owned(DType.INT32, shape, MemorySegment.ofArray(data));
  }

  /** A tensor with a copy of elements. */
  public static Tensor of(long[] data, long... shape) {
    return owned(DType.INT64, shape, MemorySegment.ofArray(data));
  }

  /** A tensor with a copy of elements, of a dtype of one byte. */
  public static Tensor of(DType dtype, byte[] data, long... shape) {
    return owned(dtype, shape, MemorySegment.ofArray(data));
  }

  private static Tensor owned(DType dtype, long[] shape, MemorySegment from) {
    MemorySegment to = Arena.ofAuto().allocate(from.byteSize(), 64);
    return new Tensor(dtype, shape, to.copyFrom(from), false);
  }

  /** A tensor of zeros. */
  public static Tensor zeros(DType dtype, long... shape) {
    long size = dtype.size() * Arrays.stream(shape).reduce(1, Math::multiplyExact);
    return new Tensor(dtype, shape, Arena.ofAuto().allocate(size, 64), false);
  }

  /** A tensor of the runtime, which the segment keeps. */
  static Tensor read(MemorySegment object) {
    int ndim = object.get(JAVA_INT, Native.TENSOR_AT + 16);
    DType dtype = DType.of(object.get(JAVA_INT, Native.TENSOR_AT + 20));
    MemorySegment dims = object.get(Native.POINTER, Native.TENSOR_AT + 24);
    long[] shape = dims.asSlice(0, 8L * ndim).toArray(JAVA_LONG);
    long size = dtype.size();
    for (long extent : shape) size = Math.multiplyExact(size, extent);
    MemorySegment whole = contiguous(object, shape, dtype);
    MemorySegment data = whole.get(Native.POINTER, Native.TENSOR_AT);
    long offset = whole.get(JAVA_LONG, Native.TENSOR_AT + 40);
    boolean isReadOnly = Native.isReadOnly(object);
    MemorySegment owned;
    if (size <= MAX_HEAP_BYTES) {
      try {
        owned = copyToHeap(data.asSlice(offset), size);
      } finally {
        Native.release(whole);
      }
    } else {
      owned =
          MemorySegment.ofAddress(data.address() + offset)
              .reinterpret(size, Arena.ofAuto(), _ -> Native.release(whole));
    }
    return new Tensor(dtype, isReadOnly ? owned.asReadOnly() : owned, shape);
  }

  /** Returns another reference to a contiguous tensor, or a contiguous copy of any other. */
  private static MemorySegment contiguous(MemorySegment object, long[] shape, DType dtype) {
    MemorySegment strides = object.get(Native.POINTER, Native.TENSOR_AT + 32);
    long expected = 1;
    boolean fits = true;
    for (int axis = shape.length - 1; axis >= 0; axis--) {
      fits &= shape[axis] == 1 || strides.getAtIndex(JAVA_LONG, axis) == expected;
      expected *= shape[axis];
    }
    if (fits || expected == 0) {
      Native.retain(object);
      return object;
    }
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.POINTER);
      MemorySegment dims = arena.allocateFrom(JAVA_LONG, shape);
      int dtypeBits = dtype.packed();
      Native.check(Native.callInt(Native.TENSOR_NEW, dims, shape.length, dtypeBits, 1L, out));
      MemorySegment made = out.get(Native.POINTER, 0);
      MemorySegment from = object.asSlice(Native.TENSOR_AT);
      MemorySegment to = made.asSlice(Native.TENSOR_AT);
      Native.check(Native.callInt(Native.TENSOR_COPY, from, to));
      return made;
    }
  }

  /** The memory, if it is a caller's: a call must keep its arena from being closed. */
  MemorySegment held() {
    return isBorrowed ? data : null;
  }

  /** Throws ValueError where this thread may not, or no longer, use the memory. */
  void expectAlive() {
    if (!isBorrowed) return;
    if (!data.scope().isAlive()) {
      throw new EkidenException("ValueError", "tensor: the arena of its memory is closed");
    }
    if (!data.isAccessibleBy(Thread.currentThread())) {
      String message = "tensor: its memory is confined to another thread";
      throw new EkidenException("ValueError", message);
    }
  }

  /** An ek_dltensor that lends this memory, or a copy from the heap, for as long as what allocates. */
  MemorySegment lend(SegmentAllocator arena) {
    expectAlive();
    MemorySegment made = arena.allocate(Native.DLTENSOR_SIZE, 8);
    boolean isLent = data.isNative();
    made.set(Native.POINTER, 0, isLent ? data : arena.allocate(data.byteSize(), 64).copyFrom(data));
    made.set(JAVA_INT, 8, 1);
    made.set(JAVA_INT, 16, shape.length);
    made.set(JAVA_INT, 20, dtype.packed());
    made.set(Native.POINTER, 24, arena.allocateFrom(JAVA_LONG, shape));
    return made;
  }

  public DType dtype() {
    return dtype;
  }

  public long[] shape() {
    return shape.clone();
  }

  /** Type and number of the device its memory is on, DLPack's. */
  public int[] device() {
    return new int[] {1, 0};
  }

  /** The memory of its elements; that of a small result is no native one. */
  public MemorySegment data() {
    return data;
  }

  /** A copy of its elements. Throws TypeError where they are of another type. */
  public float[] toFloats() {
    expect(DType.FLOAT32);
    return data.toArray(ValueLayout.JAVA_FLOAT);
  }

  /** A copy of its elements as doubles, whatever numbers they are. */
  public double[] toDoubles() {
    double[] made = new double[(int) (data.byteSize() / dtype.size())];
    for (int i = 0; i < made.length; i++) made[i] = element(i);
    return made;
  }

  private double element(long i) {
    return switch (dtype) {
      case FLOAT32 -> data.getAtIndex(ValueLayout.JAVA_FLOAT, i);
      case FLOAT64 -> data.getAtIndex(ValueLayout.JAVA_DOUBLE, i);
      case FLOAT16 -> Float.float16ToFloat(data.getAtIndex(ValueLayout.JAVA_SHORT, i));
      case BFLOAT16 ->
          Float.intBitsToFloat(data.getAtIndex(ValueLayout.JAVA_SHORT, i) << 16);
      case INT8 -> data.get(ValueLayout.JAVA_BYTE, i);
      case UINT8, BOOL -> data.get(ValueLayout.JAVA_BYTE, i) & 255;
      case INT16 -> data.getAtIndex(ValueLayout.JAVA_SHORT, i);
      case UINT16 -> data.getAtIndex(ValueLayout.JAVA_SHORT, i) & 65535;
      case INT32 -> data.getAtIndex(JAVA_INT, i);
      case UINT32 -> data.getAtIndex(JAVA_INT, i) & 0xffffffffL;
      case INT64, UINT64 -> data.getAtIndex(JAVA_LONG, i);
    };
  }

  private void expect(DType wanted) {
    if (dtype == wanted) return;
    String message = "read tensor: " + wanted + " expected, got " + dtype;
    throw new EkidenException("TypeError", message);
  }

  @Override
  public String toString() {
    return "Tensor(" + dtype + ", " + Arrays.toString(shape) + ")";
  }
}
