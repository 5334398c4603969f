import java.io.File;
import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import sun.misc.Signal;

/**
 * Everything that a JVM does with signals, while threads take and give back memory of the GPU: null pointers and stack
 * overflows that compiled code finds by SIGSEGV, SIGFPE of divisions, SIGBUS of a truncated mapping, safepoints under
 * pressure on the heap, handlers of the program's own, threads that are interrupted. Then it fills the GPU, prints one
 * JSON object and waits for the end of its input. Knows nothing of Cotenant.
 */
public final class Busy {
    private static final long BLOCK = 64L << 20;
    private static final AtomicBoolean stop = new AtomicBoolean();
    private static final AtomicLong nulls = new AtomicLong();
    private static final AtomicLong overflows = new AtomicLong();
    private static final AtomicLong divisions = new AtomicLong();
    private static final AtomicLong buses = new AtomicLong();
    private static final AtomicLong interrupts = new AtomicLong();
    private static final AtomicLong wrong = new AtomicLong();
    private static final List<Throwable> failures = new ArrayList<>();

    private static final class Box {
        int value;
    }

    private static int valueOf(Box box) {
        return box.value;
    }

    private static int divide(int a, int b) {
        return a / b;
    }

    private static int deep(int level) {
        return deep(level + 1) + 1;
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Thread started(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable failure) {
                synchronized (failures) {
                    failures.add(failure);
                }
            }
        });
        thread.start();
        return thread;
    }

    private static void allocateAndFree(int rounds) {
        if (Driver.enter() != 0) throw new IllegalStateException("cuCtxSetCurrent");
        for (int round = 0; round < rounds; round++) {
            long at = Driver.allocate(2L << 20);
            if (at < 0) throw new IllegalStateException("cuMemAlloc: " + -at);
            if (Driver.echo(at, round) != round) wrong.incrementAndGet();
            if (Driver.release(at) != 0) throw new IllegalStateException("cuMemFree");
        }
    }

    private static void trap() throws Exception {
        Box box = new Box();
        while (!stop.get()) {
            for (int i = 0; i < 20_000; i++) {
                box.value += valueOf(box) + divide(i, 3);
            }
            try {
                valueOf(null);
            } catch (NullPointerException expected) {
                nulls.incrementAndGet();
            }
            try {
                divide(1, 0);
            } catch (ArithmeticException expected) {
                divisions.incrementAndGet();
            }
            try {
                deep(0);
            } catch (StackOverflowError expected) {
                overflows.incrementAndGet();
            }
        }
    }

    /** Reading what a file no longer has is a SIGBUS, which becomes an error of the reader's thread, there or soon after. */
    private static void truncate(Path folder) throws Exception {
        File file = folder.resolve("mapped").toFile();
        byte[] into = new byte[1 << 12];
        while (!stop.get()) {
            try (RandomAccessFile opened = new RandomAccessFile(file, "rw")) {
                opened.setLength(1 << 16);
                MappedByteBuffer mapped = opened.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, 1 << 16);
                opened.setLength(0);
                mapped.get(into);
                Thread.sleep(5);
            } catch (InternalError expected) {
                buses.incrementAndGet();
            }
        }
    }

    private static void litter() {
        List<byte[]> kept = new ArrayList<>();
        while (!stop.get()) {
            kept.add(new byte[1 << 16]);
            if (kept.size() > 200) kept.clear();
            if (Math.random() < 0.001) System.gc();
        }
    }

    private static void sleepUntilInterrupted() {
        while (!stop.get()) {
            try {
                Thread.sleep(1000);
            } catch (InterruptedException expected) {
                interrupts.incrementAndGet();
            }
        }
    }

    public static void main(String[] words) throws Exception {
        AtomicLong caught = new AtomicLong();
        List<String> own = List.of("WINCH", "URG", "IO", "HUP");
        for (String name : own) Signal.handle(new Signal(name), signal -> caught.incrementAndGet());
        int result = Driver.start();
        if (result != 0 || Driver.enter() != 0) throw new IllegalStateException("the driver answers " + result);
        long total = Driver.total();
        long free = Driver.free();

        List<Thread> background = new ArrayList<>();
        for (int i = 0; i < 2; i++) background.add(started(Busy::trap));
        background.add(started(() -> truncate(Path.of(words[0]))));
        background.add(started(Busy::litter));
        Thread sleeper = started(Busy::sleepUntilInterrupted);
        background.add(sleeper);
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < 8; i++) workers.add(started(() -> allocateAndFree(Integer.parseInt(words[1]))));
        long raised = 0;
        for (Thread worker : workers) {
            while (worker.isAlive()) {
                Signal.raise(new Signal(own.get((int) (raised++ % own.size()))));
                sleeper.interrupt();
                worker.join(2);
            }
        }
        long until = System.nanoTime() + 20_000_000_000L;
        while ((buses.get() == 0 || nulls.get() == 0 || caught.get() == 0) && System.nanoTime() < until) Thread.sleep(5);
        stop.set(true);
        sleeper.interrupt();
        for (Thread thread : background) thread.join();

        long idle = Driver.free();
        List<Long> blocks = new ArrayList<>();
        long last;
        while ((last = Driver.allocate(BLOCK)) > 0) blocks.add(last);
        long full = Driver.free();
        Driver.release(blocks.get(0));
        long again = Driver.allocate(BLOCK);
        StringBuilder signals = new StringBuilder();
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.matches("Sig(Cgt|Ign|Blk):.*")) signals.append(line.replaceAll("\\s+", " ")).append(' ');
        }
        for (Throwable failure : failures) failure.printStackTrace();
        System.out.printf(
            "{\"total\":%d,\"free\":%d,\"idle\":%d,\"full\":%d,\"blocks\":%d,\"refusal\":%d,\"again\":%d,"
                + "\"nulls\":%d,\"overflows\":%d,\"divisions\":%d,\"buses\":%d,\"interrupts\":%d,\"caught\":%d,"
                + "\"wrong\":%d,\"failures\":%d,\"signals\":\"%s\"}%n",
            total, free, idle, full, blocks.size(), -last, again > 0 ? 0 : -again,
            nulls.get(), overflows.get(), divisions.get(), buses.get(), interrupts.get(), caught.get(),
            wrong.get(), failures.size(), signals.toString().trim());
        System.out.flush();
        while (System.in.read() >= 0) {
        }
    }
}
