// Metrics of the process itself (CPU time, memory, descriptors, heap, event loop), under prom-client's names.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { collectProcessMetrics, Gauge, Registry } from './prom-client.ts';

export function selfMetrics(): Registry {
  const registry = new Registry();
  collectProcessMetrics(registry);
  eventLoopMetrics(registry);
  return registry;
}

/** For render.ts, which may run in another process. */
export const serializeMetrics = async (registry: Registry): Promise<string> =>
  JSON.stringify(await registry.getMetricsAsJSON());

const NS_PER_SECOND = 1e9;

/**
 * Duration of event loop iterations since the last page. Node 26.5 and newer measure the iterations that happen; older
 * versions add a timer every 10 ms, and measure its iterations too.
 */
function eventLoopMetrics(registry: Registry): void {
  const delay = monitorEventLoopDelay({ samplePerIteration: true });
  delay.enable();
  // Registered first, so that it sets the others before they are read.
  new Gauge({
    name: 'nodejs_eventloop_lag_seconds',
    help: 'Time that a due callback waited for the event loop, measured for this page.',
    registers: [registry],
    async collect() {
      if (delay.count > 0) for (const fill of fills) fill();
      delay.reset();
      const due = performance.now();
      await new Promise((resolve) => setImmediate(resolve));
      this.set((performance.now() - due) / 1000);
    },
  });
  const sinceLast = (name: string, statistic: string, read: () => number) => {
    const help = `${statistic} of the event loop iterations since the last page.`;
    const gauge = new Gauge({ name: `nodejs_eventloop_lag_${name}_seconds`, help, registers: [registry] });
    return () => gauge.set(read() / NS_PER_SECOND);
  };
  const fills = [
    sinceLast('max', 'Maximum', () => delay.max),
    sinceLast('mean', 'Mean', () => delay.mean),
    sinceLast('p99', '99th percentile', () => delay.percentile(99)),
  ];
}
