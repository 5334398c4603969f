// What the arbiter's process counts of tenants that do nothing else, over agents and plans: each second once. Tenants
// are the values that their processes would write into their ledgers (native/shared-memory/lease_page.h).
import { closeSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import type { Planned, Terms } from '../../../../src/agent/compute/arbiter-plan.ts';
import { type Arbiter, createArbiter } from '../../../../src/agent/compute/arbiter-process.ts';
import { SLOTS } from '../../../../src/agent/grants/files.ts';
import { loadNative } from '../../../../src/agent/os/addon.ts';
import { eventually, temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const native = loadNative();
const STEP_SECONDS = 0.05;
const NS = 1e9;
/** Of what is reported. */
const ABOUT = 0.001;
const TERMS: Terms = { policyOf: () => 'fixed', instances: 0, highCapPercent: 90 };

/** A container of one process with a share of 25 % of a GPU. */
function tenantOf(t: ExecutionContext, id: string) {
  const ledgerPath = join(temporaryFolder(t), 'ledger');
  const fd = openSync(ledgerPath, 'w+');
  t.teardown(() => closeSync(fd));
  native.initLedger(fd, SLOTS, 1, [250_000]);
  const compute = Math.ceil(native.ledgerBytes(SLOTS, 1) / 65536) * 65536;
  const reports = compute + 8192;
  const row = reports + 64;
  const put = (at: number, value: number, bytes: 4 | 8) => {
    const buffer = Buffer.alloc(8);
    buffer.writeBigUInt64LE(BigInt(Math.round(value)));
    writeSync(fd, buffer, 0, bytes, at);
  };
  put(reports + 4, 1, 4); // slots in use
  let [done, bell] = [0, 0];
  const entry = (leased: boolean): Planned => ({
    grant: {
      id,
      gpus: [{ gpuUuid: 'GPU-1', coresPercent: 25, limitBytes: 1 } as Planned['grant']['gpus'][number]],
      compute: { policy: 'fixed' },
    },
    leased,
    ledgerPath,
    ledgerTurn: 0,
  });
  return {
    id,
    entry,
    /** It computes for a while, and waits a quarter of that. More than the time that passes is not believed. */
    async work() {
      await delay(2000 * STEP_SECONDS);
      done += STEP_SECONDS;
      bell += 1;
      put(row + 16, done * NS, 8);
      put(row + 56, (done / 4) * NS, 8);
      put(reports, bell, 4);
    },
    done: () => done,
  };
}
type Tenant = ReturnType<typeof tenantOf>;

function arbiterOf(t: ExecutionContext): Arbiter {
  const arbiter = createArbiter({ log: loggerTo({ push: (text) => t.fail(text) }) });
  t.teardown(() => arbiter.close());
  return arbiter;
}
const secondsOf = (arbiter: Arbiter, { id }: Tenant) => arbiter.use(id, 0);
/** All that it did is reported, and no more. `waits`: so are its waits, which are reported as long as an arbiter is
 * there. */
async function isExact(
  t: ExecutionContext,
  arbiter: Arbiter,
  tenant: Tenant,
  what: string,
  waits = true,
  since = 0,
): Promise<void> {
  const done = () => tenant.done() - since;
  const isAll = (seconds: number, of: number) => seconds >= of - ABOUT;
  await eventually(() => {
    const { chargedSeconds = 0, throttledSeconds = 0 } = secondsOf(arbiter, tenant) ?? {};
    const isReported = isAll(chargedSeconds, done()) && (!waits || isAll(throttledSeconds, done() / 4));
    return isReported || undefined;
  }, `${what}: ${done()} s are reported`).catch((error) =>
    t.fail(`${error}: ${JSON.stringify(secondsOf(arbiter, tenant))}`),
  );
  const { chargedSeconds = 0, throttledSeconds = 0, overruns, faults } = secondsOf(arbiter, tenant) ?? {};
  t.true(chargedSeconds < done() + ABOUT, `${what}: ${chargedSeconds} s of ${done()}`);
  t.true(throttledSeconds < done() / 4 + ABOUT, `${what}: waited ${throttledSeconds} s`);
  t.deepEqual([overruns, faults], [0, 0], what);
}

test('a new agent counts charged time from zero, including time without an arbiter', async (t) => {
  const tenant = tenantOf(t, 'one');
  let arbiter = arbiterOf(t);
  arbiter.follow([tenant.entry(true)], TERMS);
  await eventually(() => arbiter.use(tenant.id, 0), 'it is held');
  await tenant.work();
  await isExact(t, arbiter, tenant, 'the first agent');
  for (const turn of [2, 3]) {
    await arbiter.close();
    const since = tenant.done();
    if (turn === 3) await tenant.work();
    arbiter = arbiterOf(t);
    arbiter.follow([tenant.entry(true)], TERMS);
    const next = arbiter;
    await eventually(() => next.use(tenant.id, 0), 'it is held again');
    await isExact(t, arbiter, tenant, `agent ${turn}, before anything is done`, turn < 3, since);
    await tenant.work();
    await isExact(t, arbiter, tenant, `agent ${turn}`, turn < 3, since);
  }
});

test('compute is counted once and held each time, however fast a share comes and goes', async (t) => {
  const [tenant, other] = [tenantOf(t, 'one'), tenantOf(t, 'other')];
  const arbiter = arbiterOf(t);
  arbiter.follow([tenant.entry(true), other.entry(true)], TERMS);
  await eventually(() => arbiter.use(tenant.id, 0), 'it is held');
  for (let turn = 0; turn < 10; turn += 1) {
    const isSlow = turn % 3 === 0;
    // It has not received all of that when it is dropped.
    await tenant.work();
    arbiter.follow([tenant.entry(false), other.entry(true)], TERMS);
    if (isSlow) {
      await other.work();
      await isExact(t, arbiter, other, 'the other one, meanwhile');
    }
    arbiter.follow([tenant.entry(true), other.entry(true)], TERMS);
    await tenant.work();
    await isExact(t, arbiter, tenant, `turn ${turn}`, false);
  }
});
