// Creates pods at a rate, or all at once, over connections that it keeps, beside the API server in its namespaces: a test's
// own event loop and kubectl's proxy would take a good part of two processors. As a program: KUBECONFIG and what it creates,
// as JSON; a line on standard input ends it, and its standard output gets the JSON of what came of it.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Agent, request } from 'node:https';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import type { Namespaces } from '../bed/namespaces.ts';

export type Creation = {
  /** Creations a second. What was due and had to wait for `mostAtOnce` is made up for. Absent: without pauses. */
  readonly perSecond?: number;
  /** Without an answer. Each has a connection, which is open before the first creation. */
  readonly mostAtOnce: number;
  /** It ends by itself after so many; absent: only when it is ended. */
  readonly most?: number;
};

export type Created = {
  readonly asked: number;
  /** Answered with a pod that the webhook has patched. */
  readonly created: number;
  /** All other answers. */
  readonly refusals: readonly { readonly atMs: number; readonly status: number; readonly message: string }[];
  /** Creations begun per second. */
  readonly perSecond: number;
  readonly slowestMs: number;
};

const STEP_MS = 20;

/** Starts it inside. */
export function startCreator(namespaces: Namespaces, kubeconfig: string, creation: Creation) {
  const program = [process.execPath, import.meta.filename, kubeconfig, JSON.stringify(creation)];
  const child = namespaces.talk(program);
  const out = text(child.stdout);
  return {
    /** Of one that ends by itself. */
    created: async () => JSON.parse(await out) as Created,
    async end() {
      child.stdin.end('end\n');
      return JSON.parse(await out) as Created;
    },
  };
}

const podOf = (name: string) => ({
  metadata: { name },
  spec: {
    containers: [{ name: 'main', image: 'x', resources: { limits: { 'cotenant.io/gpu-memory': '2Gi' } } }],
  },
});

/** Asks over at most so many connections, which stay open. */
function clientOf(kubeconfig: string, connections: number) {
  const { clusters, users } = JSON.parse(readFileSync(kubeconfig, 'utf8')) as {
    clusters: [{ cluster: { server: string } }];
    users: [{ user: { token: string } }];
  };
  const { hostname: host, port } = new URL(clusters[0].cluster.server);
  const agent = new Agent({ keepAlive: true, maxSockets: connections, rejectUnauthorized: false });
  const authorization = `Bearer ${users[0].user.token}`;
  const ask = async (method: string, path: string, body = '') => {
    const headers = { authorization, 'content-type': 'application/json', 'content-length': body.length };
    const outgoing = request({ agent, host, port: port || 443, method, path, headers });
    outgoing.end(body);
    const [incoming] = await once(outgoing, 'response');
    return { status: incoming.statusCode as number, said: await text(incoming) };
  };
  return { ask, close: () => agent.destroy() };
}

async function create(kubeconfig: string, creation: Creation, isEnded: () => boolean): Promise<Created> {
  const { perSecond, mostAtOnce, most = Number.POSITIVE_INFINITY } = creation;
  const { ask, close } = clientOf(kubeconfig, mostAtOnce);
  await Promise.all(Array.from({ length: mostAtOnce }, () => ask('GET', '/version')));
  const refusals: Created['refusals'][number][] = [];
  let [created, atOnce, slowestMs] = [0, 0, 0];
  const begunMs = performance.now();
  const one = async (index: number): Promise<void> => {
    const atMs = performance.now() - begunMs;
    atOnce += 1;
    try {
      const body = JSON.stringify(podOf(`p${index}`));
      const { status, said } = await ask('POST', '/api/v1/namespaces/default/pods', body);
      const { message = '', spec } = JSON.parse(said) as { message?: string; spec?: { schedulerName?: string } };
      if (status === 201 && spec?.schedulerName === 'cotenant-scheduler') created += 1;
      else refusals.push({ atMs, status, message });
    } catch (error) {
      refusals.push({ atMs, status: 0, message: String(error) });
    }
    atOnce -= 1;
    slowestMs = Math.max(slowestMs, performance.now() - begunMs - atMs);
  };
  const all: Promise<void>[] = [];
  for (let step = 1; !isEnded() && all.length < most; step += 1) {
    const due = perSecond === undefined ? most : Math.min(most, (perSecond * (performance.now() - begunMs)) / 1000);
    while (all.length < due && atOnce < mostAtOnce) all.push(one(all.length));
    await delay(Math.max(0, begunMs + step * STEP_MS - performance.now()));
  }
  const rate = (1000 * all.length) / (performance.now() - begunMs);
  await Promise.all(all);
  close();
  return { asked: all.length, created, refusals, perSecond: rate, slowestMs };
}

if (process.argv[1] === import.meta.filename) {
  const [kubeconfig = '', creation = ''] = process.argv.slice(2);
  let isEnded = false;
  const lines = createInterface({ input: process.stdin }).on('line', () => {
    isEnded = true;
  });
  console.log(JSON.stringify(await create(kubeconfig, JSON.parse(creation) as Creation, () => isEnded)));
  lines.close();
}
