// Writes Events about pods: what the agent or the scheduler did to them. event-correlator.ts decides which are written.
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { CoreV1Event } from '@kubernetes/client-node';
import { ACTION_ANNOTATION } from '../api/names.ts';
import { EVENT_QUOTA, remember } from '../common/quota.ts';
import { describeApiError, retryAfterMsOf, statusOf } from './api-error.ts';
import { callApi, pathOf } from './call.ts';
import type { ApiConfig } from './config.ts';
import { createEventCorrelator, type EventWrite, type PodEvent } from './event-correlator.ts';

const REPORTERS = { agent: 'cotenant.io/agent', scheduler: 'cotenant.io/scheduler' } as const;
/** The API server refuses longer messages. */
const LONGEST_MESSAGE = 1024;

/** `name`: of the Event, the same for all of its series. */
export function buildEvent(
  event: PodEvent,
  { name, count, firstMs }: Pick<EventWrite, 'count' | 'firstMs'> & { readonly name: string },
): CoreV1Event {
  return {
    metadata: {
      name,
      namespace: event.namespace,
      ...(event.action !== undefined && { annotations: { [ACTION_ANNOTATION]: event.action } }),
    },
    involvedObject: {
      apiVersion: 'v1',
      kind: 'Pod',
      namespace: event.namespace,
      name: event.pod,
      uid: event.podUid,
      ...(event.container !== undefined && { fieldPath: `spec.containers{${event.container}}` }),
    },
    reason: event.reason,
    message: event.message.slice(0, LONGEST_MESSAGE),
    type: event.type,
    count,
    firstTimestamp: new Date(firstMs),
    lastTimestamp: new Date(event.atMs),
    source: { component: `cotenant-${event.by.component}`, host: event.by.instance },
    reportingComponent: REPORTERS[event.by.component],
    reportingInstance: event.by.instance,
  };
}

/**
 * An Event that cannot be written is dropped: the action that it is about goes on. It is tried once more where the API
 * server asks for a pause.
 */
export function createEventWriter(
  config: ApiConfig,
  onProblem: (text: string) => void,
): (event: PodEvent) => Promise<void> {
  const correlate = createEventCorrelator();
  /** By series: the Event's name, and its last write, which the next one waits for. */
  const written = new Map<string, { readonly name: string; readonly done: Promise<void> }>();

  const write = async (next: EventWrite, name: string): Promise<void> => {
    const { namespace } = next.event;
    const body = buildEvent(next.event, { ...next, name });
    if (next.count > 1) {
      const { count, message, lastTimestamp } = body;
      try {
        const path = pathOf(namespace, 'events', name);
        await callApi(config, { method: 'PATCH', path, patch: 'merge', body: { count, message, lastTimestamp } });
        return;
      } catch (error) {
        // Events are deleted after an hour, and the first write may have failed.
        if (statusOf(error) !== 404) throw error;
      }
    }
    await callApi(config, { method: 'POST', path: pathOf(namespace, 'events'), body });
  };
  const tryToWrite = async (next: EventWrite, name: string): Promise<void> => {
    try {
      await write(next, name).catch(async (error: unknown) => {
        const pauseMs = retryAfterMsOf(error);
        if (pauseMs === 0) throw error;
        await delay(pauseMs * (1 + Math.random() / 2), undefined, { ref: false });
        await write(next, name);
      });
    } catch (error) {
      onProblem(`cannot write the Event for ${next.event.namespace}/${next.event.pod}: ${describeApiError(error)}`);
    }
  };
  return async (event) => {
    const next = correlate(event);
    if (!next) return;
    const before = written.get(next.key);
    const name = before?.name ?? `${event.pod.slice(0, 200)}.cotenant-${randomBytes(6).toString('hex')}`;
    const done = (before?.done ?? Promise.resolve()).then(() => tryToWrite(next, name));
    remember(written, next.key, { name, done }, EVENT_QUOTA.mostKeys);
    await done;
  };
}
