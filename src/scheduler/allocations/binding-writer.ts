// Writes one Binding, node and grant in one call, and finds out what became of it. A write without an answer may still
// be carried out: it counts as pending until the API server's timeout.
import { setTimeout as delay } from 'node:timers/promises';
import type { V1Binding, V1Pod } from '@kubernetes/client-node';
import { type ContainerGrant, formatPodGrant } from '../../api/grant-annotation.ts';
import { GRANT_ANNOTATION, memoryAnnotation, uuidsAnnotation } from '../../api/names.ts';
import { createBackoff } from '../../common/backoff.ts';
import type { Logger } from '../../common/logger.ts';
import { MIB } from '../../common/quantity.ts';
import { describeApiError, retryAfterMsOf, statusOf, unlessMissing } from '../../kube/api-error.ts';
import { callApi, pathOf } from '../../kube/call.ts';
import type { ApiConfig } from '../../kube/config.ts';

export type BindingRequest = {
  readonly podName: string;
  readonly podNamespace: string;
  readonly podUid: string;
  readonly node: string;
};

/** `unknown`: it was not known yet when `closed` was aborted. */
export type WriteResult =
  | { readonly kind: 'written' }
  | { readonly kind: 'not-written'; readonly because: string }
  | { readonly kind: 'unknown' };

export type BindingWriter = {
  /** Resolves when it is known, which takes up to `landsMs`. */
  write(request: BindingRequest, body: V1Binding): Promise<WriteResult>;
  readPod(request: BindingRequest): Promise<V1Pod | undefined>;
};

type WriterParts = {
  readonly config: ApiConfig;
  /** So long after its start a write is no longer carried out. */
  readonly landsMs: number;
  readonly closed: AbortSignal;
  readonly logger: Logger;
};

/** Status codes after which nothing was written. */
const NOT_WRITTEN = [400, 401, 403, 404, 405, 413, 422, 429];
const CONFLICT = 409;
/** Between two looks at the pod. */
const PAUSE_MS = { firstMs: 250, mostMs: 5000 };

export function createBindingWriter({ config, landsMs, closed, logger }: WriterParts): BindingWriter {
  const readPod = ({ podName: name, podNamespace: namespace }: BindingRequest): Promise<V1Pod | undefined> =>
    unlessMissing(callApi<V1Pod>(config, { method: 'GET', path: pathOf(namespace, 'pods', name) }));

  const findBinding = async (request: BindingRequest, body: V1Binding): Promise<'ours' | 'unbound' | 'other'> => {
    const pod = await readPod(request);
    if (pod?.metadata?.uid !== request.podUid) return 'other';
    if (!pod.spec?.nodeName) return 'unbound';
    const same = pod.metadata.annotations?.[GRANT_ANNOTATION] === body.metadata?.annotations?.[GRANT_ANNOTATION];
    return same && pod.spec.nodeName === request.node ? 'ours' : 'other';
  };

  return {
    readPod,
    async write(request, body) {
      const { podName: name, podNamespace: namespace } = request;
      const begunMs = performance.now();
      let because: string;
      let answered: boolean;
      try {
        const path = `${pathOf(namespace, 'pods', name)}/binding`;
        // The API server itself gives up after 60 s.
        await callApi(config, { method: 'POST', path, body, withinMs: landsMs });
        return { kind: 'written' };
      } catch (error) {
        because = `the binding failed: ${describeApiError(error)}`;
        if (NOT_WRITTEN.some((status) => status === statusOf(error)) || wasNeverSent(error))
          return { kind: 'not-written', because };
        // The pod is bound already: by this binding, or by another scheduler.
        answered = statusOf(error) === CONFLICT;
      }
      const backoff = createBackoff(PAUSE_MS);
      while (!closed.aborted) {
        let pauseMs = 0;
        const over = answered || performance.now() - begunMs >= landsMs;
        try {
          const found = await findBinding(request, body);
          if (found === 'ours') return { kind: 'written' };
          if (found === 'other' || over) return { kind: 'not-written', because };
        } catch (problem) {
          pauseMs = retryAfterMsOf(problem);
          logger.warn(`cannot read whether the pod was bound: ${describeApiError(problem)}`, {
            pod: `${namespace}/${name}`,
          });
        }
        await delay(backoff.nextMs(pauseMs), undefined, { signal: closed, ref: false }).catch(() => undefined);
      }
      return { kind: 'unknown' };
    },
  };
}

/** No connection was made. */
function wasNeverSent(error: unknown): boolean {
  const cause = (error as { cause?: unknown }).cause;
  const causes = cause instanceof AggregateError ? cause.errors : [cause];
  return causes.every((one) => {
    const { syscall, code } = (one ?? {}) as NodeJS.ErrnoException;
    return syscall === 'connect' || syscall === 'getaddrinfo' || code === 'UND_ERR_CONNECT_TIMEOUT';
  });
}

/** Node and grant in one write: the API server puts a Binding's annotations on the pod. */
export function buildBinding(
  { podName, podNamespace, podUid, node }: BindingRequest,
  epoch: number,
  containers: readonly ContainerGrant[],
  /** Containers of which a variable has the memory. */
  sized: readonly string[] = [],
): V1Binding {
  const memory = containers
    .filter(({ name }) => sized.includes(name))
    .map(({ name, gpus }) => [
      memoryAnnotation(name),
      String(Math.floor(gpus.reduce((sum, { memoryBytes }) => sum + memoryBytes, 0) / MIB)),
    ]);
  const uuids = containers.map(({ name, gpus }) => [
    uuidsAnnotation(name),
    gpus.map(({ gpuUuid }) => gpuUuid).join(','),
  ]);
  const annotations = {
    [GRANT_ANNOTATION]: formatPodGrant({ epoch, containers }),
    ...Object.fromEntries([...uuids, ...memory]),
  };
  return {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name: podName, namespace: podNamespace, uid: podUid, annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: node },
  };
}
