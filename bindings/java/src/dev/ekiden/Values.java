package dev.ekiden;

import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SegmentAllocator;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Converts Java values to ek_value and back; closing it frees what a call needed. Its memory is
 * the thread's, behind that of calls which have not ended, and an arena's once that is full.
 */
final class Values implements AutoCloseable, SegmentAllocator {
  private static final class Block {
    final MemorySegment memory = Arena.ofAuto().allocate(16384, 64);
    long used;
  }

  private static final ThreadLocal<Block> BLOCK = ThreadLocal.withInitial(Block::new);

  private final Block block = BLOCK.get();
  private final long before = block.used;
  private Arena more;
  final MemorySegment memory;
  final int count;
  private final List<MemorySegment> owned = new ArrayList<>();

  /** Memory of callers that the call reads. */
  private final List<MemorySegment> held = new ArrayList<>();

  Values(List<?> values) {
    count = values.size();
    memory = allocate((long) Native.VALUE_SIZE * Math.max(count, 1), 16);
    try {
      for (int i = 0; i < count; i++) {
        write(values.get(i), memory.asSlice((long) Native.VALUE_SIZE * i, Native.VALUE_SIZE));
      }
    } catch (RuntimeException error) {
      close();
      throw error;
    }
  }

  @Override
  public void close() {
    for (MemorySegment each : owned) Native.release(each);
    if (more != null) more.close();
    block.used = before;
  }

  @Override
  public MemorySegment allocate(long size, long alignment) {
    long begin = (block.used + alignment - 1) & -alignment;
    if (alignment > 64 || size > block.memory.byteSize() - begin) {
      if (more == null) more = Arena.ofConfined();
      return more.allocate(size, alignment);
    }
    block.used = begin + size;
    return block.memory.asSlice(begin, size).fill((byte) 0);
  }

  private void write(Object value, MemorySegment out) {
    switch (value) {
      case null -> {}
      case Boolean flag -> put(out, Native.BOOL, flag ? 1 : 0);
      case Byte number -> put(out, Native.INT, number);
      case Short number -> put(out, Native.INT, number);
      case Integer number -> put(out, Native.INT, number);
      case Long number -> put(out, Native.INT, number);
      case Float number -> put(out, Native.FLOAT, Double.doubleToRawLongBits(number));
      case Double number -> put(out, Native.FLOAT, Double.doubleToRawLongBits(number));
      case String text -> writeText(text, out);
      case Tensor tensor -> {
        put(out, Native.DLTENSOR_PTR, tensor.lend(this).address());
        hold(tensor.held());
      }
      case List<?> list -> writeList(list, out);
      case Counted counted -> writeObject(counted.object(), out);
      case Func.Body body -> {
        MemorySegment made = Func.create(body);
        owned.add(made);
        put(out, Native.FUNCTION, made.address());
      }
      default -> {
        String message = "a value expected, got " + value.getClass().getName();
        throw new EkidenException("TypeError", message);
      }
    }
  }

  /** One segment of each arena is enough. */
  private void hold(MemorySegment memory) {
    if (memory == null) return;
    for (MemorySegment each : held) {
      if (each.scope().equals(memory.scope())) return;
    }
    held.add(memory);
  }

  /**
   * Calls a function, its result in {@code ret}; arenas of arguments cannot be closed meanwhile.
   *
   * @return the function's code
   * @throws EkidenException ValueError where such an arena is closed
   */
  int call(MemorySegment function, MemorySegment ret) {
    MemorySegment code = function.get(Native.POINTER, 24);
    try {
      if (held.isEmpty()) {
        return (int) Native.CALL.invokeExact(code, function, memory, count, ret);
      }
      MemorySegment[] open = held.toArray(new MemorySegment[0]);
      return (int) Native.keepaliveCall(open.length).invokeExact(code, function, memory, count, ret, open);
    } catch (EkidenException error) {
      throw error;
    } catch (IllegalStateException | WrongThreadException error) {
      throw new EkidenException("ValueError", "tensor: its memory: " + error.getMessage());
    } catch (Throwable error) {
      throw new AssertionError(error);
    }
  }

  private static void put(MemorySegment out, int type, long payload) {
    out.set(JAVA_INT, 0, type);
    out.set(JAVA_LONG, 8, payload);
  }

  /** Retained for the call: another thread may close it meanwhile. */
  private void writeObject(MemorySegment object, MemorySegment out) {
    Native.retain(object);
    owned.add(object);
    put(out, Native.typeIndex(object), object.address());
  }

  private void writeText(String text, MemorySegment out) {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    MemorySegment data = allocateFrom(ValueLayout.JAVA_BYTE, bytes);
    Native.check(Native.callInt(Native.STRING_NEW, Native.STR, data, (long) bytes.length, out));
    if (out.get(JAVA_INT, 0) >= Native.OBJECT) owned.add(out.get(Native.POINTER, 8));
  }

  private void writeList(List<?> list, MemorySegment out) {
    MemorySegment items = allocate((long) Native.VALUE_SIZE * Math.max(list.size(), 1), 16);
    for (int i = 0; i < list.size(); i++) {
      MemorySegment item = items.asSlice((long) Native.VALUE_SIZE * i, Native.VALUE_SIZE);
      write(list.get(i), item);
      if (item.get(JAVA_INT, 0) == Native.DLTENSOR_PTR) own((Tensor) list.get(i), item);
    }
    MemorySegment made = allocate(Native.POINTER);
    long n = list.size();
    Native.check(Native.callInt(Native.CONTAINER_NEW, Native.ARRAY, 0, items, n, made));
    MemorySegment array = made.get(Native.POINTER, 0);
    owned.add(array);
    put(out, Native.ARRAY, array.address());
  }

  /** A lent tensor as one of the runtime, for what keeps it. */
  private void own(Tensor tensor, MemorySegment value) {
    long[] shape = tensor.shape();
    MemorySegment made = allocate(Native.POINTER);
    MemorySegment dims = allocateFrom(JAVA_LONG, shape);
    int dtype = tensor.dtype().packed();
    Native.check(Native.callInt(Native.TENSOR_NEW, dims, shape.length, dtype, 1L, made));
    MemorySegment object = made.get(Native.POINTER, 0);
    owned.add(object);
    long size = tensor.data().byteSize();
    if (size != 0) object.get(Native.POINTER, Native.TENSOR_AT).asSlice(0, size).copyFrom(tensor.data());
    put(value, Native.TENSOR, object.address());
  }

  /** Hands the first value over, owned. */
  void moveFirst(Object source, MemorySegment to) {
    if (source instanceof Tensor tensor) own(tensor, memory);
    to.copyFrom(memory.asSlice(0, Native.VALUE_SIZE));
    if (to.get(JAVA_INT, 0) >= Native.OBJECT) Native.retain(to.get(Native.POINTER, 8));
  }

  /** A value that is owned, which is given back. */
  static Object take(MemorySegment value) {
    try {
      return read(value);
    } finally {
      if (value.get(JAVA_INT, 0) >= Native.OBJECT) {
        Native.release(value.get(Native.POINTER, 8));
      }
    }
  }

  /** A value that is borrowed. */
  static Object read(MemorySegment value) {
    int type = value.get(JAVA_INT, 0);
    return switch (type) {
      case Native.NONE -> null;
      case Native.INT -> value.get(JAVA_LONG, 8);
      case Native.BOOL -> value.get(JAVA_LONG, 8) != 0;
      case Native.FLOAT -> value.get(JAVA_DOUBLE, 8);
      case Native.SMALL_STR -> {
        byte[] bytes = value.asSlice(8, value.get(JAVA_INT, 4)).toArray(ValueLayout.JAVA_BYTE);
        yield new String(bytes, StandardCharsets.UTF_8);
      }
      case Native.RAW_STR -> value.get(Native.POINTER, 8).getString(0);
      case Native.STR -> Native.textAt(value.get(Native.POINTER, 8), 24);
      case Native.DLTENSOR_PTR -> readBorrowed(value.get(Native.POINTER, 8));
      default -> {
        if (type >= Native.OBJECT) yield readObject(value.get(Native.POINTER, 8));
        throw new EkidenException("TypeError", "a value of type " + type + " is not for Java");
      }
    };
  }

  /** Copies a borrowed tensor, which may be freed when the call ends. */
  private static Tensor readBorrowed(MemorySegment dl) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment made = arena.allocate(Native.POINTER);
      int ndim = dl.get(JAVA_INT, 16);
      int dtype = dl.get(JAVA_INT, 20);
      MemorySegment shape = dl.get(Native.POINTER, 24);
      Native.check(Native.callInt(Native.TENSOR_NEW, shape, ndim, dtype, 1L, made));
      MemorySegment object = made.get(Native.POINTER, 0);
      try {
        Native.check(Native.callInt(Native.TENSOR_COPY, dl, object.asSlice(Native.TENSOR_AT)));
        return Tensor.read(object);
      } finally {
        Native.release(object);
      }
    }
  }

  private static Object readObject(MemorySegment object) {
    int type = Native.typeIndex(object);
    if (type == Native.TENSOR) return Tensor.read(object);
    if (type == Native.ARRAY) {
      return readItems(object.get(Native.POINTER, 24), object.get(JAVA_LONG, 32));
    }
    if (type == Native.ADT && object.get(JAVA_INT, 24) == 0) {
      return readItems(object.asSlice(32), object.get(JAVA_INT, 28));
    }
    Native.retain(object);
    return switch (type) {
      case Native.FUNCTION -> new Func(object);
      case Native.MODULE -> new Module(object);
      default -> new Obj(object);
    };
  }

  private static List<Object> readItems(MemorySegment items, long n) {
    List<Object> made = new ArrayList<>();
    for (long i = 0; i < n; i++) {
      made.add(read(items.asSlice(Native.VALUE_SIZE * i, Native.VALUE_SIZE)));
    }
    return made;
  }
}
