// Whether a label selector of Kubernetes selects a set of labels. Pure.
import type { V1LabelSelector } from '@kubernetes/client-node';

type Labels = Readonly<Record<string, string>>;

/** An empty selector selects everything. An operator that is not known selects nothing. */
export function selectsLabels({ matchLabels, matchExpressions }: V1LabelSelector, labels: Labels): boolean {
  return (
    Object.entries(matchLabels ?? {}).every(([key, value]) => labels[key] === value) &&
    (matchExpressions ?? []).every(({ key, operator, values = [] }) => {
      const value = Object.hasOwn(labels, key) ? labels[key] : undefined;
      if (operator === 'In') return value !== undefined && values.includes(value);
      // As Kubernetes has it, also where the label is absent.
      if (operator === 'NotIn') return value === undefined || !values.includes(value);
      if (operator === 'Exists') return value !== undefined;
      return operator === 'DoesNotExist' && value === undefined;
    })
  );
}
