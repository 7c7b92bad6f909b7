package dev.ekiden;

import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Runs bindings/conformance.json: {@code java dev.ekiden.Conformance FOLDER}. */
@SuppressWarnings("unchecked")
public final class Conformance {
  private final Path folder;
  private final Map<String, Counted> things = new HashMap<>();
  private final Map<String, Model> models = new HashMap<>();

  private Conformance(Path folder) {
    this.folder = folder;
  }

  private static Func.Body callback(String name) {
    return switch (name) {
      case "double" -> args -> doubled(args.getFirst());
      case "echo" -> List::getFirst;
      case "sum" ->
          args -> Arrays.stream(((Tensor) args.getFirst()).toDoubles()).sum();
      case "apply" ->
          args -> ((Func) args.getFirst()).call(args.subList(1, args.size()).toArray());
      case "fail" ->
          _ -> {
            throw new EkidenException("ValueError", "told to fail");
          };
      default -> throw new IllegalStateException("no callback " + name);
    };
  }

  private static Object doubled(Object x) {
    return switch (x) {
      case Long number -> 2 * number;
      case Double number -> 2 * number;
      case String text -> text + text;
      default -> throw new EkidenException("TypeError", "double: one number or text expected");
    };
  }

  private static Tensor tensor(Map<String, Object> json) {
    DType dtype = DType.valueOf(((String) json.get("tensor")).toUpperCase(java.util.Locale.ROOT));
    double[] data = numbers(json.get("data"));
    long[] shape = Arrays.stream(numbers(json.get("shape"))).mapToLong(x -> (long) x).toArray();
    return switch (dtype) {
      case FLOAT32 -> {
        float[] floats = new float[data.length];
        for (int i = 0; i < data.length; i++) floats[i] = (float) data[i];
        yield Tensor.of(floats, shape);
      }
      case FLOAT64 -> Tensor.of(data, shape);
      case INT32 -> Tensor.of(Arrays.stream(data).mapToInt(x -> (int) x).toArray(), shape);
      case INT64 -> Tensor.of(Arrays.stream(data).mapToLong(x -> (long) x).toArray(), shape);
      default -> {
        byte[] bytes = new byte[data.length];
        for (int i = 0; i < data.length; i++) bytes[i] = (byte) (int) data[i];
        yield Tensor.of(dtype, bytes, shape);
      }
    };
  }

  private static double[] numbers(Object json) {
    return ((List<Object>) json).stream().mapToDouble(x -> (Double) x).toArray();
  }

  private static Object value(Object of) {
    Map<String, Object> json = (Map<String, Object>) of;
    if (json.containsKey("tensor")) return tensor(json);
    Map.Entry<String, Object> only = json.entrySet().iterator().next();
    return switch (only.getKey()) {
      case "none" -> null;
      case "int" -> ((Double) only.getValue()).longValue();
      case "array" -> values(only.getValue());
      case "callback" -> callback((String) only.getValue());
      default -> only.getValue();
    };
  }

  private static List<Object> values(Object json) {
    List<Object> made = new ArrayList<>();
    for (Object each : (List<Object>) json) made.add(value(each));
    return made;
  }

  private static boolean same(Object got, Object wanted) {
    if (wanted instanceof List<?> list) {
      if (!(got instanceof List<?> found) || found.size() != list.size()) return false;
      for (int i = 0; i < list.size(); i++) {
        if (!same(found.get(i), list.get(i))) return false;
      }
      return true;
    }
    if (!(wanted instanceof Tensor b)) return wanted == null ? got == null : wanted.equals(got);
    if (!(got instanceof Tensor a) || !a.toString().equals(b.toString())) return false;
    double[] x = a.toDoubles();
    double[] y = b.toDoubles();
    for (int i = 0; i < x.length; i++) {
      if (Math.abs(x[i] - y[i]) > 1e-6 * Math.max(1, Math.abs(y[i]))) return false;
    }
    return true;
  }

  private static Map<String, Tensor> inputs(Map<String, Object> step) {
    Map<String, Tensor> made = new LinkedHashMap<>();
    ((Map<String, Object>) step.get("inputs")).forEach((k, v) -> made.put(k, (Tensor) value(v)));
    return made;
  }

  private Object open(String path, String as) {
    Path file = folder.resolve(path);
    things.put(as, Module.load(file));
    if (path.endsWith(".eki")) models.put(as, Model.load(file));
    return null;
  }

  private static boolean overwritten(Func function, int size) {
    float[] elements = new float[size];
    for (int i = 0; i < size; i++) elements[i] = i;
    Tensor x = Tensor.of(elements, size);
    List<float[]> first = new ArrayList<>();
    List<Tensor> results = (List<Tensor>) (List<?>) (List<Object>) function.call(x);
    for (Tensor result : results) first.add(result.toFloats());
    boolean isRight = true;
    for (int i = 0; i < results.size(); i++) {
      Tensor result = results.get(i);
      isRight &= Arrays.equals(result.toFloats(), first.get(i));
      if (result.data().isReadOnly()) continue;
      for (int k = 0; k < first.get(i).length; k++) {
        result.data().setAtIndex(ValueLayout.JAVA_FLOAT, k, 9);
      }
    }
    results = (List<Tensor>) (List<?>) (List<Object>) function.call(x);
    for (int i = 0; i < results.size(); i++) {
      isRight &= Arrays.equals(results.get(i).toFloats(), first.get(i));
    }
    return isRight;
  }

  private Object run(Map<String, Object> step) {
    String of = (String) step.get("of");
    String name = (String) step.get("name");
    String field = (String) step.get("field");
    return switch ((String) step.get("op")) {
      case "open" -> open((String) step.get("path"), (String) step.get("as"));
      case "functions" -> ((Module) things.get(of)).names();
      case "inputs" -> models.get(of).inputs("main");
      case "call" -> {
        Func function = ((Module) things.get(of)).get((String) step.get("function"));
        yield function.call(values(step.get("args")));
      }
      case "run" -> models.get(of).run(inputs(step));
      case "run_into" -> {
        List<Tensor> outputs = (List<Tensor>) (List<?>) values(step.get("outputs"));
        models.get(of).runInto("main", inputs(step), outputs);
        yield outputs;
      }
      case "overwrite" -> {
        Func function = ((Module) things.get(of)).get("main");
        yield overwritten(function, ((Double) step.get("size")).intValue());
      }
      case "kernels" -> (long) models.get(of).profile("main", inputs(step)).kernels().size();
      case "threads" -> {
        models.get(of).numThreads(((Double) step.get("n")).longValue());
        yield models.get(of).numThreads();
      }
      case "device" -> {
        int[] device = ((Tensor) value(step.get("value"))).device();
        yield List.of((long) device[0], (long) device[1]);
      }
      case "global" -> Registry.get(name).call(values(step.get("args")));
      case "register" -> {
        Registry.register(name, callback((String) step.get("callback")));
        yield null;
      }
      case "remove" -> Registry.remove(name);
      case "define" -> {
        Map<String, Obj.Kind> fields = new LinkedHashMap<>();
        for (Object row : (List<Object>) step.get("fields")) {
          List<String> pair = (List<String>) row;
          String kind = pair.get(1).toUpperCase(java.util.Locale.ROOT);
          fields.put(pair.get(0), Obj.Kind.valueOf(kind));
        }
        Obj.define((String) step.get("type"), fields);
        yield null;
      }
      case "new" -> {
        Object[] values = values(step.get("values")).toArray();
        things.put((String) step.get("as"), Obj.create((String) step.get("type"), values));
        yield null;
      }
      case "type" -> ((Obj) things.get(of)).typeKey();
      case "fields" -> ((Obj) things.get(of)).fields();
      case "get" -> ((Obj) things.get(of)).get(field);
      case "set" -> {
        ((Obj) things.get(of)).set(field, value(step.get("value")));
        yield null;
      }
      case "equal" -> {
        Obj other = (Obj) things.get((String) step.get("b"));
        yield ((Obj) things.get((String) step.get("a"))).matches(other);
      }
      case "close" -> {
        things.get(of).close();
        yield null;
      }
      default -> throw new IllegalStateException("no step " + step.get("op"));
    };
  }

  private String judge(Map<String, Object> step) {
    Map<String, Object> fails = (Map<String, Object>) step.get("fails");
    try {
      Object got = run(step);
      boolean right = fails == null && (!step.containsKey("is") || same(got, value(step.get("is"))));
      return right ? "" : "gave " + got;
    } catch (EkidenException error) {
      boolean right =
          fails != null
              && error.kind().equals(fails.get("kind"))
              && error.getMessage().contains((String) fails.get("message"));
      return right ? "" : "threw " + error;
    }
  }

  /** Prints the number of steps; 1 where one went wrong. */
  public static void main(String[] args) throws IOException {
    Path folder = Path.of(args[0]);
    Object script = Json.parse(Files.readString(folder.resolve("conformance.json")));
    int steps = 0;
    boolean wrong = false;
    for (Object each : (List<Object>) ((Map<String, Object>) script).get("cases")) {
      Map<String, Object> one = (Map<String, Object>) each;
      Conformance runner = new Conformance(folder);
      for (Object step : (List<Object>) one.get("steps")) {
        double times = (Double) ((Map<String, Object>) step).getOrDefault("times", 1.0);
        String why = "";
        for (int i = 0; i < times && why.isEmpty(); i++) {
          why = runner.judge((Map<String, Object>) step);
        }
        steps++;
        if (why.isEmpty()) continue;
        System.out.println(one.get("name") + ": " + step + ": " + why);
        wrong = true;
      }
    }
    wrong |= !Check.passes(folder);
    System.out.println(steps + " steps");
    System.exit(wrong ? 1 : 0);
  }
}
