package dev.ekiden;

import java.lang.foreign.MemorySegment;
import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicReference;

/** One strong reference to an object of the runtime, given back by close() or the collector. */
abstract sealed class Counted implements AutoCloseable permits Func, Module, Obj {
  private final Reference reference;
  private final Cleaner.Cleanable cleanable;

  private static final class Reference extends AtomicReference<MemorySegment> implements Runnable {
    private static final long serialVersionUID = 1L;

    @Override
    public void run() {
      MemorySegment object = getAndSet(null);
      if (object != null) Native.release(object);
    }
  }

  /** Takes the reference over. */
  Counted(MemorySegment object) {
    reference = new Reference();
    reference.set(object);
    cleanable = Native.CLEANER.register(this, reference);
  }

  /** The object. Throws ValueError where it is closed. */
  MemorySegment object() {
    MemorySegment found = reference.get();
    if (found == null) throw new EkidenException("ValueError", "it is closed");
    return found;
  }

  /** Releases the object; any later use throws ValueError. Not during a call. */
  @Override
  public void close() {
    cleanable.clean();
  }
}
