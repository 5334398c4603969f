// The parts of prom-client that the daemons use, each from its own file: the package's entry also loads the HTTP and
// TLS clients of the Pushgateway, in every thread.
import { createRequire } from 'node:module';
import type * as PromClient from 'prom-client';

const require = createRequire(import.meta.url);

export const Registry = require('prom-client/lib/registry.js') as typeof PromClient.Registry;
export type Registry<T extends PromClient.RegistryContentType = PromClient.PrometheusContentType> =
  PromClient.Registry<T>;
export const Gauge = require('prom-client/lib/gauge.js') as typeof PromClient.Gauge;
export type Gauge = PromClient.Gauge;
export const Counter = require('prom-client/lib/counter.js') as typeof PromClient.Counter;
export type Counter = PromClient.Counter;
export const Histogram = require('prom-client/lib/histogram.js') as typeof PromClient.Histogram;

/**
 * The default metrics that are served. The others are in no dashboard, and promtool refuses some of their names. Loaded
 * when they are asked for: the worker thread has none.
 */
const DEFAULT_METRICS = [
  'processCpuTotal',
  'processStartTime',
  'osMemoryHeap',
  'processOpenFileDescriptors',
  'processMaxFileDescriptors',
  'heapSizeAndUsed',
] as const;

/** Without prom-client's metric of the event loop, which wakes the process a hundred times a second. */
export function collectProcessMetrics(register: Registry): void {
  for (const name of DEFAULT_METRICS) {
    const collect = require(`prom-client/lib/metrics/${name}.js`) as (register: Registry) => void;
    collect(register);
  }
}
