// A real API server alone: what it says to the pods that the webhook makes of golden cases and of public manifests, in dry
// runs; and what follows from its 429.
import type { ExecutionContext } from 'ava';
import { type JsonObject, objectAt } from '../../src/common/json.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD_MS } from '../support/services/helm.ts';
import { ALLOWED, podOf, rows } from '../unit/docs/shapes.ts';
import { REVIEWS, switchedOn } from '../unit/webhook/golden-reviews.ts';
import { answerOf, configured, creation } from '../unit/webhook/reviews.ts';
import type { Api } from './bed/api.ts';
import { startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { checkBusy } from './support/busy.ts';

const tools = bedTools(console.log, false);
const PODS = '/api/v1/namespaces/default/pods?dryRun=All';

/** Pods of the golden reviews and of the public shapes, before the webhook and after it. */
function patchedPods(): readonly (readonly [name: string, before: JsonObject, after: JsonObject])[] {
  const golden = Object.entries(REVIEWS).flatMap(([name, body]) =>
    name.includes('-update-') ? [] : [[name, body, switchedOn(name)] as const],
  );
  const shapes = rows.map((row) => {
    const rules = { dialects: row.dialects.split(','), ...ALLOWED };
    return [`${row.dialects} ${row.limits} ${row.more}`, creation(podOf(row)), configured({ rules })] as const;
  });
  return [...golden, ...shapes].flatMap(([name, body, configuration]) => {
    const { outcome, pod } = answerOf(body, configuration);
    return outcome === 'patched' ? [[name, objectAt(objectAt(body, 'request'), 'object'), pod] as const] : [];
  });
}

/** What every pod has and these cases do not write. */
function whole(pod: JsonObject): object {
  const { metadata, spec } = pod as { metadata?: object; spec: Record<string, object[]> };
  const withImages = ['containers', 'initContainers'].flatMap((list) =>
    spec[list] === undefined ? [] : [[list, spec[list].map((one) => ({ image: 'x', ...one }))]],
  );
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { ...metadata, name: 'p', namespace: 'default' },
    spec: { ...spec, ...Object.fromEntries(withImages) },
  };
}

testUnless(tools.ok ? undefined : tools.reason)(
  'an API server takes what the webhook makes, and answers 429 while it is busy',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!tools.ok) return;
    // The administrator is served all the same.
    const server = await startLoneApiServer(t, tools, [
      ...['--enable-priority-and-fairness=false', '--max-mutating-requests-inflight=1'],
    ]);
    await checkDryRuns(t, server.api);
    await checkBusy(t, server);
  },
);

/** A pod is refused after the webhook only for what it was refused for before. */
async function checkDryRuns(t: ExecutionContext, api: Api): Promise<void> {
  const made = await api.ask('POST', '/api/v1/namespaces/default/serviceaccounts', { metadata: { name: 'default' } });
  t.is(made.status, 201, JSON.stringify(made.body));
  const refusalOf = async (pod: JsonObject) => {
    const { status, body } = await api.ask('POST', PODS, whole(pod));
    // The webhook moves variables within their list.
    const { message = String(status) } = body as { message?: string };
    return status === 201 ? undefined : message.replaceAll(/\[\d+\]/g, '[]');
  };
  const pods = patchedPods();
  t.true(pods.length >= 220, String(pods.length));
  let refused = 0;
  for (const [name, before, after] of pods) {
    const refusal = await refusalOf(after);
    if (refusal === undefined) continue;
    refused += 1;
    t.is(refusal, (await refusalOf(before)) ?? 'nothing', name);
  }
  // Classes that do not exist here, an annotation that is no text, a file of a volume that is not in the pod.
  t.true(refused <= 6, String(refused));
}
