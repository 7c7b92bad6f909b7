package dev.ekiden;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** The functions that all languages of the process know by name. */
public final class Registry {
  private Registry() {}

  /** Gives a function a name. Throws ValueError where it is taken. */
  public static void register(String name, Func.Body body) {
    try (Arena arena = Arena.ofConfined();
        Func function = Func.of(body)) {
      MemorySegment text = arena.allocateFrom(name);
      Native.check(Native.callInt(Native.REGISTRY_SET, text, function.object(), 0));
    }
  }

  /** Takes a name away; whether there was a function of it. */
  public static boolean remove(String name) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment text = arena.allocateFrom(name);
      return Native.check(Native.callInt(Native.REGISTRY_SET, text, MemorySegment.NULL, 1)) == 1;
    }
  }

  /** The function of a name. Throws KeyError. */
  public static Func get(String name) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment found = Native.callPointer(Native.REGISTRY_GET, arena.allocateFrom(name));
      if (!found.equals(MemorySegment.NULL)) return new Func(found);
      throw new EkidenException("KeyError", "there is no function '" + name + "'");
    }
  }
}
