// Writes Events about pods: what the agent or the scheduler did to them. event-correlator.ts decides which are written.
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { CoreV1Event } from '@kubernetes/client-node';
import { ACTION_ANNOTATION } from '../api/names.ts';
import { createBackoff } from '../common/backoff.ts';
import { EVENT_QUOTA, remember } from '../common/quota.ts';
import { describeApiError, retryAfterMsOf, statusOf } from './api-error.ts';
import { callApi, pathOf } from './call.ts';
import type { ApiConfig } from './config.ts';
import { createEventCorrelator, type EventWrite, type PodEvent } from './event-correlator.ts';

const REPORTERS = { agent: 'cotenant.io/agent', scheduler: 'cotenant.io/scheduler' } as const;
/** The API server refuses longer messages. */
const LONGEST_MESSAGE = 1024;
/** About a minute of pauses: a restart of the API server. Some MiB of Events wait at most. */
const RETRY = { firstMs: 1000, mostMs: 30_000, tries: 7, mostPending: 1000 };

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

/** No answer, or one that another try may not get. */
const mayPass = (error: unknown): boolean => {
  const status = statusOf(error);
  return typeof status !== 'number' || status === 429 || status >= 500;
};

/**
 * An Event that cannot be written is dropped after some tries, of a minute or more: what it is about must not wait for
 * the promise, which is never rejected. An Event of one series waits for those before it.
 */
export function createEventWriter(
  config: ApiConfig,
  onProblem: (text: string) => void,
  retry = RETRY,
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
    try {
      await callApi(config, { method: 'POST', path: pathOf(namespace, 'events'), body });
    } catch (error) {
      // A try that got no answer had created it.
      if (statusOf(error) !== 409) throw error;
    }
  };
  let pending = 0;
  const dropped = ({ event }: EventWrite, why: string) =>
    onProblem(`cannot write the Event for ${event.namespace}/${event.pod}: ${why}`);
  const tryToWrite = async (next: EventWrite, name: string): Promise<void> => {
    const backoff = createBackoff(retry);
    for (let left = retry.tries; ; ) {
      try {
        return await write(next, name);
      } catch (error) {
        left -= 1;
        if (left === 0 || !mayPass(error)) return dropped(next, describeApiError(error));
        await delay(backoff.nextMs(retryAfterMsOf(error)), undefined, { ref: false });
      }
    }
  };
  return async (event) => {
    const next = correlate(event);
    if (!next) return;
    if (pending === retry.mostPending) return dropped(next, `${pending} others wait for the API server`);
    pending += 1;
    const before = written.get(next.key);
    const name = before?.name ?? `${event.pod.slice(0, 200)}.cotenant-${randomBytes(6).toString('hex')}`;
    const done = (before?.done ?? Promise.resolve()).then(() => tryToWrite(next, name));
    remember(written, next.key, { name, done }, EVENT_QUOTA.mostKeys);
    await done;
    pending -= 1;
  };
}
