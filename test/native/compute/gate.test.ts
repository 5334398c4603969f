// Compute shares with real processes: the arbiter's process, the interposer's gate, and the simulated driver in real
// time. A share is the time for which kernels ran on the simulated node (test/support/native/shares.ts).
import { randomBytes } from 'node:crypto';
import { closeSync, openSync, readSync, truncateSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { type Arbiter, startArbiter, type Tenant } from '../../support/native/arbiter.ts';
import { type Client, readyClient, startClient } from '../../support/native/client.ts';
import { eventually, type SimulatedNode, startNode, temporaryFolder } from '../../support/native/node.ts';
import {
  hold as holdShares,
  isBusy,
  ranMs as ran,
  sharesOf as shares,
  untilQuiet,
  windowOf,
} from '../../support/native/shares.ts';
import { type GrantFiles, MIB, makeGrant } from '../../support/product/grant.ts';

/** Allowed points above a share. */
const ABOVE = 2;
/** Offset in a ledger of 64 slots and one GPU (native/shared-memory/lease_page.h). */
const COMPUTE_AT = 65536;
const REPORTS_AT = COMPUTE_AT + 8192;
const ROWS_BYTES = 64 + 64 * 64;

const INVALID_CONTEXT = 201;

const WINDOW_MS = 1000;

const pidsOf = (clients: readonly Client[]) => clients.map(({ pid }) => pid);
const sharesOf = (node: SimulatedNode, clients: readonly Client[], ms?: number) => shares(node, pidsOf(clients), ms);
const ranMs = (node: SimulatedNode, client: Client) => ran(node, client.pid);
const hold = (
  t: ExecutionContext,
  node: SimulatedNode,
  clients: readonly Client[],
  percents: readonly number[],
  above = ABOVE,
  lends = false,
) => holdShares(t, node, pidsOf(clients), percents, { above, lends });

type Bench = {
  readonly node: SimulatedNode;
  readonly arbiter: Arbiter;
  readonly clients: readonly Client[];
  readonly grants: readonly GrantFiles[];
  readonly tenants: readonly Tenant[];
};

/** A client for each share, on one GPU. */
async function bench(t: ExecutionContext, ...percents: readonly number[]): Promise<Bench> {
  const node = await startNode(t, '--gpu', 't4');
  const arbiter = startArbiter(t);
  const grants = percents.map((coresPercent) => makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent }]));
  const tenants = grants.map((grant, index) => ({
    id: `tenant-${index}`,
    grant,
    gpus: [{ gpu: 0, percent: percents[index] ?? 0 }],
  }));
  await arbiter.plan('fixed', tenants);
  const clients = await Promise.all(grants.map(({ cuda }) => readyClient(t, node, { preload: cuda })));
  return { node, arbiter, clients, grants, tenants };
}

/** Longer than any test: it ends with the client. */
const start = (client: Client | undefined, form = 'async', us = 500): void => {
  client?.ask(`load ${form} 600000 ${us}`).catch(() => {});
};

test.serial('a container keeps its whole share after its process is killed at work', async (t) => {
  const { node, clients, grants } = await bench(t, 30);
  let [client] = clients;
  for (let turn = 0; turn < 3; turn++) {
    start(client, 'async', 200_000);
    const before = client ? ranMs(node, client) : 0;
    await eventually(() => (client && ranMs(node, client) > before + 20) || undefined, 'a long kernel runs');
    await client?.kill();
    client = await readyClient(t, node, { preload: grants[0]?.cuda ?? '' });
  }
  start(client);
  const last = client ? [client] : [];
  // Between its processes the container saved credit, a quantum at most: the first window has that too.
  await sharesOf(node, last);
  await hold(t, node, last, [30]);
});

const FORMS = ['async', 'graph', 'graph-ptsz', 'ptsz', 'ex', 'ex-ptsz', 'cooperative', 'cooperative-ptsz', 'streams'];
for (const forms of [FORMS.slice(0, 3), FORMS.slice(3, 6), FORMS.slice(6)]) {
  test.serial(`25 % is 25 % in every form of launching: ${forms.join(', ')}`, async (t) => {
    const node = await startNode(t, ...forms.flatMap(() => ['--gpu', 't4']));
    const arbiter = startArbiter(t);
    const grants = forms.map((_, gpu) => makeGrant(t, node, [{ gpu, memoryBytes: 512 * MIB, coresPercent: 25 }]));
    await arbiter.plan(
      'fixed',
      grants.map((grant, gpu) => ({ id: `tenant-${gpu}`, grant, gpus: [{ gpu, percent: 25 }] })),
    );
    const clients = await Promise.all(grants.map(({ cuda }) => readyClient(t, node, { preload: cuda })));
    for (const [index, client] of clients.entries()) start(client, forms[index]);
    await hold(
      t,
      node,
      clients,
      forms.map(() => 25),
    );
  });
}

test.serial('a program that synchronizes after each launch is charged for its GPU time', async (t) => {
  const { node, arbiter, clients } = await bench(t, 25);
  start(clients[0], 'sync');
  await sharesOf(node, clients);
  await untilQuiet(t, async () => {
    const before = await arbiter.until(() => true, 'an account');
    const from = performance.now();
    const window = await windowOf(node, pidsOf(clients), 2 * WINDOW_MS);
    const after = await arbiter.until(() => true, 'a later account');
    const elapsed = performance.now() - from;
    const grown = (what: 'chargedNs' | 'throttledNs') =>
      ((after.pages[0]?.gpus[0]?.[what] ?? 0) - (before.pages[0]?.gpus[0]?.[what] ?? 0)) / 1e4 / elapsed;
    const [share = 100] = window.shares;
    t.true(share <= 25 + ABOVE, `${share} % of the GPU`);
    t.true(grown('chargedNs') <= 25 + ABOVE, `charged ${grown('chargedNs')} %`);
    t.true(grown('chargedNs') >= share, `charged ${grown('chargedNs')} % for ${share} %`);
    if (!isBusy(window)) t.true(grown('throttledNs') > 50, `it waits for most of the time: ${grown('throttledNs')} %`);
    return window;
  });
});

for (const [percents, lengths] of [
  [
    [25, 75],
    [500, 500],
  ],
  [
    [30, 70],
    [50, 5000],
  ],
  [
    [30, 70],
    [20_000, 200],
  ],
  [
    [50, 50],
    [200, 2000],
  ],
] as const) {
  const kernels = lengths.map((us) => `${us} us`).join(' and ');
  test.serial(`shares of ${percents.join(' and ')} % hold with kernels of ${kernels}`, async (t) => {
    const { node, clients } = await bench(t, ...percents);
    for (const [index, client] of clients.entries()) start(client, 'async', lengths[index]);
    // A turn of long kernels may lie in either of two windows.
    await hold(t, node, clients, percents, ABOVE + (2 * Math.max(...lengths)) / 1e4);
  });
}

for (const percents of [[2], [2, 98], [2, 49, 49]]) {
  test.serial(
    `a share of 2 % holds, ${percents.length === 1 ? 'alone' : `beside ${percents.slice(1).join(' and ')} %`}`,
    async (t) => {
      const { node, clients } = await bench(t, ...percents);
      for (const client of clients) start(client);
      // A turn of 10 ms may lie in either of two windows.
      await hold(t, node, clients, percents, 1);
    },
  );
}

test.serial('weights hold, and idle shares are lent where nothing caps', async (t) => {
  const { node, arbiter, clients, tenants } = await bench(t, 0, 0, 0);
  const atWork = clients.slice(0, 2);
  await arbiter.plan(
    'weighted',
    tenants.map((tenant, index) => ({ ...tenant, gpus: [{ gpu: 0, weight: [1, 3, 30][index] ?? 0 }] })),
  );
  for (const client of atWork) start(client);
  await hold(t, node, atWork, [25, 75], ABOVE, true);
  await arbiter.plan('preemptive', tenants);
  await hold(t, node, atWork, [50, 50], ABOVE, true);
  await arbiter.plan(
    'soft',
    tenants.map((tenant) => ({ ...tenant, gpus: [{ gpu: 0, percent: 30 }] })),
  );
  await clients[1]?.kill();
  const lent = await eventually(async () => {
    const [share = 0] = await sharesOf(node, clients.slice(0, 1));
    return share > 80 ? share : undefined;
  }, 'more than its 30 %');
  t.true(lent <= 100 + ABOVE, `${lent} % of a GPU`);
});

for (const us of [200, 500, 2000]) {
  test.serial(`beside a high priority with a cap the rest is used, with kernels of ${us} us`, async (t) => {
    const { node, arbiter, clients, tenants } = await bench(t, 40, 60);
    const [first, second] = tenants;
    if (!first || !second) throw new Error('no tenants');
    await arbiter.plan('fixed', [{ ...first, gpus: [{ gpu: 0, percent: 40, highCapPercent: 40 }] }, second]);
    for (const client of clients) start(client, 'async', us);
    // Work whose end is reported late counts as running beside the other's.
    await holdShares(t, node, pidsOf(clients), [40, 60], { above: ABOVE, lends: true, missing: 0.1 });
  });
}

test.serial('without an arbiter each container uses its own credit; shares return with one', async (t) => {
  const { node, arbiter, clients, tenants } = await bench(t, 20, 40);
  for (const client of clients) start(client);
  await sharesOf(node, clients);
  await arbiter.kill();
  const lows: string[] = [];
  const look = async () => {
    const window = await windowOf(node, pidsOf(clients));
    for (const [index, percent] of [20, 40].entries()) {
      const share = window.shares[index] ?? 100;
      t.true(share <= percent + 5, `${share} of ${percent} %: no cap is exceeded by more than 5 points`);
      if (share < percent / 2 && !isBusy(window)) lows.push(`${share} of ${percent} %`);
    }
    return window;
  };
  await untilQuiet(t, look, { count: 3 });
  t.true(lows.length < 3, `no client stands still: ${lows.join(', ')}`);
  await startArbiter(t).plan('fixed', tenants);
  await sharesOf(node, clients);
  await hold(t, node, clients, [20, 40]);
});

test.serial('restarts of the arbiter under load delay no container', async (t) => {
  const { node, arbiter, clients, tenants } = await bench(t, 30, 60);
  for (const client of clients) start(client);
  await sharesOf(node, clients);
  let current = arbiter;
  let over = false;
  const restarting = (async () => {
    while (!over) {
      await current.kill();
      current = startArbiter(t);
      await current.plan('fixed', tenants);
      await delay(200);
    }
  })();
  await hold(t, node, clients, [30, 60], 5);
  over = true;
  await restarting;
});

test.serial('a tenant that overwrites its half of the page takes no share of others', async (t) => {
  const { node, arbiter, clients, grants } = await bench(t, 25, 60);
  for (const client of clients) start(client);
  await sharesOf(node, clients);
  const ledger = openSync(join(grants[0]?.folder ?? '', 'ledger'), 'r+');
  const scribbling = setInterval(() => {
    for (let i = 0; i < 8; i++) {
      writeSync(ledger, randomBytes(8), 0, 8, REPORTS_AT + 8 * Math.floor((Math.random() * ROWS_BYTES) / 8));
    }
  }, 1);
  t.teardown(() => {
    clearInterval(scribbling);
    closeSync(ledger);
  });
  const status = await arbiter.until(
    ({ pages }) => pages.some(({ gpus }) => (gpus[0]?.faults ?? 0) > 0),
    'it is reported',
  );
  t.is(status.pages.find(({ id }) => id === 'tenant-1')?.gpus[0]?.faults, 0);
  await hold(t, node, clients.slice(1), [60]);
});

test.serial('a tenant that overwrites its order gets it back', async (t) => {
  const { node, arbiter, clients, grants } = await bench(t, 20);
  start(clients[0]);
  const ledger = openSync(join(grants[0]?.folder ?? '', 'ledger'), 'r+');
  t.teardown(() => closeSync(ledger));
  await sharesOf(node, clients);
  const free = Buffer.alloc(8);
  free[0] = 3; // nothing limits
  writeSync(ledger, free, 0, 8, COMPUTE_AT + 64);
  const lease = Buffer.alloc(8);
  await eventually(() => {
    readSync(ledger, lease, 0, 8, COMPUTE_AT + 64);
    return lease.equals(free) ? undefined : true;
  }, 'the order is restored');
  await arbiter.until(({ pages }) => (pages[0]?.gpus[0]?.faults ?? 0) > 0, 'it is reported');
  await hold(t, node, clients, [20]);
});

test.serial('a tenant that truncates its page affects only itself and is reported', async (t) => {
  const { node, arbiter, clients, grants } = await bench(t, 40, 40);
  for (const client of clients) start(client);
  await sharesOf(node, clients);
  truncateSync(join(grants[0]?.folder ?? '', 'ledger'), 4096);
  const status = await arbiter.until(({ pages }) => pages.some(({ broken }) => broken !== undefined), 'it is reported');
  const broken = Object.fromEntries(status.pages.map(({ id, broken: why }) => [id, why]));
  t.deepEqual(broken, { 'tenant-0': 'the file was truncated', 'tenant-1': undefined });
  await hold(t, node, clients.slice(1), [40]);
});

test.serial('a holder that is killed blocks no other container', async (t) => {
  const { node, clients } = await bench(t, 50, 50);
  for (const client of clients) start(client, 'async', 2000);
  await sharesOf(node, clients);
  await clients[0]?.kill();
  await hold(t, node, clients.slice(1), [50]);
});

test.serial('a program may fork while its launches wait', async (t) => {
  const { node, clients } = await bench(t, 20);
  const forked = clients[0]?.ask('fork-load 2000 500');
  await sharesOf(node, clients, 1000);
  t.deepEqual(await forked, [0, 0], 'no child waited or launched');
  start(clients[0]);
  await hold(t, node, clients, [20]);
});

test.serial('capture does not wait for a share; the launch of its graph does', async (t) => {
  const { node, clients, arbiter, tenants } = await bench(t, 1);
  const [client] = clients;
  if (!client) throw new Error('no client');
  const stream = await client.must('stream');
  await client.must('launch 1 200000'); // 20 s of 1 %
  await client.must('sync');
  await client.must(`capture ${stream}`);
  const before = performance.now();
  await client.must(`stream-launch ${stream} 1000`);
  const graph = await client.must(`capture-end ${stream}`);
  // At 1 % it would wait for 20 s.
  t.true(performance.now() - before < 10_000, 'recorded');
  const exec = await client.must(`instantiate ${graph}`);
  let done = false;
  const waiting = client.ask(`graph-launch ${exec}`).then(([result]) => {
    done = true;
    return result;
  });
  await delay(300); // long enough for a launch that is not held
  t.false(done);
  await arbiter.plan(
    'fixed',
    tenants.map((tenant) => ({ ...tenant, gpus: [{ gpu: 0, percent: 100 }] })),
  );
  t.is(await waiting, 0);
  await client.must('sync');
  t.is(ranMs(node, client), 201);
});

test.serial('streams and contexts may end before the end of their launches is known', async (t) => {
  const { node, clients } = await bench(t, 50);
  const [client] = clients;
  if (!client) throw new Error('no client');
  for (let i = 0; i < 10; i++) {
    const context = await client.must('create 0');
    t.is((await client.ask('load streams 30 200'))[0], 0);
    await client.must('launch 20 100');
    await client.must(`destroy ${context}`);
    await client.must('context 0');
  }
  start(client);
  await hold(t, node, clients, [50]);
});

test.serial('launches are timed even if CUDA starts while a context ends elsewhere', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const arbiter = startArbiter(t);
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: 50 }]);
  await arbiter.plan('fixed', [{ id: 'tenant-0', grant, gpus: [{ gpu: 0, percent: 50 }] }]);
  const plan = join(temporaryFolder(t), 'plan');
  writeFileSync(plan, Buffer.alloc(4096));
  const client = startClient(t, node, { preload: grant.cuda, env: { COTENANT_SIM_PLAN: plan } });
  t.deepEqual(await client.ask('init-amid-release'), [0, INVALID_CONTEXT]);
  await client.must('context 0');
  start(client);
  await hold(t, node, [client], [50]);
});

test.serial('a container with two GPUs gets its share of each', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const arbiter = startArbiter(t);
  const both = makeGrant(
    t,
    node,
    [0, 1].map((gpu) => ({ gpu, memoryBytes: 512 * MIB, coresPercent: 30 })),
  );
  const one = makeGrant(t, node, [{ gpu: 1, memoryBytes: 512 * MIB, coresPercent: 60 }]);
  await arbiter.plan('fixed', [
    { id: 'both', grant: both, gpus: [0, 1].map((gpu) => ({ gpu, percent: 30 })) },
    { id: 'one', grant: one, gpus: [{ gpu: 1, percent: 60 }] },
  ]);
  const clients = [
    await readyClient(t, node, { preload: both.cuda }, 0),
    await readyClient(t, node, { preload: both.cuda }, 1),
    await readyClient(t, node, { preload: one.cuda }),
  ];
  for (const client of clients) start(client);
  await hold(t, node, clients, [30, 30, 60]);
});
