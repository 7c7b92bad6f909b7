package dev.ekiden;

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
