// All boards, by the name of their file.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { cluster } from './cluster.ts';
import { container } from './container.ts';
import { health } from './health.ts';
import { nodeGpu } from './node-gpu.ts';

export const BOARDS: ReadonlyMap<string, Dashboard> = new Map([
  ['cluster', cluster],
  ['node-gpu', nodeGpu],
  ['container', container],
  ['health', health],
]);
