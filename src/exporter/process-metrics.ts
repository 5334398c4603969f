// The process about itself, under names that are prom-client's own and common to all Node programs.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { collectProcessMetrics, Gauge, Registry } from './prom-client.ts';

export function selfMetrics(): Registry {
  const registry = new Registry();
  collectProcessMetrics(registry);
  eventLoopMetrics(registry);
  return registry;
}

const NS_PER_SECOND = 1e9;

/**
 * How long turns of the event loop took since the last page. Node 26.5 and newer look at the turns that there are; an older one
 * has a timer look every 10 ms, and counts those with them.
 */
function eventLoopMetrics(registry: Registry): void {
  const delay = monitorEventLoopDelay({ samplePerIteration: true });
  delay.enable();
  // Registered first, so that it fills the others before they are read.
  new Gauge({
    name: 'nodejs_eventloop_lag_seconds',
    help: 'What a callback that was due waited for the event loop, when the page was made.',
    registers: [registry],
    async collect() {
      if (delay.count > 0) for (const fill of fills) fill();
      delay.reset();
      const due = performance.now();
      await new Promise((resolve) => setImmediate(resolve));
      this.set((performance.now() - due) / 1000);
    },
  });
  const sinceLast = (name: string, what: string, read: () => number) => {
    const help = `${what} of the turns of the event loop since the last page.`;
    const gauge = new Gauge({ name: `nodejs_eventloop_lag_${name}_seconds`, help, registers: [registry] });
    return () => gauge.set(read() / NS_PER_SECOND);
  };
  const fills = [
    sinceLast('max', 'The longest', () => delay.max),
    sinceLast('mean', 'The mean', () => delay.mean),
    sinceLast('p99', 'The 99th percentile', () => delay.percentile(99)),
  ];
}
