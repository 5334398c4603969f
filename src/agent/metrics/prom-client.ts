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

/** Only the main thread tells of the process: it is loaded when it is called. */
export function collectDefaultMetrics(register: Registry): void {
  const collect = require('prom-client/lib/defaultMetrics.js') as typeof PromClient.collectDefaultMetrics;
  collect({ register });
}
