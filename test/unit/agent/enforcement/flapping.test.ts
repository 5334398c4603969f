// A container that exceeds its grant and keeps to it in turn, for an hour: what it makes the agent write.
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { ActionRecord } from '../../../../src/agent/enforcement/action-record.ts';
import { type Audit, openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { eventsOf } from '../../../../src/cli/daemons/agent.ts';
import { createEventCorrelator } from '../../../../src/kube/event-correlator.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { setUp } from './enforcing.ts';

const HOUR_S = 3600;

/** `all`: what the enforcer recorded, before the quota. */
function recorder(t: ExecutionContext) {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-flapping-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const real = openAudit(folder, loggerTo({ push: (text) => t.fail(text) }));
  const all: ActionRecord[] = [];
  const audit: Audit = {
    ...real,
    add(record) {
      all.push(record);
      real.add(record);
    },
  };
  const lines = (): ActionRecord[] => {
    const path = join(folder, 'audit.log');
    const text = existsSync(path) ? readFileSync(path, 'utf8') : '';
    return text.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line) as ActionRecord]));
  };
  return { audit, all, lines };
}

for (const mode of ['report', 'enforce'] as const) {
  test(`in mode ${mode} it causes 25 Events at once and then one in five minutes`, (t) => {
    const { audit, all, lines } = recorder(t);
    const { act } = setUp(t, { policy: { mode }, audit });
    for (let second = 0; second < HOUR_S; second += 1) {
      // Over for seven seconds, in which the gate closes, then within for one; or every other second.
      const isOver = mode === 'enforce' ? second % 8 < 7 : second % 2 === 0;
      const one = { id: 'one', mib: isOver ? 160 + (second % 20) : 50, known: true };
      act(second, second === HOUR_S / 2 ? [one, { id: 'two', mib: 170, known: true }] : [one]);
    }
    t.true(all.length > 300, `${all.length} actions`);
    const correlate = createEventCorrelator();
    const events = eventsOf(
      all.filter(({ grantId }) => grantId === 'one').map((record) => ({ ...record, podUid: 'u' })),
      'node-a',
    );
    const written = events.map(correlate).filter((write) => write !== undefined);
    t.true(written.length <= 25 + HOUR_S / 300, `${written.length} Events`);

    const own = lines().filter(({ grantId }) => grantId === 'one');
    const left = own.reduce((sum, { omitted = 0 }) => sum + omitted, 0);
    // Each closing of the gate that is recorded has its opening.
    const count = (action: string) => own.filter((record) => record.action === action).length;
    t.true(own.length <= 2 * (25 + HOUR_S / 300), `${own.length} lines`);
    t.true(Math.abs(count('close-gate') - count('open-gate')) <= 1);
    const caused = all.filter(({ grantId }) => grantId === 'one').length;
    t.true(own.length + left > 0.8 * caused, `${own.length} and ${left} of ${caused}`);
    t.true(
      lines().some(({ grantId }) => grantId === 'two'),
      'another grant has its own quota',
    );
  });
}
