package dev.ekiden;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** A function that any language may have made. */
public final class Func extends Counted {
  /** A function of Java. It may be called from any thread, and from several at once. */
  @FunctionalInterface
  public interface Body {
    /** What it throws is the error of whoever calls. */
    Object call(List<Object> args) throws Exception;
  }

  private static final Map<Long, Body> BODIES = new ConcurrentHashMap<>();
  private static final AtomicLong NEXT = new AtomicLong(1);
  private static final MemorySegment CALL_BACK;
  private static final MemorySegment DELETE;

  static {
    try {
      MethodHandles.Lookup lookup = MethodHandles.lookup();
      Class<?> pointer = MemorySegment.class;
      MethodType packed = MethodType.methodType(int.class, pointer, pointer, int.class, pointer);
      MethodHandle call = lookup.findStatic(Func.class, "callBack", packed);
      MethodType deleter = MethodType.methodType(void.class, pointer);
      MethodHandle delete = lookup.findStatic(Func.class, "delete", deleter);
      CALL_BACK = Native.LINKER.upcallStub(call, Native.PACKED, Arena.global());
      DELETE = Native.LINKER.upcallStub(delete, FunctionDescriptor.ofVoid(ADDRESS), Arena.global());
    } catch (ReflectiveOperationException error) {
      throw new AssertionError(error);
    }
  }

  Func(MemorySegment object) {
    super(object);
  }

  /** A function that every language can call. */
  public static Func of(Body body) {
    return new Func(create(body));
  }

  /** An owned function object. */
  static MemorySegment create(Body body) {
    long number = NEXT.getAndIncrement();
    BODIES.put(number, body);
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.POINTER);
      MemorySegment self = MemorySegment.ofAddress(number);
      int code = Native.callInt(Native.FUNCTION_NEW, self, CALL_BACK, DELETE, out);
      if (code < 0) BODIES.remove(number);
      Native.check(code);
      return out.get(Native.POINTER, 0);
    }
  }

  private static int callBack(MemorySegment self, MemorySegment args, int n, MemorySegment ret) {
    try {
      List<Object> values = new ArrayList<>();
      for (long i = 0; i < n; i++) {
        values.add(Values.read(args.asSlice(Native.VALUE_SIZE * i, Native.VALUE_SIZE)));
      }
      Object result = BODIES.get(self.address()).call(values);
      List<Object> alone = new ArrayList<>();
      alone.add(result);
      try (Values made = new Values(alone)) {
        made.moveFirst(result, ret.asSlice(0, Native.VALUE_SIZE));
      }
      return 0;
    } catch (Throwable thrown) {
      Native.setError(thrown);
      return -1;
    }
  }

  private static void delete(MemorySegment self) {
    BODIES.remove(self.address());
  }

  /**
   * Calls it. Numbers, booleans, texts, tensors, lists and what the runtime counts may be given.
   *
   * @throws EkidenException the function's error
   */
  public Object call(Object... args) {
    return call(new ArrayList<>(java.util.Arrays.asList(args)));
  }

  Object call(List<?> args) {
    MemorySegment function = object();
    try (Values values = new Values(args)) {
      MemorySegment ret = values.allocate(Native.VALUE_SIZE, 16);
      Native.check(values.call(function, ret));
      java.lang.ref.Reference.reachabilityFence(this);
      java.lang.ref.Reference.reachabilityFence(args);
      return Values.take(ret);
    }
  }
}
