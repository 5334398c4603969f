// Posts an example AdmissionReview to the running webhook, as an API server would: a pod that requests 3 units in the
// ACK dialect.
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { json } from 'node:stream/consumers';

const POD = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'inference', namespace: 'default' },
  spec: {
    containers: [{ name: 'main', image: 'example/inference:1', resources: { limits: { 'aliyun.com/gpu-mem': '3' } } }],
  },
};

export function exampleReview(uid: string): object {
  return {
    apiVersion: 'admission.k8s.io/v1',
    kind: 'AdmissionReview',
    request: {
      uid,
      kind: { group: '', version: 'v1', kind: 'Pod' },
      resource: { group: '', version: 'v1', resource: 'pods' },
      namespace: 'default',
      operation: 'CREATE',
      userInfo: { username: 'demo' },
      object: POD,
      oldObject: null,
      dryRun: true,
      options: { kind: 'CreateOptions', apiVersion: 'meta.k8s.io/v1' },
    },
  };
}

type Answer = { readonly response: { allowed: boolean; patch?: string; status?: { message?: string } } };
type Operation = { readonly op: string; readonly path: string };

/** Posts the example; the answer as lines of text. */
export async function reviewOnce(url: string, authority: string): Promise<readonly string[]> {
  const headers = { 'Content-Type': 'application/json' };
  const call = request(new URL('/mutate?timeout=5s', url), { method: 'POST', ca: authority, headers });
  call.end(JSON.stringify(exampleReview('705ab4f5-6393-11e8-b7cc-42010a800002')));
  const [answer] = (await once(call, 'response')) as [IncomingMessage];
  const { response } = (await json(answer)) as Answer;
  if (!response.allowed) return [`refused: ${response.status?.message ?? ''}`];
  const patch = JSON.parse(Buffer.from(response.patch ?? 'W10=', 'base64').toString()) as Operation[];
  const paths = patch.map((operation) => `${operation.op} ${operation.path}`);
  return paths.length > 6 ? [...paths.slice(0, 6), `and ${paths.length - 6} more operations`] : paths;
}
