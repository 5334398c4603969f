// The parts of prom-client that are used, each from its own file: the whole of it brings HTTP and TLS clients for a gateway that
// nobody has here, once more in each thread.
import { createRequire } from 'node:module';
import type * as PromClient from 'prom-client';

const require = createRequire(import.meta.url);

export const Registry = require('prom-client/lib/registry.js') as typeof PromClient.Registry;
export type Registry = PromClient.Registry;
export const Gauge = require('prom-client/lib/gauge.js') as typeof PromClient.Gauge;
export type Gauge = PromClient.Gauge;
export const Counter = require('prom-client/lib/counter.js') as typeof PromClient.Counter;
export type Counter = PromClient.Counter;

/**
 * What is told of the process itself: processor, memory, descriptors, heap. The rest of prom-client's list is in nobody's boards, and
 * some of it has names that Prometheus' own linter refuses. Only the main thread tells of it: each is loaded when it is called.
 */
const OWN = [
  'processCpuTotal',
  'processStartTime',
  'osMemoryHeap',
  'processOpenFileDescriptors',
  'processMaxFileDescriptors',
  'heapSizeAndUsed',
] as const;

/** Those of prom-client's default metrics. For the event loop's it would wake the process a hundred times a second. */
export function collectProcessMetrics(register: Registry): void {
  for (const name of OWN) {
    const collect = require(`prom-client/lib/metrics/${name}.js`) as (register: Registry) => void;
    collect(register);
  }
}
