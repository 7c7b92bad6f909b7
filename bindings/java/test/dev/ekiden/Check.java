package dev.ekiden;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** What the script in data cannot say: threads, what Java throws, memory. */
final class Check {
  private Check() {}

  static boolean passes(Path folder) {
    Model model = Model.load(folder.resolve("scaled.eki"));
    Map<String, Tensor> inputs =
        Map.of("x", Tensor.of(new float[] {1, 2, 3, 4}, 1, 4), "scale", Tensor.of(new float[] {2}));
    List<Thread> threads = new ArrayList<>();
    List<Throwable> wrong = java.util.Collections.synchronizedList(new ArrayList<>());
    for (int i = 0; i < 4; i++) {
      threads.add(
          Thread.ofPlatform()
              .uncaughtExceptionHandler((_, error) -> wrong.add(error))
              .start(() -> runOften(model, inputs)));
    }
    try {
      for (Thread each : threads) each.join();
    } catch (InterruptedException error) {
      wrong.add(error);
    }
    Registry.register("check.bad", _ -> Integer.parseInt("no number"));
    try {
      Registry.get("check.bad").call();
      wrong.add(new AssertionError("nothing was thrown"));
    } catch (EkidenException error) {
      if (!error.kind().equals("ValueError")) wrong.add(error);
    }
    try {
      Registry.get("check.bad").call(new Object());
      wrong.add(new AssertionError("nothing was thrown"));
    } catch (EkidenException error) {
      if (!error.kind().equals("TypeError")) wrong.add(error);
    }
    Tensor small = (Tensor) ((List<?>) model.run(inputs)).get(0); // on the heap, and lent again
    List<?> twice = (List<?>) model.run(Map.of("x", small, "scale", inputs.get("scale")));
    if (((Tensor) twice.get(1)).toFloats()[0] != 40) wrong.add(new AssertionError("a heap result"));
    checkMemory(folder, inputs, model, wrong);
    Func left = model.module().get("main");
    model.close();
    model.close();
    expect("ValueError", () -> model.run(inputs), wrong);
    expect("ValueError", () -> model.module().names(), wrong);
    left.close();
    left.close();
    expect("ValueError", left::call, wrong);
    for (Throwable each : wrong) each.printStackTrace();
    return wrong.isEmpty();
  }

  /** Memory of callers is read while its arena is open alone, and constants are not written. */
  private static void checkMemory(
      Path folder, Map<String, Tensor> inputs, Model model, List<Throwable> wrong) {
    Tensor lent;
    try (Arena arena = Arena.ofShared()) {
      MemorySegment memory = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 1, 2, 3, 4);
      lent = new Tensor(DType.FLOAT32, new long[] {1, 4}, memory);
      Map<String, Tensor> given = Map.of("x", lent, "scale", inputs.get("scale"));
      if (((Tensor) ((List<?>) model.run(given)).get(1)).toFloats()[0] != 20) {
        wrong.add(new AssertionError("memory of an arena"));
      }
      Func closing = Func.of(_ -> {
        try {
          arena.close();
          return "closed during a call";
        } catch (IllegalStateException error) {
          return "held";
        }
      });
      if (!"held".equals(closing.call(lent))) wrong.add(new AssertionError("closed during a call"));
    }
    Tensor closed = lent;
    expect("ValueError", () -> model.run(Map.of("x", closed, "scale", inputs.get("scale"))), wrong);
    expect("ValueError", () -> model.module().get("main").call(List.of(closed)), wrong);
    try (Arena arena = Arena.ofConfined()) {
      Tensor confined = new Tensor(DType.FLOAT32, new long[] {1, 4}, arena.allocate(16, 64));
      Map<String, Tensor> given = Map.of("x", confined, "scale", inputs.get("scale"));
      Thread other = new Thread(() -> expect("ValueError", () -> model.run(given), wrong));
      other.start();
      other.join();
    } catch (InterruptedException error) {
      wrong.add(error);
    }
    try (Model constant = Model.load(folder.resolve("constant.eki"))) {
      for (Object each : (List<?>) constant.run(Map.of())) {
        Tensor result = (Tensor) each;
        if (!result.data().isReadOnly()) wrong.add(new AssertionError("a constant can be written"));
        try {
          result.data().setAtIndex(ValueLayout.JAVA_FLOAT, 0, 7);
          wrong.add(new AssertionError("a constant was written"));
        } catch (IllegalArgumentException | UnsupportedOperationException error) {
          // as it must be
        }
        expect("ValueError", () -> constant.runInto("main", Map.of(), List.of(result, result)), wrong);
      }
    }
  }

  /** What is closed, called all the same, is an error of Java. */
  private static void expect(String kind, Runnable body, List<Throwable> wrong) {
    try {
      body.run();
      wrong.add(new AssertionError("nothing was thrown"));
    } catch (EkidenException error) {
      if (!error.kind().equals(kind)) wrong.add(error);
    }
  }

  private static void runOften(Model model, Map<String, Tensor> inputs) {
    for (int i = 0; i < 200; i++) {
      Tensor sum = (Tensor) ((List<?>) model.run(inputs)).get(1);
      if (sum.toFloats()[0] != 20) throw new AssertionError("got " + sum.toFloats()[0]);
    }
  }
}
