// The agent's device plugin, NRI plugin and resource publishing without the agent: runs in a node's namespaces, reads
// slots, GPUs and grants as lines of JSON, and prints what it hears as lines of JSON. Arguments: KUBECONFIG NODE.

import { readdirSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { KubeConfig } from '@kubernetes/client-node';
import { startDevicePlugin } from '../../../src/agent/kubelet/device-plugin/plugin.ts';
import type { Slots } from '../../../src/agent/kubelet/device-plugin/service.ts';
import { type NriContainer, startNri } from '../../../src/agent/kubelet/nri/plugin.ts';
import type { NodeGpus } from '../../../src/api/node-annotation.ts';
import type { GpusReading } from '../../../src/kube/node-gpus.ts';
import { startAdvertising } from '../../../src/kube/node-status.ts';
import { loggerTo } from '../../support/product/logger.ts';

/** One input line. */
export type Order = {
  readonly slots?: Slots;
  readonly gpus?: NodeGpus;
  /** `podUid/container` -> UUIDs of its GPUs. */
  readonly grants?: Readonly<Record<string, readonly string[]>>;
  /** ID of a container: asks whether any process runs in it. */
  readonly isRunning?: string;
};

/** One output line. */
export type FaceReport =
  | { readonly kind: 'done'; readonly isRunning?: boolean }
  | { readonly kind: 'problem'; readonly text: string }
  | { readonly kind: 'connected'; readonly connected: boolean }
  | { readonly kind: 'container'; readonly container: NriContainer; readonly isRunning: boolean }
  | { readonly kind: 'passed by'; readonly container: NriContainer }
  | { readonly kind: 'removed'; readonly containerId: string };

const isRunning = (containerId: string): boolean =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .some((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes(containerId);
      } catch {
        return false; // it went meanwhile
      }
    });

if (import.meta.main) {
  const [kubeconfig = '', nodeName = ''] = process.argv.slice(2);
  const tell = (line: FaceReport) => console.log(JSON.stringify(line));
  const onProblem = (text: string) => tell({ kind: 'problem', text });
  const config = new KubeConfig();
  config.loadFromFile(kubeconfig);
  let slots: Slots = { healthy: 0, unhealthy: 0 };
  let gpus: GpusReading | undefined;
  let grants: Order['grants'] = {};
  const log = loggerTo({ push: onProblem });
  const plugin = startDevicePlugin({ slots: () => slots, log });
  const advertising = startAdvertising({
    ...{ config, nodeName, onProblem },
    gpus: () => gpus,
    stateOf: () => ({ kind: 'unknown' }),
    withSlots: false,
  });
  const nri = startNri({
    gpusOf: (podUid, container) => grants?.[`${podUid}/${container}`],
    onContainer: (container) => tell({ kind: 'container', container, isRunning: isRunning(container.containerId) }),
    onMissed: (container) => tell({ kind: 'passed by', container }),
    onRemoved: (containerId) => tell({ kind: 'removed', containerId }),
    log,
  });
  let connected = false;
  const looking = setInterval(() => {
    if (nri.connected() === connected) return;
    connected = nri.connected();
    tell({ kind: 'connected', connected });
  }, 20);
  for await (const line of createInterface({ input: process.stdin })) {
    const order = JSON.parse(line) as Order;
    slots = order.slots ?? slots;
    gpus = order.gpus ? { ...order.gpus, complete: true, grants: [] } : gpus;
    grants = order.grants ?? grants;
    plugin.changed();
    advertising.changed();
    tell({ kind: 'done', ...(order.isRunning === undefined ? {} : { isRunning: isRunning(order.isRunning) }) });
  }
  clearInterval(looking);
  nri.close();
  await Promise.all([plugin.close(), advertising.close()]);
}
