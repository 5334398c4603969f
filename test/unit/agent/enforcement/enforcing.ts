// An enforcer for tests, over grants of 100 MiB each and samples that the test makes up: no process is touched, for
// there is none, or one that takes every signal.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import { type Audit, openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { createEnforcer, ENFORCER_LIMITS } from '../../../../src/agent/enforcement/enforcer.ts';
import { heldPage } from '../../../../src/agent/grants/files.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import type { LiveGrant } from '../../../../src/agent/grants/live-grant.ts';
import type { Registry } from '../../../../src/agent/grants/registry.ts';
import type { Native, ProcessFacts } from '../../../../src/agent/os/addon.ts';
import { applyMemoryPressure } from '../../../../src/agent/usage/memory-pressure.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import type { EnforcementPolicy } from '../../../../src/policy/enforcement.ts';
import { DEFAULT_LADDER } from '../../../../src/policy/ladder.ts';
import { DEFAULT_TOLERANCE } from '../../../../src/policy/memory-verdict.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { compared, gpu, grantOf, ledgerOf, reading, row, sampledProcess, sampleOf, slot, use } from '../node.ts';

const START = 1_700_000_000_000;

/** A /proc without anybody: a stop finds no one left. `touched` says which native calls were made. */
function emptyNode() {
  const touched: string[] = [];
  const native = new Proxy({} as Native, {
    get: (_, name) => () => {
      touched.push(String(name));
      if (name === 'readProcess') return undefined;
      throw new Error(`${String(name)} must not be called`);
    },
  });
  return { native, touched };
}

/** In the place of a tenant's: a process that is there for as long as the test runs. */
const STAND_IN = Number(
  readdirSync('/proc').find((name) => /^\d+$/.test(name) && ![1, process.pid].includes(Number(name))),
);
/** Owners of grants: process 1, whose child the stand-in passes for, and one that is not there. */
const OWNER = { pid: 1, startTicks: 5, cgroup: '' };
export const MISSING_PROCESS = { pid: 2 ** 30, startTicks: 5, cgroup: '' };

/** A /proc in which each grant of OWNER has one process; `signaled`: what it is sent each time, and what it answers. */
export function peopledNode(answers: readonly string[] = []) {
  const signaled: string[] = [];
  const facts = { ended: false, leaderless: false, command: 'held', cgroup: '', pidNamespace: 1 };
  const native = {
    readProcess(pid: number): ProcessFacts | undefined {
      if (pid === 1) return { ...facts, startTicks: OWNER.startTicks, parent: 0, namespacePid: 1 };
      return pid === STAND_IN ? { ...facts, startTicks: 77, parent: 1, namespacePid: pid } : undefined;
    },
    signalExact(pid: number, startTicks: number, _: string, signal: number): string {
      signaled.push(`${pid === STAND_IN && startTicks === 77 ? 'stand-in' : pid} ${signal}`);
      return answers[signaled.length - 1] ?? 'sent';
    },
  } as unknown as Native;
  return { native, signaled };
}

function registryOf(grants: readonly Grant[]): Registry {
  const live = new Map(
    grants.map((grant): [string, LiveGrant] => [
      grant.id,
      {
        grant,
        folder: '',
        page: heldPage(-1),
        ledgerPath: '',
        ledgerFd: -1,
        engines: [],
        engine: undefined,
        gateClosed: false,
        compute: false,
        leased: false,
        ledgerTurn: 0,
        reading: undefined,
        beat: undefined,
      },
    ]),
  );
  return { get: (id: string) => live.get(id), touch: () => {} } as unknown as Registry;
}

/** `known`: its ledger knows the process, so that what is too much is no bypass; `managedMib`: says the ledger, and no
 * list. */
export type Holding = {
  readonly id: string;
  readonly mib: number;
  readonly known?: boolean;
  readonly managedMib?: number;
};
type Options = {
  readonly policy?: Partial<EnforcementPolicy>;
  readonly audit?: Audit;
  readonly grants?: readonly Grant[];
  /** Instead of a node without anybody. */
  readonly people?: Native;
  /** When it starts. */
  readonly second?: number;
};
const WITHOUT_PROCESSES = ['one', 'two', 'three'].map((id) => grantOf(id, 100));
export const there = (id: string, more: Partial<Grant> = {}): Grant => grantOf(id, 100, [0], { owner: OWNER, ...more });

/** An enforcer over grants of 100 MiB each. */
export function setUp(
  t: ExecutionContext,
  { policy = {}, audit, grants = WITHOUT_PROCESSES, people, second = 0 }: Options = {},
) {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-enforcer-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const { native, touched } = emptyNode();
  let nowMs = START + second * 1000;
  let jumpedMs = 0;
  const kept = audit ?? openAudit(folder, loggerTo({ push: (text) => t.fail(text) }));
  const registry = registryOf(grants);
  const problems: string[] = [];
  const enforcer = createEnforcer({
    registry,
    native: people ?? native,
    audit: kept,
    policy: { ...DEFAULT_LADDER, ...DEFAULT_TOLERANCE, ...ENFORCER_LIMITS, ...policy },
    mode: () => policy?.mode ?? DEFAULT_LADDER.mode,
    clocks: { now: () => nowMs + jumpedMs, steady: () => nowMs - START },
    log: loggerTo(problems),
  });
  /** One sample, taken `ageMs` before it is acted upon; what was done: "action grant". */
  const act = (
    second: number,
    holdings: readonly Holding[],
    ageMs = 0,
    usedMib?: number,
    more: Parameters<typeof gpu>[1] = {},
  ): string[] => {
    nowMs = START + second * 1000;
    const processes = holdings.map(({ mib }, index) => sampledProcess(10 + index, [use(0, { bytes: mib * MIB })]));
    const sum = holdings.reduce((total, { mib }) => total + mib, 0);
    const owners = Object.fromEntries(
      holdings.map(({ id }, index): [number, Owner] => [10 + index, { kind: 'grant', id }]),
    );
    const sample = sampleOf(
      [gpu(0, { usedBytes: (usedMib ?? sum) * MIB, ...more })],
      processes,
      nowMs + jumpedMs - ageMs,
    );
    const state = compared(
      sample,
      grants.map((grant) => {
        const slots = holdings.flatMap(({ id, known, managedMib = 0 }, index) => {
          const said = row({ managedBytes: managedMib * MIB, heldBytes: managedMib * MIB });
          return (known || managedMib > 0) && id === grant.id ? [slot(known ? 10 + index : 9000 + index, [said])] : [];
        });
        return reading(grant, ledgerOf(slots));
      }),
      owners,
    );
    return enforcer
      .act(applyMemoryPressure(state, DEFAULT_TOLERANCE))
      .map(({ action, grantId }) => `${action} ${grantId}`);
  };
  const jump = (seconds: number) => {
    jumpedMs += seconds * 1000;
  };
  return { act, audit: kept, touched, folder, jump, problems, live: registry.get };
}
