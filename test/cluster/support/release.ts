// The pods of the installed chart, and the metrics page of the node's agent.
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NAMESPACE } from '../bed/product.ts';
import type { Pod } from './pods.ts';

const METRICS_PORT = 9837;

export type Component = 'agent' | 'webhook' | 'scheduler';

async function allOf(bed: Bed, component: Component): Promise<readonly Pod[]> {
  const selector = encodeURIComponent(`app.kubernetes.io/component=${component}`);
  const list = await bed.api.get<{ items: Pod[] }>(`/api/v1/namespaces/${NAMESPACE}/pods?labelSelector=${selector}`);
  return list?.items ?? [];
}

/** Pods of a component that are not terminating. */
export const podsOf = async (bed: Bed, component: Component): Promise<readonly Pod[]> =>
  (await allOf(bed, component)).filter(({ metadata }) => metadata.deletionTimestamp === undefined);

/** Waits until no pod of a component is left: one that terminates still does its work. */
export async function untilNone(bed: Bed, component: Component): Promise<void> {
  const isNone = async () => (await allOf(bed, component)).length === 0 || undefined;
  await eventually(isNone, `no ${component} is left`);
}

/** The only pod of a component; throws if there are none or several. */
export async function podOfRelease(bed: Bed, component: Component): Promise<Pod> {
  const [pod, ...more] = await podsOf(bed, component);
  if (pod === undefined || more.length > 0) throw new Error(`${component}: ${more.length + (pod ? 1 : 0)} pods`);
  return pod;
}

/** The page that Prometheus would scrape; undefined while there is no answer. */
export async function agentPage(bed: Bed): Promise<string | undefined> {
  const [pod] = await podsOf(bed, 'agent');
  if (pod === undefined) return undefined;
  const path = `/api/v1/namespaces/${NAMESPACE}/pods/${pod.metadata.name}:${METRICS_PORT}/proxy/metrics`;
  const { status, body } = await bed.api.ask('GET', path);
  return status === 200 ? String(body) : undefined;
}
