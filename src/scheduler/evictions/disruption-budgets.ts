// How many more evictions each PodDisruptionBudget allows, and which budgets a pod has. Kept by a watch; read when pods
// are chosen for preemption.
import type { V1LabelSelector, V1PodDisruptionBudget } from '@kubernetes/client-node';
import type { ApiConfig } from '../../kube/config.ts';
import { selectsLabels } from '../../kube/label-selector.ts';
import { listAndWatch } from '../../kube/list-watch.ts';

type LabeledPod = { readonly namespace: string; readonly labels: Readonly<Record<string, string>> };

export type DisruptionBudgets = {
  /** Keys of the budgets that count an eviction of this pod. */
  of(pod: LabeledPod): readonly string[];
  /** By key. */
  readonly allowed: ReadonlyMap<string, number>;
  /** Until then no pod may be evicted. */
  readonly areKnown: boolean;
};

type Budget = {
  readonly key: string;
  readonly namespace: string;
  readonly selector: V1LabelSelector | undefined;
  readonly allowed: number;
};

function readBudget({ metadata, spec, status }: V1PodDisruptionBudget): Budget {
  const { namespace = '', name = '' } = metadata ?? {};
  const key = `${namespace}/${name}`;
  // A budget that its controller has not judged yet allows nothing, as the API server's eviction has it.
  const isCurrent = (status?.observedGeneration ?? 0) >= (metadata?.generation ?? 0);
  return { key, namespace, selector: spec?.selector, allowed: isCurrent ? (status?.disruptionsAllowed ?? 0) : 0 };
}

export function budgetsOf(objects: Iterable<V1PodDisruptionBudget>): DisruptionBudgets {
  return lookUp(new Map([...objects].map(readBudget).map((one) => [one.key, one])), () => true);
}

function lookUp(budgets: ReadonlyMap<string, Budget>, areKnown: () => boolean): DisruptionBudgets {
  return {
    get areKnown() {
      return areKnown();
    },
    of: ({ namespace, labels }) =>
      [...budgets.values()]
        .filter((one) => one.namespace === namespace && one.selector && selectsLabels(one.selector, labels))
        .map(({ key }) => key),
    get allowed() {
      return new Map([...budgets].map(([key, { allowed }]) => [key, allowed]));
    },
  };
}

export function watchDisruptionBudgets(config: ApiConfig, onProblem: (text: string) => void) {
  const budgets = new Map<string, Budget>();
  let areKnown = false;
  const watch = listAndWatch(config, {
    path: '/apis/policy/v1/poddisruptionbudgets',
    keep: readBudget,
    onList(items) {
      areKnown = true;
      budgets.clear();
      for (const one of items) budgets.set(one.key, one);
    },
    onChange: (one) => void budgets.set(one.key, one),
    onGone: ({ key }) => void budgets.delete(key),
    onProblem,
  });
  return { budgets: lookUp(budgets, () => areKnown), close: watch.close };
}
