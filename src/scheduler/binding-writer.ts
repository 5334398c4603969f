// One Binding on its way: node and grant in one write, and what became of it. Owns finding that out: a write without an answer
// may still be carried out, so nothing is taken for unwritten before it cannot happen any more.
import { setTimeout as delay } from 'node:timers/promises';
import { CoreV1Api, type KubeConfig, type V1Binding, type V1Pod } from '@kubernetes/client-node';
import { type ContainerGrant, formatPodGrant } from '../api/grant-annotation.ts';
import { GRANT_ANNOTATION, uuidsAnnotation } from '../api/names.ts';
import { problemOf } from '../kube/api-error.ts';
import { clientOf } from '../kube/client.ts';

export type BindingRequest = {
  readonly podName: string;
  readonly podNamespace: string;
  readonly podUid: string;
  readonly node: string;
};

/** `unknown`: it was not found out until `closed`. */
export type Fate =
  | { readonly kind: 'written' }
  | { readonly kind: 'unwritten'; readonly because: string }
  | { readonly kind: 'unknown' };

export type BindingWriter = {
  /** Resolves when it is known, which takes up to `landsMs`. */
  write(request: BindingRequest, body: V1Binding): Promise<Fate>;
  readPod(request: BindingRequest): Promise<V1Pod | undefined>;
};

export type WriterParts = {
  readonly config: KubeConfig;
  /** So long after its beginning a write cannot happen any more. */
  readonly landsMs: number;
  readonly closed: AbortSignal;
  readonly log: (line: string) => void;
};

/** Answers that say that nothing was written. */
const REFUSALS = [400, 401, 403, 404, 405, 413, 422, 429];
const CONFLICT = 409;
/** Between the times that the pod is asked for. */
const PAUSE_MS = { first: 250, most: 5000 };

export function createBindingWriter({ config, landsMs, closed, log }: WriterParts): BindingWriter {
  // The API server gives a request up after 60 s by itself.
  const poster = clientOf(config, CoreV1Api, landsMs);
  const reader = clientOf(config, CoreV1Api);

  const readPod = async ({ podName: name, podNamespace: namespace }: BindingRequest): Promise<V1Pod | undefined> => {
    try {
      return await reader.readNamespacedPod({ namespace, name });
    } catch (error) {
      if ((error as { code?: unknown }).code === 404) return undefined;
      throw error;
    }
  };

  const find = async (request: BindingRequest, body: V1Binding): Promise<'ours' | 'unbound' | 'not ours'> => {
    const pod = await readPod(request);
    if (pod?.metadata?.uid !== request.podUid) return 'not ours';
    if (!pod.spec?.nodeName) return 'unbound';
    const same = pod.metadata.annotations?.[GRANT_ANNOTATION] === body.metadata?.annotations?.[GRANT_ANNOTATION];
    return same && pod.spec.nodeName === request.node ? 'ours' : 'not ours';
  };

  return {
    readPod,
    async write(request, body) {
      const { podName: name, podNamespace: namespace } = request;
      const begunMs = performance.now();
      let because: string;
      let answered: boolean;
      try {
        await poster.createNamespacedPodBinding({ name, namespace, body });
        return { kind: 'written' };
      } catch (error) {
        const { code } = error as { code?: unknown };
        because = `the binding was not taken: ${problemOf(error)}`;
        if (REFUSALS.some((refusal) => refusal === code) || wasNeverSent(error)) return { kind: 'unwritten', because };
        // The echo of our own, or of somebody else's.
        answered = code === CONFLICT;
      }
      for (let pauseMs = PAUSE_MS.first; !closed.aborted; pauseMs = Math.min(2 * pauseMs, PAUSE_MS.most)) {
        const over = answered || performance.now() - begunMs >= landsMs;
        try {
          const found = await find(request, body);
          if (found === 'ours') return { kind: 'written' };
          if (found === 'not ours' || over) return { kind: 'unwritten', because };
        } catch (problem) {
          log(`whether pod ${namespace}/${name} was bound is not known yet: ${problemOf(problem)}`);
        }
        await delay(pauseMs, undefined, { signal: closed, ref: false }).catch(() => undefined);
      }
      return { kind: 'unknown' };
    },
  };
}

/** No connection came about. */
function wasNeverSent(error: unknown): boolean {
  const cause = (error as { cause?: unknown }).cause;
  const causes = cause instanceof AggregateError ? cause.errors : [cause];
  return causes.every((one) => {
    const { syscall, code } = (one ?? {}) as NodeJS.ErrnoException;
    return syscall === 'connect' || syscall === 'getaddrinfo' || code === 'UND_ERR_CONNECT_TIMEOUT';
  });
}

/** Node and grant in one write: the API server puts a Binding's annotations on the pod. */
export function bindingOf(
  { podName, podNamespace, podUid, node }: BindingRequest,
  epoch: number,
  containers: readonly ContainerGrant[],
): V1Binding {
  const uuids = containers.map(({ name, gpus }) => [
    uuidsAnnotation(name),
    gpus.map(({ gpuUuid }) => gpuUuid).join(','),
  ]);
  const annotations = { [GRANT_ANNOTATION]: formatPodGrant({ epoch, containers }), ...Object.fromEntries(uuids) };
  return {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name: podName, namespace: podNamespace, uid: podUid, annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: node },
  };
}
