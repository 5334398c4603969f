import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  symlinkSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { describeWatch, isWithin, startWatch, stopping } from '../../../support/machine/scheduling-delays.ts';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { actedOn, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
/** The preload is what brings the interposer in: without it a program reaches the driver directly. */
const DODGE = ['env', '-u', 'LD_PRELOAD'];

test.serial('a tenant that bypasses the interposer is warned and fully stopped within 5 s', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node);
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--name', 'neighbor'], [CLIENT]);
  t.deepEqual(await tell(neighbor, 'init'), [0, 0]);
  await tell(neighbor, 'context 0');
  const [, kept] = await tell(neighbor, `alloc ${512 * MIB}`);
  await tell(neighbor, `set ${kept} 1000000 42`);

  // A second process of the same tenant, which holds no GPU memory at all: it must go with the first.
  const script = `${CLIENT} & sleep 600 & exec ${CLIENT}`;
  const rogue = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '1Gi', '--name', 'rogue'],
    [...DODGE, '/bin/sh', '-c', script],
  );
  await tell(rogue, 'init');
  await tell(rogue, 'context 0');
  t.deepEqual((await tell(rogue, `alloc ${600 * MIB}`))[0], 0);
  await eventually(
    async () =>
      ((await agent.metric('cotenant_container_memory_bypass_bytes', { pod: 'rogue' })) ?? 0) > 0 || undefined,
    'the bypass is seen',
  );
  t.deepEqual(agent.audit(), [], 'within its grant a bypass is only reported');
  const over = Date.now();
  const watch = startWatch(stopping(agent.child, node.child));
  t.deepEqual((await tell(rogue, `alloc ${400 * MIB}`))[0], 0, 'nothing refuses it');
  const { code } = await rogue.ended;
  const taken = watch();
  t.log(`stopped ${describeWatch(taken)}`);
  t.true(isWithin(5000, taken), describeWatch(taken));
  t.is(code, 137);
  t.true(
    rogue.output.some((line) => /stopped by the agent: local\/rogue\/\S+ exceeds its GPU memory grant:/.test(line)),
    rogue.output.join('\n'),
  );
  // `cotenant run` ends with the first of its processes; the other one was sent its signal, too.
  await eventually(() => {
    const clients = node.usage().clients.filter((client) => client.command === 'client');
    return clients.map((client) => client.alive).join() === 'true' || undefined;
  }, 'only the neighbor is left');

  const records = actedOn(agent.audit());
  const actions = records.map(({ action, pod, reason }) => `${action} ${pod} ${reason}`);
  t.deepEqual(actions.slice(0, 2), ['warn rogue bypass', 'kill rogue bypass']);
  const kill = records[1];
  t.is(kill?.limitBytes, 1024 * MIB);
  t.true((kill?.usedBytes ?? 0) > 1024 * MIB && kill?.result === 'sent');
  await eventually(
    async () =>
      (await agent.metric('cotenant_container_kills_total', {
        pod: 'rogue',
        reason: 'bypass',
        result: 'released',
      })) === 1
        ? true
        : undefined,
    'the metric says so',
  );
  t.true(
    ((await agent.metric('cotenant_container_last_kill_timestamp_seconds', { pod: 'rogue' })) ?? 0) * 1000 >= over,
  );
  t.deepEqual(await tell(neighbor, `check ${kept} 1000000 42`), [0, 0], 'the neighbor has its bytes');
  t.is((await tell(neighbor, `alloc ${MIB}`))[0], 0);
});

test('report mode stops nothing and reports what would have been stopped', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { 'enforcement.mode': 'report' } });
  const rogue = runTenant(t, node, agent, ['--gpu-memory', '256Mi', '--name', 'rogue'], [...DODGE, CLIENT]);
  await tell(rogue, 'init');
  await tell(rogue, 'context 0');
  await tell(rogue, `alloc ${512 * MIB}`);
  await eventually(() => agent.audit().find((record) => record.action === 'would-stop'), 'it would be stopped');
  const labels = { decision: 'would_kill', reason: 'bypass' };
  await eventually(
    async () => ((await agent.metric('cotenant_enforcement_decisions_total', labels)) === 1 ? true : undefined),
    'it is counted once',
  );
  t.is((await tell(rogue, 'alloc 512'))[0], 0, 'it lives');
});

test('processes that belong to no grant are never touched, however much they hold', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200, urgentIntervalMs: 200 } });
  const host = await readyClient(t, node);
  await host.must(`alloc ${8000 * MIB}`);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '256Mi'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  const seen = (await agent.snapshot())?.atMs ?? 0;
  await eventually(
    async () => (((await agent.snapshot())?.atMs ?? 0) > seen + 3000 ? true : undefined),
    'fifteen more samples',
  );
  t.deepEqual(agent.audit(), []);
  await host.must('alloc 512');
  t.true(((await agent.metric('cotenant_device_memory_unattributed_bytes')) ?? 0) >= 8000 * MIB);
  t.true(((await agent.metric('cotenant_exporter_attribution_failures_total', { reason: 'host' })) ?? 0) > 0);
});

test('a tenant that damages its own files harms neither other tenants nor the agent', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 250 } });
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'neighbor'], [CLIENT]);
  await tell(neighbor, 'init');
  await tell(neighbor, 'context 0');
  const spoil: Record<string, (folder: string) => void> = {
    truncated: (folder) => truncateSync(join(folder, 'ledger'), 0),
    shortened: (folder) => truncateSync(join(folder, 'ledger'), 500),
    holed: (folder) => truncateSync(join(folder, 'ledger'), 2 ** 36),
    replaced: (folder) => {
      writeFileSync(join(folder, 'other'), 'not a ledger');
      renameSync(join(folder, 'other'), join(folder, 'ledger'));
    },
    removed: (folder) => unlinkSync(join(folder, 'ledger')),
    linked: (folder) => {
      unlinkSync(join(folder, 'ledger'));
      symlinkSync('/dev/zero', join(folder, 'ledger'));
    },
    flooded: (folder) => {
      const fd = openSync(join(folder, 'ledger'), 'r+');
      for (let at = 0; at < 131_072; at += 4096) writeSync(fd, Buffer.alloc(4096, 0xff), 0, 4096, at);
      closeSync(fd);
    },
  };
  for (const [name, act] of Object.entries(spoil)) {
    const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', name], [CLIENT]);
    await tell(tenant, 'init');
    await tell(tenant, 'context 0');
    const grants = join(agent.state, 'grants');
    const id = await eventually(
      async () => (await agent.snapshot())?.containers.find((entry) => entry.pod === name)?.grantId,
      `${name} is seen`,
    );
    act(join(grants, id));
    const before = (await agent.snapshot())?.atMs ?? 0;
    await eventually(
      async () => (((await agent.snapshot())?.atMs ?? 0) > before + 500 ? true : undefined),
      `${name}: the agent goes on sampling`,
    );
    t.is(agent.child.exitCode, null, name);
    if (name !== 'holed' && name !== 'flooded') {
      await eventually(
        async () =>
          (await agent.snapshot())?.containers.find((entry) => entry.pod === name)?.tampered ? true : undefined,
        `${name} is reported`,
      );
    }
    t.deepEqual((await tell(neighbor, 'info')).slice(0, 1), [0], name);
    t.is((await tell(neighbor, `alloc ${MIB}`))[0], 0, name);
    tenant.child.kill('SIGTERM');
    await tenant.ended;
  }
  t.is((await tell(neighbor, `alloc ${2048 * MIB}`))[0], OUT_OF_MEMORY, 'and the neighbor is still held to its own');
  const counts = agent.audit().map((record) => record.pod);
  t.false(counts.includes('neighbor'));
});

test('a limit can change at run time; a change that does not fit the GPU is refused', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  t.is((await tell(tenant, `alloc ${600 * MIB}`))[0], OUT_OF_MEMORY);
  const id = (await eventually(async () => (await agent.snapshot())?.containers[0], 'it is seen')).grantId;
  const { ask } = await import('../../../../src/cli/lib/agent-client.ts');
  t.is((await ask(agent.state, 'PATCH', `/v1/grants/${id}`, { memoryBytes: 1024 * MIB })).status, 200);
  t.is((await tell(tenant, `alloc ${600 * MIB}`))[0], 0);
  const refused = await ask(agent.state, 'PATCH', `/v1/grants/${id}`, { memoryBytes: 20_000 * MIB });
  t.is(refused.status, 409);
  t.regex(String((refused.body as { error: string }).error), /GPU-.* has \d+ MiB left for it/);
});

test('a grant ends with its owner, also when the owner is killed, and leaves nothing', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200 } });
  const grants = join(agent.state, 'grants');
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi'], [CLIENT]);
  await tell(tenant, 'init');
  t.is(readdirSync(grants).length, 1);
  tenant.child.kill('SIGKILL');
  await tenant.ended;
  tenant.child.stdin?.end();
  await eventually(() => (readdirSync(grants).length === 0 ? true : undefined), 'the grant is taken down');
  const polite = runTenant(t, node, agent, ['--gpu-memory', '512Mi'], ['/bin/true']);
  t.is((await polite.ended).code, 0);
  t.deepEqual(readdirSync(grants), []);
});

test('a restarted agent adopts what runs: same limits, same pages, no stops', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', 'lasting'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  const [, at] = await tell(tenant, `alloc ${200 * MIB}`);
  await agent.stop('SIGKILL');
  t.is((await tell(tenant, `alloc ${300 * MIB}`))[0], OUT_OF_MEMORY, 'limits hold without an agent');
  t.is((await tell(tenant, `free ${at}`))[0], 0);
  const next = await startAgent(t, node, { state: agent.state });
  const seen = await eventually(
    async () => (await next.snapshot())?.containers.find((entry) => entry.pod === 'lasting'),
    'it is known again',
  );
  t.is(seen.limitBytes, 512 * MIB);
  t.is(seen.fence, 'interposer');
  t.is((await tell(tenant, `alloc ${300 * MIB}`))[0], 0);
  t.deepEqual(next.audit(), []);
});

test('the agent starts although a tenant damaged its files while no agent ran', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node);
  const folderOf = async (name: string) => {
    const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', name], [CLIENT]);
    await tell(tenant, 'init');
    await tell(tenant, 'context 0');
    const id = await eventually(
      async () => (await agent.snapshot())?.containers.find((entry) => entry.pod === name)?.grantId,
      `${name} is seen`,
    );
    return { tenant, folder: join(agent.state, 'grants', id) };
  };
  const linked = await folderOf('linked');
  const pageless = await folderOf('pageless');
  const cut = await folderOf('cut');
  const nameless = await folderOf('nameless');
  await agent.stop('SIGKILL');
  unlinkSync(join(linked.folder, 'ledger'));
  symlinkSync('/dev/zero', join(linked.folder, 'ledger'));
  unlinkSync(join(pageless.folder, 'limits'));
  mkdirSync(join(pageless.folder, 'limits'));
  truncateSync(join(cut.folder, 'limits'), 100);
  truncateSync(join(nameless.folder, 'grant.json'), 20);
  const next = await startAgent(t, node, { state: agent.state });
  const snapshot = await next.snapshot();
  t.deepEqual(snapshot?.containers.map((entry) => [entry.pod, entry.limitBytes]).toSorted(), [
    ['cut', 512 * MIB],
    ['linked', 512 * MIB],
    ['pageless', 512 * MIB],
  ]);
  t.is(next.log.filter((line) => /a new (file|page)/.test(line)).length, 3, next.log.join('\n'));
  t.true(next.log.some((line) => /nameless|cannot be adopted and is removed/.test(line)));
  t.deepEqual(next.audit(), [], 'no container is over, so none is stopped');
  for (const { tenant } of [linked, pageless, cut]) t.is((await tell(tenant, 'info'))[0], 0);
});

test('requests that cannot be granted are refused with the obstacle', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node);
  const refusal = async (...flags: string[]): Promise<string> => {
    const tenant = runTenant(t, node, agent, flags, ['/bin/true']);
    const { code } = await tenant.ended;
    t.true(code === 125 || code === 2, `${flags}: ${code}`);
    return tenant.output.join('\n');
  };
  t.regex(
    await refusal('--gpu-memory', '100Gi'),
    /has 14940 MiB of cotenant.io\/gpu-memory, but 102400 MiB are requested \(it lacks 87460 MiB\)/,
  );
  t.regex(await refusal('--gpu-memory', '2Gi', '--gpus', '2'), /one GPU can be used, but 2 are requested/);
  t.regex(await refusal('--gpu-memory', '1000'), /counts bytes; write 1000Mi or 1000Gi$/m);
  t.regex(await refusal('--gpu-memory', '4000000001'), /whole number of MiB/);
  t.regex(await refusal('--gpu-memory', 'lots'), /is not a quantity/);
  t.regex(await refusal('--gpu-memory', '1Gi', '--gpu-cores', '101'), /want 1 to 100/);
  t.regex(await refusal(), /--gpu-memory is missing/);
  const holder = runTenant(t, node, agent, ['--gpu-memory', '14Gi'], [CLIENT]);
  await tell(holder, 'init');
  t.regex(
    await refusal('--gpu-memory', '1Gi'),
    /has 604 MiB of cotenant.io\/gpu-memory free, but 1024 MiB are requested \(it lacks 420 MiB\)/,
  );
});

test('the native policy publishes compute shares and says that they are not enforced', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { computePolicy: 'native' } });
  const tenant = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '512Mi', '--gpu-cores', '25', '--name', 'quarter'],
    [CLIENT],
  );
  await tell(tenant, 'init');
  t.true(
    tenant.output.some((line) => line.includes('25 %') && line.includes('not enforced')),
    tenant.output.join('\n'),
  );
  t.is(
    await eventually(
      () => agent.metric('cotenant_container_sm_limit_ratio', { pod: 'quarter', enforced: 'false' }),
      'the metric',
    ),
    0.25,
  );
});

test('a second agent on the same folder is refused', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node);
  await t.throwsAsync(startAgent(t, node, { state: agent.state }), { message: /another agent serves this folder/ });
  t.true(existsSync(join(agent.state, 'agent.sock')));
});
