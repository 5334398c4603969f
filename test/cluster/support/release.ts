// The pods of the installed chart, and the metrics page of the node's agent.
import type { Bed } from '../bed/bed.ts';
import { NAMESPACE } from '../bed/product.ts';
import type { Pod } from './pods.ts';

const METRICS_PORT = 9837;

export type Component = 'agent' | 'webhook' | 'scheduler';

/** Pods of a component that are not terminating. */
export async function podsOf(bed: Bed, component: Component): Promise<readonly Pod[]> {
  const selector = encodeURIComponent(`app.kubernetes.io/component=${component}`);
  const list = await bed.api.get<{ items: Pod[] }>(`/api/v1/namespaces/${NAMESPACE}/pods?labelSelector=${selector}`);
  return (list?.items ?? []).filter(({ metadata }) => metadata.deletionTimestamp === undefined);
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
