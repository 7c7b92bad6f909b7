package dev.ekiden;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A compiled model of an .eki file: functions whose inputs have names. */
public final class Model implements AutoCloseable {
  private static final int PARAMS = 1;
  private final Module module;
  private final Obj executable;

  /** How often a kernel ran, and for how long. */
  public record KernelTime(String name, long calls, long nanoseconds) {}

  /** A run's result, and its kernels. */
  public record Profile(Object result, List<KernelTime> kernels) {}

  private Model(Module module) {
    this.module = module;
    try (Func get = module.get("get_executable")) {
      executable = (Obj) get.call();
    }
  }

  /**
   * A model with its functions.
   *
   * @throws EkidenException OSError, LoadError, AttributeError where the file is no model
   */
  public static Model load(Path path) {
    return new Model(Module.load(path));
  }

  /** The model as a module, whose functions take their arguments by position. */
  public Module module() {
    return module;
  }

  @Override
  public void close() {
    executable.close();
    module.close();
  }

  private long indexOf(String function) {
    int index = module.names().indexOf(function);
    if (index < 0) module.get(function);
    return index;
  }

  /** The names of a function's inputs, in their order. Throws AttributeError. */
  @SuppressWarnings("unchecked")
  public List<String> inputs(String function) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment out = arena.allocate(Native.VALUE_SIZE, 16);
      MemorySegment object = executable.object();
      Native.check(Native.callInt(Native.ITEM, object, PARAMS, indexOf(function), out));
      return (List<String>) Values.take(out);
    }
  }

  private List<Object> positionalArgs(String function, Map<String, Tensor> inputs) {
    List<String> wanted = inputs(function);
    for (String name : inputs.keySet()) {
      if (wanted.contains(name)) continue;
      String message = "no input '" + name + "'; there are " + String.join(", ", wanted);
      throw new EkidenException("InputError", message);
    }
    List<Object> args = new ArrayList<>();
    for (String name : wanted) {
      Tensor given = inputs.get(name);
      if (given == null) throw new EkidenException("InputError", "input '" + name + "' is missing");
      args.add(given);
    }
    return args;
  }

  /** Runs main: a tensor, or a list of the tensors of several. Throws InputError. */
  public Object run(Map<String, Tensor> inputs) {
    return run("main", inputs);
  }

  /** Runs a function with inputs by name. Throws InputError, which names the input. */
  public Object run(String function, Map<String, Tensor> inputs) {
    try (Func found = module.get(function)) {
      return found.call(positionalArgs(function, inputs));
    }
  }

  /** The same, with results written to the memory of tensors. Throws ValueError. */
  public void runInto(String function, Map<String, Tensor> inputs, List<Tensor> outputs) {
    List<Tensor> results = new ArrayList<>();
    flatten(run(function, inputs), results);
    if (results.size() != outputs.size()) {
      String message = "expected " + results.size() + " outputs, got " + outputs.size();
      throw new EkidenException("ValueError", message);
    }
    for (int i = 0; i < results.size(); i++) {
      if (outputs.get(i).data().isReadOnly()) {
        throw new EkidenException("ValueError", "output " + i + ": its memory is read-only");
      }
      String wanted = results.get(i).toString();
      String got = outputs.get(i).toString();
      if (wanted.equals(got)) continue;
      String message = "output " + i + ": shape and type " + wanted + " expected, got " + got;
      throw new EkidenException("ValueError", message);
    }
    for (int i = 0; i < results.size(); i++) outputs.get(i).data().copyFrom(results.get(i).data());
  }

  private static void flatten(Object value, List<Tensor> out) {
    if (value instanceof List<?> list) {
      for (Object each : list) flatten(each, out);
    } else {
      out.add((Tensor) value);
    }
  }

  /** Runs a function, and tells how long each of its kernels took. */
  public Profile profile(String function, Map<String, Tensor> inputs) {
    List<Object> args = positionalArgs(function, inputs);
    args.addFirst(indexOf(function));
    try (Arena arena = Arena.ofConfined();
        Func debugger = Registry.get("ek.vm.module")) {
      MemorySegment out = arena.allocate(Native.POINTER);
      Native.check(Native.callInt(Native.VM_NEW, executable.object(), out));
      try (Obj machine = new Obj(out.get(Native.POINTER, 0));
          Module debug = (Module) debugger.call(machine);
          Func kernels = debug.get("kernels")) {
        List<?> items = (List<?>) kernels.call(args);
        List<KernelTime> times = new ArrayList<>();
        for (int i = 1; i + 2 < items.size(); i += 3) {
          long calls = (Long) items.get(i + 1);
          times.add(new KernelTime((String) items.get(i), calls, (Long) items.get(i + 2)));
        }
        return new Profile(items.getFirst(), times);
      }
    }
  }

  /** How many threads a run has at most; 0 for as many as the process. */
  public void numThreads(long n) {
    if (n < 0) throw new EkidenException("ValueError", "threads: 0 or more expected, got " + n);
    try (Func set = Registry.get("ek.executable.num_threads")) {
      set.call(executable, n);
    }
  }

  /** What was set. */
  public long numThreads() {
    try (Func get = Registry.get("ek.executable.num_threads")) {
      return (Long) get.call(executable);
    }
  }

  /** Threads of the process that share a loop; with {@code n} above 0, first sets it. */
  public static int processThreads(int n) {
    return Native.callInt(Native.NUM_THREADS, n);
  }
}
