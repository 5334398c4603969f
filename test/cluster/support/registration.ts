// The registrations of a webhook without the chart.
import type { Api } from '../bed/api.ts';

/** `webhook` of each of both paths: what differs from one for the creation of pods, such as how it is called. */
export async function register(api: Api, webhook: (path: 'mutate' | 'validate') => object): Promise<void> {
  for (const [kind, path] of [
    ['MutatingWebhookConfiguration', 'mutate'],
    ['ValidatingWebhookConfiguration', 'validate'],
  ] as const) {
    await api.must('POST', `/apis/admissionregistration.k8s.io/v1/${kind.toLowerCase()}s`, {
      kind,
      apiVersion: 'admissionregistration.k8s.io/v1',
      metadata: { name: 'cotenant' },
      webhooks: [
        {
          name: `${path}.cotenant.io`,
          rules: [{ apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['pods'] }],
          admissionReviewVersions: ['v1'],
          sideEffects: 'None',
          failurePolicy: 'Fail',
          ...webhook(path),
        },
      ],
    });
  }
}
