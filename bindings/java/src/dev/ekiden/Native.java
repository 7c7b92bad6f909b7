package dev.ekiden;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.lang.ref.Cleaner;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** The runtime's C interface: layouts, numbers of types and functions of ekiden/runtime.h. */
final class Native {
  static final int ANY = -1;
  static final int NONE = 0;
  static final int INT = 1;
  static final int BOOL = 2;
  static final int FLOAT = 3;
  static final int DLTENSOR_PTR = 7;
  static final int RAW_STR = 8;
  static final int SMALL_STR = 11;
  static final int OBJECT = 64;
  static final int STR = 65;
  static final int FUNCTION = 68;
  static final int TENSOR = 70;
  static final int ARRAY = 71;
  static final int MODULE = 73;
  static final int ADT = 129;
  static final int EXECUTABLE = 131;

  static final int VALUE_SIZE = 16;
  static final int FIELD_SIZE = 72;
  static final int TYPE_DEF_SIZE = 56;
  static final int DLTENSOR_SIZE = 48;

  /** Offsets of a tensor's fields behind the header of its object. */
  static final int TENSOR_AT = 24;

  static final AddressLayout POINTER =
      ADDRESS.withTargetLayout(MemoryLayout.sequenceLayout(Long.MAX_VALUE / 8, JAVA_BYTE));

  private static final String FILE = "libekiden_runtime.so";
  static final Cleaner CLEANER = Cleaner.create();
  static final Linker LINKER = Linker.nativeLinker();
  private static final SymbolLookup LIBRARY = library();

  static final MethodHandle RETAIN = function("ek_object_retain", null, POINTER);
  static final MethodHandle RELEASE = function("ek_object_release", null, POINTER);
  static final MethodHandle FUNCTION_NEW =
      function("ek_function_new", JAVA_INT, POINTER, POINTER, POINTER, POINTER);
  static final MethodHandle TYPE_REGISTER =
      function("ek_type_register", JAVA_INT, POINTER, JAVA_INT);
  static final MethodHandle TYPE_DEFINE = function("ek_type_define", JAVA_INT, JAVA_INT, POINTER);
  static final MethodHandle TYPE_GET = function("ek_type_get", POINTER, JAVA_INT);
  static final MethodHandle OBJECT_NEW =
      function("ek_object_new", JAVA_INT, JAVA_INT, POINTER, JAVA_INT, POINTER);
  static final MethodHandle FIELD_GET =
      function("ek_field_get", JAVA_INT, POINTER, POINTER, POINTER);
  static final MethodHandle FIELD_SET =
      function("ek_field_set", JAVA_INT, POINTER, POINTER, POINTER);
  static final MethodHandle VALUE_EQUAL = function("ek_value_equal", JAVA_INT, POINTER, POINTER);
  static final MethodHandle STRING_NEW =
      function("ek_string_new", JAVA_INT, JAVA_INT, POINTER, JAVA_LONG, POINTER);
  static final MethodHandle CONTAINER_NEW =
      function("ek_container_new", JAVA_INT, JAVA_INT, JAVA_INT, POINTER, JAVA_LONG, POINTER);
  static final MethodHandle ERROR_TAKE = function("ek_error_take", POINTER);
  static final MethodHandle REGISTRY_SET =
      function("ek_registry_set", JAVA_INT, POINTER, POINTER, JAVA_INT);
  static final MethodHandle REGISTRY_GET = function("ek_registry_get", POINTER, POINTER);
  static final MethodHandle TENSOR_NEW =
      function("ek_tensor_new", JAVA_INT, POINTER, JAVA_INT, JAVA_INT, JAVA_LONG, POINTER);
  static final MethodHandle TENSOR_COPY = function("ek_tensor_copy", JAVA_INT, POINTER, POINTER);
  static final MethodHandle MODULE_LOAD = function("ek_module_load", JAVA_INT, POINTER, POINTER);
  static final MethodHandle MODULE_GET =
      function("ek_module_get", JAVA_INT, POINTER, POINTER, POINTER);
  static final MethodHandle MODULE_PART =
      function("ek_module_part", JAVA_INT, POINTER, JAVA_INT, POINTER);
  static final MethodHandle NUM_THREADS = function("ek_num_threads", JAVA_INT, JAVA_INT);
  static final MethodHandle ITEM =
      function("ek_executable_item", JAVA_INT, POINTER, JAVA_INT, JAVA_LONG, POINTER);
  static final MethodHandle VM_NEW = function("ek_vm_new", JAVA_INT, POINTER, POINTER);

  /** ek_error(kind, "%s", message), which has arguments after its format. */
  private static final MethodHandle ERROR =
      LINKER.downcallHandle(
          LIBRARY.find("ek_error").orElseThrow(),
          FunctionDescriptor.of(JAVA_INT, POINTER, POINTER, POINTER),
          Linker.Option.firstVariadicArg(2));

  /** A function object's code: (self, args, n, ret). */
  static final FunctionDescriptor PACKED =
      FunctionDescriptor.of(JAVA_INT, POINTER, POINTER, JAVA_INT, POINTER);

  static final MethodHandle CALL = LINKER.downcallHandle(PACKED);

  /** Arguments of a method of Java are at most 255. */
  private static final int MAX_KEEPALIVE = 200;

  /** The same for calls that must keep as many arenas open, from 1 on. */
  private static final List<MethodHandle> KEEPALIVE_CALLS = new CopyOnWriteArrayList<>();

  private Native() {}

  /**
   * CALL, with more arguments: segments whose arenas stay open as long as C runs, which Java sees to
   * for all segments that a call of C is given. A function of C finds its own arguments where it
   * expects them, and does not look at those behind.
   */
  static MethodHandle keepaliveCall(int count) {
    if (count > MAX_KEEPALIVE) {
      String message = "call: memory of at most " + MAX_KEEPALIVE + " arenas expected, got " + count;
      throw new EkidenException("ValueError", message);
    }
    while (KEEPALIVE_CALLS.size() < count) {
      int more = KEEPALIVE_CALLS.size() + 1;
      MemoryLayout[] held = Collections.nCopies(more, ADDRESS).toArray(new MemoryLayout[0]);
      MethodHandle call = LINKER.downcallHandle(PACKED.appendArgumentLayouts(held));
      synchronized (KEEPALIVE_CALLS) {
        if (KEEPALIVE_CALLS.size() < more) KEEPALIVE_CALLS.add(call.asSpreader(MemorySegment[].class, more));
      }
    }
    return KEEPALIVE_CALLS.get(count - 1);
  }

  private static SymbolLookup library() {
    String folder = System.getProperty("EKIDEN_LIB_DIR", System.getenv("EKIDEN_LIB_DIR"));
    if (folder != null) return opened(Path.of(folder, FILE));
    String arch = System.getProperty("os.arch").equals("amd64") ? "x86_64" : "aarch64";
    try (InputStream inside = Native.class.getResourceAsStream("/native/linux-" + arch + "/" + FILE)) {
      if (inside != null) return opened(copied(inside));
    } catch (IOException error) {
      throw new EkidenException("OSError", "the runtime's library cannot be written: " + error);
    }
    String message = "the jar has no " + FILE + " for " + arch + ": EKIDEN_LIB_DIR names its folder";
    throw new EkidenException("OSError", message);
  }

  private static SymbolLookup opened(Path file) {
    return SymbolLookup.libraryLookup(file, Arena.global());
  }

  /** Extracts a resource to a temporary file, which the loader needs; it is deleted at exit. */
  private static Path copied(InputStream inside) throws IOException {
    Path made = Files.createTempFile("libekiden_runtime", ".so");
    made.toFile().deleteOnExit();
    Files.copy(inside, made, StandardCopyOption.REPLACE_EXISTING);
    return made;
  }

  private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... args) {
    FunctionDescriptor kind =
        result == null ? FunctionDescriptor.ofVoid(args) : FunctionDescriptor.of(result, args);
    return LINKER.downcallHandle(LIBRARY.find(name).orElseThrow(), kind);
  }

  /** Calls a C function with an integer result; a Throwable of the method handle is unchecked. */
  static int callInt(MethodHandle function, Object... args) {
    try {
      return (int) function.invokeWithArguments(args);
    } catch (Throwable error) {
      throw new AssertionError(error);
    }
  }

  static MemorySegment callPointer(MethodHandle function, Object... args) {
    try {
      return (MemorySegment) function.invokeWithArguments(args);
    } catch (Throwable error) {
      throw new AssertionError(error);
    }
  }

  /** One more strong reference. */
  static void retain(MemorySegment object) {
    try {
      RETAIN.invokeExact(object);
    } catch (Throwable error) {
      throw new AssertionError(error);
    }
  }

  /** Gives a strong reference back. */
  static void release(MemorySegment object) {
    try {
      RELEASE.invokeExact(object);
    } catch (Throwable error) {
      throw new AssertionError(error);
    }
  }

  /** What the runtime's own tensors have as their deleter: those of others end with their DLTensor. */
  private static final long OWN_DELETER = deleterOfTensors();

  private static long deleterOfTensors() {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(POINTER);
      check(callInt(TENSOR_NEW, MemorySegment.NULL, 0, DType.INT8.packed(), 1L, out));
      MemorySegment made = out.get(POINTER, 0);
      long deleter = made.get(JAVA_LONG, 16);
      release(made);
      return deleter;
    }
  }

  /** Whether a tensor must not be written. */
  static boolean isReadOnly(MemorySegment tensor) {
    boolean isOwn = tensor.get(JAVA_LONG, 16) == OWN_DELETER;
    return isOwn && (tensor.get(JAVA_LONG, TENSOR_AT + DLTENSOR_SIZE) & 1) != 0;
  }

  /** A number that is 0 or more as it is, -1 as this thread's error. */
  static int check(int code) {
    if (code < 0) throw takeError();
    return code;
  }

  static EkidenException takeError() {
    MemorySegment error = callPointer(ERROR_TAKE);
    if (error.equals(MemorySegment.NULL)) {
      return new EkidenException("InternalError", "a call failed without an error");
    }
    EkidenException made =
        new EkidenException(textAt(error, 24), textAt(error, 40), textAt(error, 56));
    release(error);
    return made;
  }

  /** Makes what Java threw this thread's error. */
  static void setError(Throwable thrown) {
    String kind =
        switch (thrown) {
          case EkidenException error -> error.kind();
          case IllegalArgumentException _ -> "ValueError";
          case IndexOutOfBoundsException _ -> "IndexError";
          case ClassCastException _ -> "TypeError";
          case OutOfMemoryError _ -> "MemoryError";
          default -> "RuntimeError";
        };
    String message = thrown.getMessage() == null ? thrown.toString() : thrown.getMessage();
    try (Arena arena = Arena.ofConfined()) {
      Object[] args = {arena.allocateFrom(kind), arena.allocateFrom("%s"), arena.allocateFrom(message)};
      callInt(ERROR, args);
    }
  }

  /** The text of an ek_bytes: an address, then a size. */
  static String textAt(MemorySegment memory, long offset) {
    long size = memory.get(JAVA_LONG, offset + 8);
    MemorySegment data = memory.get(POINTER, offset);
    byte[] bytes = data.asSlice(0, size).toArray(JAVA_BYTE);
    return new String(bytes, StandardCharsets.UTF_8);
  }

  static int typeIndex(MemorySegment object) {
    return object.get(JAVA_INT, 8);
  }
}
