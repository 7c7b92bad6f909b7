package dev.ekiden;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.List;

/** A module looks up functions by name: a compiled model, a shared library. */
public final class Module extends Counted {
  private static final int NAMES = 1;

  Module(MemorySegment object) {
    super(object);
  }

  /**
   * The module in a file.
   *
   * @throws EkidenException OSError, LoadError, ValueError for another suffix than .eki and .so
   */
  public static Module load(Path path) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.POINTER);
      MemorySegment text = arena.allocateFrom(path.toString());
      Native.check(Native.callInt(Native.MODULE_LOAD, text, out));
      return new Module(out.get(Native.POINTER, 0));
    }
  }

  /** The names of its functions; none of a shared library, which cannot list them. */
  @SuppressWarnings("unchecked")
  public List<String> names() {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.VALUE_SIZE, 16);
      Native.check(Native.callInt(Native.MODULE_PART, object(), NAMES, out));
      return (List<String>) Values.take(out);
    }
  }

  /** Returns the function of a name, of this module or of an imported one. Throws AttributeError. */
  public Func get(String name) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.POINTER);
      Native.check(Native.callInt(Native.MODULE_GET, object(), arena.allocateFrom(name), out));
      MemorySegment found = out.get(Native.POINTER, 0);
      if (!found.equals(MemorySegment.NULL)) return new Func(found);
    }
    String known = String.join(", ", names());
    String message = "module: no function named '" + name + "'; there are " + known;
    throw new EkidenException("AttributeError", message);
  }
}
