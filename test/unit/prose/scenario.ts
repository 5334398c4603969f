// What the agent and `cotenant why` do about containers that exceed their grants, as codes, with the sentences beside
// them. Run by prose.test.ts as a program of its own, with the product's sentences as they are and reworded.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as settled } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import { createStopCounts } from '../../../src/agent/counters/stop-counts.ts';
import { type ActionRecord, recordOf } from '../../../src/agent/enforcement/action-record.ts';
import { openAudit } from '../../../src/agent/enforcement/audit-log.ts';
import { createEvictions } from '../../../src/agent/enforcement/evictions.ts';
import { restore } from '../../../src/agent/enforcement/resume.ts';
import { createGrantFiles } from '../../../src/agent/grants/files.ts';
import { type Native, PAGE_SIZE_MISMATCH } from '../../../src/agent/os/addon.ts';
import { explain } from '../../../src/cli/cluster/explain-pod.ts';
import type { Event } from '../../../src/cli/cluster/objects.ts';
import { eventsOf } from '../../../src/cli/daemons/agent.ts';
import { topLines } from '../../../src/cli/output/top-screen.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { buildEvent } from '../../../src/kube/events.ts';
import { loggerTo } from '../../support/product/logger.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';
import { peopledNode, setUp, there } from '../agent/enforcement/enforcing.ts';
import { grantOf } from '../agent/node.ts';
import { facts, GPU, NOW } from '../cli/facts.ts';

const folders: string[] = [];
const t = {
  teardown: () => {},
  fail: (text: string) => {
    throw new Error(text);
  },
} as unknown as ExecutionContext;
const folder = (): string => {
  folders.push(mkdtempSync(join(tmpdir(), 'cotenant-prose-')));
  return folders.at(-1) ?? '';
};

/** One container that is stopped, one that is refused for each reason, one on the soft path. */
function enforce(): readonly ActionRecord[] {
  const people = peopledNode().native;
  const rogue = [{ id: 'one', mib: 2000 }];
  const stopped = setUp(t, { grants: [there('one')], people });
  for (const second of [0, 1]) stopped.act(second, rogue);
  stopped.act(3, []);
  const refused = setUp(t, { grants: [there('one')], people, policy: { mostStopsPerMinute: 0 } });
  refused.act(0, rogue);
  refused.act(1, rogue, 0, 1000);
  refused.act(20, rogue, 60_000);
  refused.act(40, rogue);
  const soft = setUp(t, { grants: [there('one')], people });
  for (let second = 0; second < 25; second++) soft.act(second, [{ id: 'one', mib: 180, known: true }]);
  const report = setUp(t, { grants: [there('one')], people, policy: { mode: 'report' } });
  for (const second of [0, 1]) report.act(second, rogue);
  return [stopped, refused, soft, report].flatMap(({ audit }) => audit.recent());
}

async function evict(): Promise<readonly ActionRecord[]> {
  const records: ActionRecord[] = [];
  const evictions = createEvictions({
    policy: { evictAfterStops: 1, evictWindowSeconds: 60 },
    async evict() {
      throw new Error('status 429');
    },
    clocks: { now: () => 0, steady: () => 0 },
    earlier: [],
    report: (record) => records.push(record),
  });
  const owner = { podUid: 'uid', target: '/x', kind: 'app' } as const;
  const grant = { ...grantOf('one', 100), owner };
  const verdict = { severity: 'within' } as const;
  evictions.see([recordOf({ grant, action: 'kill', verdict, atMs: 0, result: 'sent' })]);
  await settled();
  return records;
}

/** Does `why` take the Event of this action for that of a stop? By the answer, which then says more of how the
 * container ended. */
function explained(action: ActionRecord['action']): string {
  const known = facts('stopped');
  const uid = known.pod?.metadata.uid ?? '';
  const memory = { gpuUuid: GPU, limitBytes: 1024 * MIB, usedBytes: 3000 * MIB, bypassBytes: 2900 * MIB };
  const record = recordOf({
    grant: { ...grantOf('one', 100), namespace: 'team', pod: 'rogue', container: 'main' },
    action,
    verdict: { severity: 'hard', reason: 'bypass', worst: memory, overBytes: 1 },
    atMs: Date.parse('2026-11-21T22:07:08Z'),
    result: 'sent',
  });
  const events = eventsOf([{ ...record, podUid: uid }], 'node-1').map(
    (event) => JSON.parse(JSON.stringify(buildEvent(event, { name: 'e', count: 1, firstMs: event.atMs }))) as Event,
  );
  return explain({ ...known, events }, NOW)
    .causes.map(({ text }) => text)
    .join('\n');
}

function isPageReplaced(code: string | undefined): boolean {
  const place = folder();
  writeFileSync(join(place, 'limits'), 'before');
  let writes = 0;
  const native = {
    writePage() {
      writes += 1;
      if (writes <= 2) throw Object.assign(new Error('a sentence of the addon'), code !== undefined && { code });
    },
    initLedger() {},
    hasCompute: () => false,
  } as unknown as Native;
  const pageOf = () => ({ slots: 1, isolateMemory: true, gpus: [] });
  const options = { native, volumes: undefined, build: place, wanted: undefined, pageOf, log: loggerTo([]) };
  const keeper = createGrantFiles(options);
  const grant = grantOf('one', 100);
  const files = keeper.open(grant, place);
  try {
    keeper.putRight(grant, place, files);
  } catch {
    // the page stays
  }
  files.page.close();
  return readFileSync(join(place, 'limits'), 'utf8') === '';
}

const records = [...enforce(), ...(await evict())];
const counts = createStopCounts();
counts.add(records);
const audit = openAudit(folder(), loggerTo({ push: (text) => t.fail(text) }));
for (const record of records) audit.add(record);
const shown = topLines(
  { ...exampleSnapshot, recent: records.slice(0, 2) },
  { sort: 'gpu', processes: false, width: 200 },
);
const [killed, warned] = [explained('kill'), explained('warn')];
const behavior = {
  records: records.map(({ action, reason, result, refusal }) => [action, reason, result, refusal]),
  events: eventsOf(
    records.map((record) => ({ ...record, podUid: 'uid' })),
    'node-1',
  ).map(({ reason, type, action }) => [reason, type, action]),
  totals: counts.totals().map(({ lastMs: _, ...total }) => total),
  decisions: counts.decisions(),
  refusals: counts.refusals(),
  restored: [...restore(audit.steps(), { dateMs: NOW, steadyMs: 0 }).states].map(([id, { ladder }]) => [
    id,
    ladder.rung,
  ]),
  isStopExplained: killed !== warned,
  isPageReplaced: [PAGE_SIZE_MISMATCH, undefined, 'EIO'].map(isPageReplaced),
  topShowsUse: shown.slice(-2).map((line) => /: local\/\S+ \d+ \S+ \d+ /.test(line)),
};
const texts = [...records.flatMap(({ message, detail }) => [message, detail ?? '']), killed, warned];
for (const place of folders) rmSync(place, { recursive: true, force: true });
console.log(JSON.stringify({ behavior, texts }));
