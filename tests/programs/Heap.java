import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Fills its own heap with maps, lists and arrays, lets the collector work, and prints digests. Same bytes in every run. */
public final class Heap {
    private static long state = 88172645463325252L;

    private static long number() {
        state ^= state << 13;
        state ^= state >>> 7;
        state ^= state << 17;
        return state;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        Map<String, long[]> map = new HashMap<>();
        List<String> names = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String name = "name-" + Long.toHexString(number());
            map.put(name, new long[] {i, number(), number(), number()});
            names.add(name);
            if (i % 3 == 0) {
                map.remove(names.get((int) Math.floorMod(number(), (long) names.size())));
            }
        }
        long[] sums = new long[2];
        Thread[] threads = new Thread[2];
        for (int t = 0; t < threads.length; t++) {
            int index = t;
            threads[t] = new Thread(() -> {
                long sum = 0;
                for (int i = index; i < names.size(); i += 2) {
                    long[] row = map.get(names.get(i));
                    sum = sum * 31 + (row == null ? 7 : row[0] + row[1] - row[2] * row[3]);
                }
                sums[index] = sum;
            });
            threads[t].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Collections.sort(names);
        long order = 0;
        for (String name : names) {
            order = order * 131 + name.hashCode();
        }
        StringBuilder sample = new StringBuilder();
        for (int i = 0; i < names.size(); i += 50) {
            sample.append(names.get(i)).append('\n');
        }
        System.out.print(sample);
        System.out.println(sums[0] + " " + sums[1] + " " + order + " " + map.size());
    }
}
