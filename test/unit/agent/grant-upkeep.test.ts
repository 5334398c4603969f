// What stays known of processes that a sample does not show, and what books are taught of memory that processes share.
import test from 'ava';
import { type Owner, remember } from '../../../src/agent/attribution/attribute.ts';
import { createGrantUpkeep } from '../../../src/agent/grant-upkeep.ts';
import type { LiveGrant } from '../../../src/agent/grants/live-grant.ts';
import type { Registry } from '../../../src/agent/grants/registry.ts';
import type { Feedback, Native } from '../../../src/agent/os/addon.ts';
import type { SampledProcess } from '../../../src/agent/sampling/sample.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { loggerTo } from '../../support/product/logger.ts';
import { gpu, grantOf, ledgerOf, ofGrant, PID_NAMESPACE, row, sampledProcess, sampleOf, slot, use } from './node.ts';

test('a living process of a grant that is missing from a sample keeps its owner', (t) => {
  const before = new Map(
    [
      [1, 10, 'unreported'],
      [2, 20, 'unreported'],
      [3, 30, 'reported'],
      [5, 50, 'unreported'],
    ].map(([pid, startTicks, id]) => [Number(pid), { id: String(id), startTicks: Number(startTicks) }]),
  );
  const shown = new Map<SampledProcess, Owner>([
    [sampledProcess(5, []), ofGrant('other')],
    [sampledProcess(6, []), { kind: 'host' }],
  ]);
  const asked: number[] = [];
  const known = remember(
    shown,
    before,
    (id) => id === 'unreported',
    (pid, startTicks) => {
      asked.push(pid);
      return pid === 1 && startTicks === 10;
    },
  );
  t.deepEqual(
    [...known],
    [
      [5, { id: 'other', startTicks: 50 }],
      [1, { id: 'unreported', startTicks: 10 }],
    ],
  );
  t.deepEqual(asked, [1, 2], 'what this sample shows wins, and what it tells is final');
});

/** What two processes' slots are taught of a sample, the second of which has 6000 MiB of the first one's open. */
function taught(usedMiB: number): Record<number, number> {
  const residuals: Record<number, number> = {};
  const registry = {
    touch() {},
    repair() {},
    renew() {},
    writeFeedback(_: unknown, news: readonly Feedback[]) {
      for (const { slot: index, residualBytes } of news) residuals[index] = residualBytes / MIB;
    },
  } as unknown as Registry;
  const keeping = createGrantUpkeep({
    registry,
    native: {} as Native,
    mounts: { held: () => new Set() },
    ownPidNamespace: PID_NAMESPACE,
    isAlive: () => true,
    log: loggerTo({
      push(text) {
        throw new Error(text);
      },
    }),
  });
  const owner = slot(11, [row({ heldBytes: 6000 * MIB })]);
  const importer = slot(12, [row()]);
  const live = { grant: grantOf('one', 20_000) } as LiveGrant;
  for (let second = 1; second <= 12; second += 1) {
    const processes = [11, 12].map((pid) => sampledProcess(pid, [use(0, { bytes: 6000 * MIB })]));
    const on = gpu(0, { usedBytes: usedMiB * MIB });
    const atNs = second * 1e9;
    const reading = { ...ledgerOf([owner, importer]), readNs: atNs + 1 };
    keeping.after(sampleOf([on], processes, 1e12, atNs), [{ live, reading }], () => processes);
  }
  return residuals;
}

test('memory that a process has open from another one is no residual', (t) => {
  const [owner, importer] = [11 % 8, 12 % 8];
  t.deepEqual(taught(12_100), { [owner]: 0, [importer]: 6000 }, 'it is in use twice');
  t.deepEqual(taught(6100), { [owner]: 0, [importer]: 100 }, 'once, and so much else');
  t.deepEqual(taught(5900), { [owner]: 0, [importer]: 0 });
});
