// The size of a group that a PodGroup of Kubernetes describes (scheduling.k8s.io; feature gate GenericWorkload), read when
// a pod that names one is filtered or bound; and which pods of a namespace are there to be bound.
import { REQUEST_ANNOTATION } from '../../api/names.ts';
import { field, textAt } from '../../common/json.ts';
import type { Logger } from '../../common/logger.ts';
import { err, ok, type Result } from '../../common/result.ts';
import { describeApiError, unlessMissing } from '../../kube/api-error.ts';
import { ANSWER_MS, callApi, getStream, pathOf } from '../../kube/call.ts';
import type { ApiConfig } from '../../kube/config.ts';
import { createItemReader } from '../../kube/json-stream.ts';
import { isGangSize } from '../../placement/gang.ts';
import type { PodAspects } from '../decisions/filter-and-score.ts';

export type PodGroups = {
  /** With the size of the pod's group, where an object has it. An error: the pod cannot be placed yet. */
  complete(aspects: PodAspects): Promise<Result<PodAspects>>;
};

/** In Kubernetes 1.37, and in 1.36; the fields that are read are the same. 1.35 has another API, which is not read. */
const VERSIONS = ['v1beta1', 'v1alpha2'];
/** `minCount` may change since 1.37, and an object of the same name can be created anew. */
const KEPT_MS = 60_000;
const MOST_KEPT = 1000;
/** Of a list, in objects. */
const PAGE = '500';

type Known = { readonly size: unknown; readonly atMs: number };

export function createPodGroups(config: ApiConfig, now: () => number = () => performance.now()): PodGroups {
  /** By namespace and name, oldest first. Groups without a policy for gangs have no size. */
  const known = new Map<string, Known>();

  const read = async (key: string): Promise<Known | undefined> => {
    const [namespace = '', name = ''] = key.split('/');
    for (const version of VERSIONS) {
      const path = pathOf(namespace, 'podgroups', name, `/apis/scheduling.k8s.io/${version}`);
      const group = await unlessMissing(callApi<unknown>(config, { method: 'GET', path }));
      const policy = field(field(group, 'spec'), 'schedulingPolicy');
      if (textAt(field(group, 'metadata'), 'name') !== undefined)
        return { size: field(field(policy, 'gang'), 'minCount'), atMs: now() };
    }
    return undefined;
  };

  return {
    async complete(aspects) {
      const { gang, ...others } = aspects;
      if (!gang || gang.size !== undefined) return ok(aspects);
      const { key } = gang;
      let one = known.get(key);
      if (!one || now() - one.atMs > KEPT_MS) {
        try {
          one = await read(key);
        } catch (error) {
          return err(`PodGroup ${key} of the pod's schedulingGroup cannot be read: ${describeApiError(error)}`);
        }
        if (!one) return err(`PodGroup ${key} of the pod's schedulingGroup does not exist`);
        known.delete(key);
        known.set(key, one);
        for (const oldest of known.keys()) if (known.size > MOST_KEPT) known.delete(oldest);
      }
      return ok(isGangSize(one.size) ? { ...others, gang: { key, size: one.size } } : others);
    },
  };
}

/**
 * Reads UIDs of a namespace's pods that ask for shares and are neither bound nor being deleted; undefined: it cannot, or
 * not in time. Keeps the UIDs alone, however many pods there are.
 */
export const unboundPodsOf =
  (config: ApiConfig, logger: Logger, withinMs = ANSWER_MS) =>
  async (namespace: string): Promise<ReadonlySet<string> | undefined> => {
    const there = new Set<string>();
    const late = AbortSignal.timeout(withinMs);
    let from: string | undefined;
    try {
      do {
        const query = { fieldSelector: 'spec.nodeName=', limit: PAGE, ...(from !== undefined && { continue: from }) };
        const reader = createItemReader((pod) => {
          const metadata = field(pod, 'metadata');
          if (field(metadata, 'deletionTimestamp') === undefined) there.add(textAt(metadata, 'uid') ?? '');
        }, REQUEST_ANNOTATION);
        for await (const piece of await getStream(config, pathOf(namespace, 'pods'), query, late)) reader.push(piece);
        from = textAt(field(reader.end(), 'metadata'), 'continue') || undefined;
      } while (from !== undefined);
      return there;
    } catch (error) {
      logger.warn(`the pods of a group in namespace ${namespace} cannot be listed: ${describeApiError(error)}`);
      return undefined;
    }
  };
