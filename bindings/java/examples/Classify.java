import dev.ekiden.Model;
import dev.ekiden.Tensor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Says what files contain: {@code java -cp ekiden.jar Classify.java FOLDER FILE ...}, where the folder
 * is what {@code python examples/python/classify.py prepare FOLDER} writes.
 */
public final class Classify {
  private static final int BLOCK = 4096;

  private static boolean isSpace(byte each) {
    return each == ' ' || (each >= 9 && each <= 13);
  }

  /** The first bytes of a file and its last ones, without the white space around it. */
  private static int[] features(byte[] data, int begin, int end, int padding) {
    int stop = Math.min(BLOCK, data.length);
    int first = 0;
    while (first < stop && isSpace(data[first])) first++;
    int start = Math.max(0, data.length - BLOCK);
    int last = data.length;
    while (last > start && isSpace(data[last - 1])) last--;
    int tail = Math.min(end, last - start);
    int[] row = new int[begin + end];
    Arrays.fill(row, padding);
    for (int i = 0; i < Math.min(begin, stop - first); i++) row[i] = data[first + i] & 0xff;
    for (int i = 0; i < tail; i++) row[row.length - tail + i] = data[last - tail + i] & 0xff;
    return row;
  }

  public static void main(String[] args) throws IOException {
    Path folder = Path.of(args[0]);
    List<String> lines = Files.readAllLines(folder.resolve("magika.txt"));
    int[] sizes = Arrays.stream(lines.getFirst().split(" ")).mapToInt(Integer::parseInt).toArray();
    try (Model model = Model.load(folder.resolve("magika.eki"))) {
      String input = model.inputs("main").getFirst();
      for (String name : Arrays.asList(args).subList(1, args.length)) {
        int[] row = features(Files.readAllBytes(Path.of(name)), sizes[0], sizes[1], sizes[2]);
        Tensor given = Tensor.of(row, 1, row.length);
        double[] scores = ((Tensor) model.run(Map.of(input, given))).toDoubles();
        int best = 0;
        for (int i = 0; i < scores.length; i++) best = scores[i] > scores[best] ? i : best;
        String said = String.format(Locale.ROOT, "%.1f", 100 * scores[best]);
        System.out.println(name + ": " + lines.get(1 + best) + " " + said + " %");
      }
    }
  }
}
