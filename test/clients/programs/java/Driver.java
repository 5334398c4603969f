/** The entry points of driver.c: results are the driver's, negative where a number is expected. */
final class Driver {
    private Driver() {}

    static native int start();

    static native int enter();

    static native long free();

    static native long total();

    static native long allocate(long bytes);

    static native int release(long address);

    static native long echo(long address, long value);

    static {
        System.load(System.getProperty("driver"));
    }
}
