// All boards, by the name of their file.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { cluster } from './cluster.ts';
import { container } from './container.ts';
import { health } from './health.ts';
import { CONFIGURATION, type Configuration } from './lib/configuration.ts';
import { nodeGpu } from './node-gpu.ts';

export function boards(configuration: Configuration = CONFIGURATION): ReadonlyMap<string, Dashboard> {
  return new Map([
    ['cluster', cluster()],
    ['node-gpu', nodeGpu(configuration)],
    ['container', container(configuration)],
    ['health', health(configuration)],
  ]);
}
