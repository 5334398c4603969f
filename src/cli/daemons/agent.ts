// `cotenant agent`: the node's daemon in the foreground.

import { NO_SLICES, uuidsOfSlices } from '../../agent/attribution/resource-slices.ts';
import { type AgentConfiguration, DEFAULTS } from '../../agent/config.ts';
import type { ActionRecord } from '../../agent/enforcement/action-record.ts';
import { reduceMemory } from '../../agent/os/memory-tuning.ts';
import { type AgentCluster, startAgent } from '../../agent/start.ts';
import type { Logger } from '../../common/logger.ts';
import type { PodEvent } from '../../kube/event-correlator.ts';
import type { HolderStates } from '../../kube/grant-holders.ts';
import type { ContainerName } from '../../kube/pod-informer.ts';
import { type Command, text, texts, UsageError } from '../lib/command.ts';
import { LOG_OPTIONS, loggerOf } from '../lib/log-options.ts';
import { runUntilSignal } from '../lib/run-until-signal.ts';
import { checkPageFiles, configurationOf, makeStateFolder, SETTING_OPTIONS } from './agent-settings.ts';

export const agent: Command = {
  name: 'agent',
  summary: "The node's daemon: samples the driver, publishes metrics, and stops containers that exceed their grant.",
  usage: '[--config FILE] [--set PATH=VALUE ...]',
  options: { ...SETTING_OPTIONS, ...LOG_OPTIONS },
  notes: `Settings and their defaults:\n${JSON.stringify(DEFAULTS, null, 2)}`,
  async run(parsed) {
    reduceMemory();
    const configuration = configurationOf(text(parsed, 'config'), texts(parsed, 'set'));
    const log = loggerOf(parsed, 'agent', configuration.log);
    const start = async () => {
      makeStateFolder(configuration, log.warn);
      await checkPageFiles(configuration);
      const { cluster, close: closeCluster } = await connectCluster(configuration, log);
      const started = await startAgent(configuration, { log, cluster });
      const close = async () => {
        await closeCluster();
        await started.close();
        log.flush();
      };
      return { ...started, close };
    };
    const { host, enforcement, page } = configuration;
    const scheme = page.certFile === '' ? 'http' : 'https';
    return runUntilSignal(start, ({ port, socket }) => {
      const where =
        port === undefined ? `snapshots on ${page.socket}, no port` : `metrics on ${scheme}://${host}:${port}/metrics`;
      log.info(`${where}, grants on ${socket}, mode ${enforcement.mode}`);
    });
  },
};

/** Reasons of Events: exceeded, and back within the grant, which is no warning. */
const EVENTS = {
  memory: ['GPUMemoryQuotaExceeded', 'GPUMemoryQuotaRestored'],
  compute: ['GPUComputeQuotaExceeded', 'GPUComputeQuotaRestored'],
} as const;

function kindOf({ action, resource }: ActionRecord): Pick<PodEvent, 'reason' | 'type'> {
  const [exceeded, restored] = EVENTS[resource];
  return action === 'released' || action === 'open-gate'
    ? { reason: restored, type: 'Normal' }
    : { reason: exceeded, type: 'Warning' };
}

/** Events of pods for actions on them. Processes without a pod get none. */
export function eventsOf(records: readonly ActionRecord[], nodeName: string): readonly PodEvent[] {
  return records
    .filter(({ podUid }) => podUid !== '')
    .map((record) => ({
      namespace: record.namespace,
      pod: record.pod,
      podUid: record.podUid,
      container: record.container,
      ...kindOf(record),
      action: record.action,
      message: record.message,
      atMs: record.atMs,
      by: { component: 'agent', instance: nodeName },
    }));
}

type Connected = { readonly cluster: AgentCluster | undefined; close(): Promise<void> };

/** Watches the cluster that the settings name; undefined: the agent runs without a cluster. */
async function connectCluster(configuration: AgentConfiguration, log: Logger): Promise<Connected> {
  const { enabled, nodeName, podResources } = configuration.kubernetes;
  const spreadMs = configuration.reconnectSeconds * 1000;
  if (!enabled) return { cluster: undefined, close: async () => {} };
  if (nodeName === '')
    throw new UsageError('kubernetes.nodeName is missing: the name of the node that this agent runs on');
  // Not needed without a cluster.
  const { loadApiConfig } = await import('../../kube/config.ts');
  const { createEventWriter } = await import('../../kube/events.ts');
  const { startPodInformer } = await import('../../kube/pod-informer.ts');
  const { startAdvertising } = await import('../../kube/node-status.ts');
  const { createHolderStates } = await import('../../kube/grant-holders.ts');
  const { describeApiError } = await import('../../kube/api-error.ts');
  const { createEvictCall } = await import('../../kube/eviction.ts');
  const { createTokenReviewer } = await import('../../kube/token-review.ts');
  const { watchResourceSlices } = await import('../../kube/resource-slices.ts');
  const config = await loadApiConfig();
  const pods = startPodInformer(config, nodeName, log.component('pod-informer').warn, spreadMs);
  let uuids = NO_SLICES;
  const onSlices = (slices: Parameters<typeof uuidsOfSlices>[0]) => {
    uuids = uuidsOfSlices(slices, nodeName);
  };
  const slices =
    podResources === ''
      ? undefined
      : watchResourceSlices({
          ...{ config, nodeName, onSlices, onProblem: log.component('resource-slices').warn },
          spreadMs,
        });
  const report = createEventWriter(config, log.component('events').warn);
  const by = { component: 'agent', instance: nodeName } as const;
  let holders: HolderStates | undefined;
  const cluster: AgentCluster = {
    pods,
    connected: pods.connected,
    podGoneSinceMs: (podUid) => holders?.goneSinceMs(podUid),
    problemOf: describeApiError,
    review: createTokenReviewer(config),
    evict: createEvictCall(config),
    nameOf(containerId, podUid) {
      const found = pods.of(containerId);
      if (found || podUid === undefined) return found ?? NO_NAME;
      const { namespace = '', name = '' } = pods.cached(podUid)?.metadata ?? {};
      return { namespace, pod: name, podUid, container: '' };
    },
    isOver: (namespace, pod) => /^(Succeeded|Failed)$/.test(pods.named(namespace, pod)?.status?.phase ?? ''),
    deviceUuids: () => uuids,
    onPod: (listener) => pods.listen(({ metadata }) => listener(metadata?.uid ?? '', metadata?.annotations)),
    advertise(gpus, withSlots, onLabels) {
      const { warn } = log.component('node-status');
      const states = createHolderStates({
        pods,
        onChange: () => advertising.changed(),
        onGone: ({ namespace, name }) =>
          warn('the pod is gone from the API server and still holds its grant here, which counts as taken', {
            pod: `${namespace}/${name}`,
          }),
      });
      holders = states;
      const { stateOf } = states;
      const advertising = startAdvertising({
        ...{ config, nodeName, gpus, stateOf, withSlots, onLabels, spreadMs },
        onProblem: warn,
      });
      return advertising;
    },
    reportActions(records) {
      for (const event of eventsOf(records, nodeName)) void report(event);
    },
    reportRefused: (change) => void report({ ...change, type: 'Warning', atMs: Date.now(), by }),
    reportMissing({ namespace, pod, podUid, container }, message) {
      const of = { namespace, pod, podUid, container };
      void report({ ...of, reason: 'GPUsMissing', type: 'Warning', message, atMs: Date.now(), by });
    },
  };
  const close = async () => {
    await Promise.all([pods.close(), slices?.close()]);
  };
  return { cluster, close };
}

const NO_NAME: ContainerName = { namespace: '', pod: '', podUid: '', container: '' };
