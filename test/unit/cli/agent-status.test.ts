// How the CLI reads the snapshots of agents: with one token for all of them, which it asks the API server for.
import test from 'ava';
import { STATUS_AUDIENCE, STATUS_READER_ANNOTATION, STATUS_TOKEN_HEADER } from '../../../src/api/names.ts';
import { createStatusReader } from '../../../src/cli/cluster/agent-status.ts';
import type { Cluster, Got } from '../../../src/cli/cluster/api-client.ts';
import type { Pod } from '../../../src/cli/cluster/objects.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';

const agent = (name: string, annotations: Record<string, string> = {}) =>
  ({
    metadata: { name, namespace: 'system', annotations },
    spec: { containers: [] },
    status: { phase: 'Running' },
  }) as unknown as Pod;
const READER = { [STATUS_READER_ANNOTATION]: 'cotenant-status-reader' };

function clusterOf(token: Got<unknown>) {
  const asked: unknown[] = [];
  const cluster = {
    post: async (path: string, body: { spec: unknown }) => {
      asked.push([path, body.spec]);
      return token;
    },
    text: async (path: string, headers: unknown) => {
      asked.push([path, headers]);
      return { ok: true, value: JSON.stringify(exampleSnapshot) };
    },
  } as unknown as Cluster;
  return { read: createStatusReader(cluster), asked };
}

test('one token opens the status of all agents', async (t) => {
  const { read, asked } = clusterOf({ ok: true, value: { status: { token: 'made' } } });
  t.true((await Promise.all([read(agent('one', READER)), read(agent('two', READER))])).every(({ ok }) => ok));
  t.deepEqual(asked, [
    [
      '/api/v1/namespaces/system/serviceaccounts/cotenant-status-reader/token',
      { audiences: [STATUS_AUDIENCE], expirationSeconds: 600 },
    ],
    ...['one', 'two'].map((name) => [
      `/api/v1/namespaces/system/pods/${name}:9837/proxy/status.json`,
      { [STATUS_TOKEN_HEADER]: 'made' },
    ]),
  ]);
});

test('an agent whose status is open is sent no token', async (t) => {
  const { read, asked } = clusterOf({ ok: false, status: 403, message: 'no' });
  t.true((await read(agent('open'))).ok);
  t.deepEqual(asked, [['/api/v1/namespaces/system/pods/open:9837/proxy/status.json', {}]]);
});

test('without the right to a token the status is forbidden, and no agent is asked', async (t) => {
  const { read, asked } = clusterOf({ ok: false, status: 403, message: 'cannot create serviceaccounts/token' });
  const found = await read(agent('one', READER));
  t.deepEqual(found.ok ? undefined : found.error, {
    known: false,
    short: 'forbidden',
    why: 'no token for the status of agents: cannot create serviceaccounts/token',
  });
  t.is(asked.length, 1);
});
