// Posts an example AdmissionReview to the running webhook, as an API server would: a pod that requests 3 units in the
// ACK dialect.
import { request } from 'node:https';

export type Review = { readonly lines: readonly string[] };

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

type Operation = { readonly op: string; readonly path: string };

/** Posts the example; the answer as lines of text. */
export async function reviewOnce(url: string, authority: string): Promise<Review> {
  const body = JSON.stringify(exampleReview('705ab4f5-6393-11e8-b7cc-42010a800002'));
  const answer = await new Promise<string>((resolve, reject) => {
    const call = request(
      new URL('/mutate?timeout=5s', url),
      {
        method: 'POST',
        ca: authority,
        headers: { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) },
      },
      (response) => {
        const parts: Buffer[] = [];
        response.on('data', (part: Buffer) => parts.push(part));
        response.on('end', () => resolve(Buffer.concat(parts).toString()));
      },
    );
    call.on('error', reject);
    call.end(body);
  });
  const { response } = JSON.parse(answer) as {
    response: { allowed: boolean; patch?: string; status?: { message?: string } };
  };
  if (!response.allowed) return { lines: [`refused: ${response.status?.message ?? ''}`] };
  const patch = JSON.parse(Buffer.from(response.patch ?? 'W10=', 'base64').toString()) as Operation[];
  const paths = patch.map((operation) => `${operation.op} ${operation.path}`);
  const shown = paths.slice(0, 6);
  return {
    lines: paths.length > shown.length ? [...shown, `and ${paths.length - shown.length} more operations`] : shown,
  };
}
