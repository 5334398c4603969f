// What the tests of `why` explain: objects as a Kubernetes 1.36 wrote them (test/fixtures/cluster), and small changes
// of them.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { PodFacts } from '../../../src/cli/cluster/explanation.ts';
import type { Event, Node, Pod } from '../../../src/cli/cluster/objects.ts';

/** What is known, and the lines that follow. */
export type Case = readonly [name: string, of: PodFacts, lines: readonly string[]];

export const FOLDER = join(import.meta.dirname, '../../fixtures/cluster');
export const NOW = Date.parse('2026-11-21T22:10:00Z');
export const GPU = 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000';
export const STOP = `team/rogue/main exceeds its GPU memory grant: 3000 MiB of 1024 MiB on ${GPU}, 2900 MiB of it past the interposer; the agent stops it`;

type Recorded = { readonly pod: Pod; readonly events: readonly Event[]; readonly node: Node };

export const recorded = (name: string): Recorded =>
  JSON.parse(readFileSync(join(FOLDER, `1.36-${name}.json`), 'utf8')) as Recorded;
export const facts = (name: string, more: Partial<PodFacts> = {}): PodFacts => {
  const { pod, events, node } = recorded(name);
  const { namespace = '', name: podName } = pod.metadata;
  return { namespace, name: podName, pod, events, ...(node ? { node } : {}), notes: [], ...more };
};
export const withMetadata = (pod: Pod, more: Partial<Pod['metadata']>): Pod => ({
  ...pod,
  metadata: { ...pod.metadata, ...more },
});
export const notReady: Pod = {
  metadata: { name: 'cotenant-agent-x7k2p', namespace: 'cotenant-system' },
  spec: { nodeName: 'node-1', containers: [{ name: 'node' }] },
  status: {
    phase: 'Running',
    conditions: [
      {
        type: 'Ready',
        status: 'False',
        reason: 'ContainersNotReady',
        message: 'containers with unready status: [node]',
        lastTransitionTime: '2026-11-21T22:06:00Z',
      },
    ],
  },
};
export const ready: Pod = {
  ...notReady,
  status: { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] },
};
export const waiting = recorded('waiting-for-volume');
export const stopped = recorded('stopped');
export const granted = (what: string) => `  2026-11-21T22:05:12Z main was granted ${what}`;
