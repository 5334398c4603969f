// All boards, by the name of their file, from overview to detail.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { cluster } from './cluster.ts';
import { container } from './container.ts';
import { exporters } from './exporters.ts';
import { health } from './health.ts';
import { namespace } from './namespace.ts';
import { nodeGpu } from './node-gpu.ts';

export const BOARDS: ReadonlyMap<string, Dashboard> = new Map([
  ['cluster', cluster],
  ['node-gpu', nodeGpu],
  ['namespace', namespace],
  ['container', container],
  ['health', health],
  ['exporters', exporters],
]);
