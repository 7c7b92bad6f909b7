package dev.ekiden;

import static java.lang.foreign.ValueLayout.JAVA_INT;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** An object of a type that any language defined. */
public final class Obj extends Counted {
  /** What a field holds. */
  public enum Kind {
    INT(Native.INT),
    BOOL(Native.BOOL),
    FLOAT(Native.FLOAT),
    ANY(Native.ANY);

    final int type;

    Kind(int type) {
      this.type = type;
    }
  }

  Obj(MemorySegment object) {
    super(object);
  }

  /** Defines a type, for every language of the process; fields in the map's order. */
  public static void define(String key, Map<String, Kind> fields) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment rows = arena.allocate((long) Native.FIELD_SIZE * Math.max(fields.size(), 1), 16);
      long at = 0;
      for (Map.Entry<String, Kind> field : fields.entrySet()) {
        rows.set(Native.POINTER, at, arena.allocateFrom(field.getKey()));
        rows.set(JAVA_INT, at + 16, field.getValue().type);
        at += Native.FIELD_SIZE;
      }
      MemorySegment def = arena.allocate(Native.TYPE_DEF_SIZE, 8);
      def.set(Native.POINTER, 24, rows);
      def.set(JAVA_INT, 40, fields.size());
      MemorySegment text = arena.allocateFrom(key);
      int index = Native.check(Native.callInt(Native.TYPE_REGISTER, text, Native.OBJECT));
      Native.check(Native.callInt(Native.TYPE_DEFINE, index, def));
    }
  }

  /** An object of a defined type, from the values of its first fields. */
  public static Obj create(String key, Object... values) {
    try (Arena arena = Arena.ofConfined();
        Values given = new Values(Arrays.asList(values))) {
      int index = Native.callInt(Native.TYPE_REGISTER, arena.allocateFrom(key), Native.ANY);
      if (index < 0) {
        throw new EkidenException("TypeError", "there is no type '" + key + "'");
      }
      MemorySegment out = arena.allocate(Native.POINTER);
      Native.check(Native.callInt(Native.OBJECT_NEW, index, given.memory, given.count, out));
      return new Obj(out.get(Native.POINTER, 0));
    }
  }

  private MemorySegment info() {
    return Native.callPointer(Native.TYPE_GET, Native.typeIndex(object()));
  }

  /** The key of its type, such as "relay.Function". */
  public String typeKey() {
    return info().get(Native.POINTER, 0).getString(0);
  }

  /** The names of its fields, those of its type's parents first. */
  public List<String> fields() {
    List<String> names = new ArrayList<>();
    for (MemorySegment row : rows()) names.add(row.get(Native.POINTER, 0).getString(0));
    return names;
  }

  private List<MemorySegment> rows() {
    MemorySegment info = info();
    MemorySegment fields = info.get(Native.POINTER, 48);
    List<MemorySegment> rows = new ArrayList<>();
    for (long i = 0; i < info.get(JAVA_INT, 64); i++) {
      rows.add(fields.asSlice(Native.FIELD_SIZE * i, Native.FIELD_SIZE));
    }
    return rows;
  }

  private MemorySegment field(String name) {
    for (MemorySegment row : rows()) {
      if (row.get(Native.POINTER, 0).getString(0).equals(name)) return row;
    }
    String message = "'" + typeKey() + "' has no field '" + name + "'";
    throw new EkidenException("AttributeError", message);
  }

  /** Returns the value of a field. Throws AttributeError if there is no such field. */
  public Object get(String name) {
    MemorySegment field = field(name);
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.VALUE_SIZE, 16);
      Native.check(Native.callInt(Native.FIELD_GET, object(), field, out));
      return Values.take(out);
    }
  }

  /** Changes a field. Throws AttributeError, TypeError, ValueError. */
  public void set(String name, Object value) {
    MemorySegment field = field(name);
    List<Object> alone = new ArrayList<>();
    alone.add(value);
    try (Values values = new Values(alone)) {
      Native.check(Native.callInt(Native.FIELD_SET, object(), field, values.memory));
    }
  }

  /** Structural equality: by type and fields, not by identity. */
  public boolean matches(Obj other) {
    try (Values pair = new Values(List.of(this, other))) {
      MemorySegment second = pair.memory.asSlice(Native.VALUE_SIZE);
      return Native.check(Native.callInt(Native.VALUE_EQUAL, pair.memory, second)) == 1;
    }
  }
}
