// What a pod's annotations say of its enforcement, and what becomes of it in the books.

import test from 'ava';
import { changeGrant } from '../../../../src/agent/allocation/process-grants.ts';
import { createPodModes, requestedMode } from '../../../../src/agent/enforcement/pod-mode.ts';
import { formatGrant, type Grant, parseGrant } from '../../../../src/agent/grants/grant.ts';
import type { LiveGrant } from '../../../../src/agent/grants/live-grant.ts';
import type { Registry } from '../../../../src/agent/grants/registry.ts';
import { err } from '../../../../src/common/result.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { recordOf } from '../../../support/product/record.ts';
import { grantOf } from '../node.ts';

const record = (enforcement?: 'off' | 'report') => ({ 'cotenant.io/request': recordOf(enforcement) });
const wish = (mode: string) => ({ 'cotenant.io/enforcement': mode });
const override = (mode: string) => ({ 'cotenant.io/enforcement-override': mode });

test('a tenant’s annotation counts only where it is stricter than the recorded mode', (t) => {
  t.is(requestedMode(record()), undefined);
  t.is(requestedMode({ ...record(), ...wish('off') }), undefined);
  t.deepEqual(requestedMode(record('report')), { mode: 'report', by: 'namespace' });
  t.deepEqual(requestedMode({ ...record('report'), ...wish('off') }), { mode: 'report', by: 'namespace' });
  t.deepEqual(requestedMode({ ...record('report'), ...wish('enforce') }), { mode: 'enforce', by: 'pod' });
  t.deepEqual(requestedMode({ ...record('report'), ...wish('enforce'), ...override('off') }), {
    mode: 'off',
    by: 'administrator',
  });
  t.deepEqual(requestedMode({ ...record('report'), ...override('none') }), { mode: 'report', by: 'namespace' });
});

test('a forged request record does not weaken the mode', (t) => {
  const forged = record('report')['cotenant.io/request'].replace('"report"', '"none"');
  for (const text of [forged, '{"enforcement":"off"}', '', 'off'])
    t.is(requestedMode({ 'cotenant.io/request': text }), undefined, text);
  t.is(requestedMode(undefined), undefined);
});

test('all containers of a pod follow its annotations; an unknown mode is reported once', (t) => {
  const of = (id: string, podUid: string) => grantOf(id, 100, [0], { owner: { podUid, target: '/x', kind: 'app' } });
  const books = new Map([of('one', 'a'), of('two', 'a'), of('three', 'b')].map((grant) => [grant.id, grant]));
  const changes: string[] = [];
  const reported: string[] = [];
  const registry: Pick<Registry, 'list' | 'change'> = {
    list: () => [...books.values()].map((grant) => ({ grant })) as unknown as LiveGrant[],
    change(id, parts) {
      changes.push(id);
      books.set(id, { ...(books.get(id) as Grant), ...parts } as Grant);
      return {} as LiveGrant;
    },
  };
  const modes = createPodModes(registry, loggerTo(reported));
  const modeOf = (id: string) => books.get(id)?.enforcement?.mode;
  modes.onPod('a', { ...record(), ...override('report') });
  t.deepEqual([modeOf('one'), modeOf('two'), modeOf('three')], ['report', 'report', undefined]);
  modes.onPod('a', { ...record(), ...override('report'), label: 'other' });
  t.deepEqual(changes, ['one', 'two'], 'what stays is not written again');
  for (const label of ['x', 'y']) modes.onPod('a', { ...record(), ...override('none'), label });
  t.deepEqual([modeOf('one'), modeOf('two')], [undefined, undefined]);
  t.deepEqual(reported, [
    'local/pod-one: annotation cotenant.io/enforcement-override is not one of off, report, enforce and is ignored',
  ]);
});

test('a requested mode survives a restart; a grant with an unknown mode is refused', (t) => {
  const grant: Grant = { ...grantOf('abcdef', 100), enforcement: { mode: 'report', by: 'namespace' } };
  t.deepEqual(parseGrant(formatGrant(grant)), { ok: true, value: grant });
  const broken = formatGrant(grant).replace('"report"', '"none"');
  t.deepEqual(parseGrant(broken), {
    ok: false,
    error: 'enforcement.mode: "none" is not one of off, report, enforce',
  });
});

test('the socket sets the mode of process grants, annotations that of pods', (t) => {
  const owner = { podUid: 'a', target: '/x', kind: 'app' } as const;
  const books = new Map(
    [grantOf('plain', 100), grantOf('ofpod', 100, [0], { owner })].map((grant) => [grant.id, { grant }]),
  );
  const registry = {
    list: () => [...books.values()],
    get: (id: string) => books.get(id),
    change(id: string, parts: Partial<Grant>) {
      const live = { grant: { ...(books.get(id)?.grant as Grant), ...parts } };
      books.set(id, live);
      return live;
    },
  } as unknown as Registry;
  const set = (id: string, change: object) => changeGrant(id, change, undefined, registry);
  const modeOf = (id: string) => books.get(id)?.grant.enforcement;
  set('plain', { enforcement: 'report' });
  t.deepEqual(modeOf('plain'), { mode: 'report', by: 'administrator' });
  set('plain', { weight: 3 });
  t.deepEqual(modeOf('plain'), { mode: 'report', by: 'administrator' }, 'another change leaves it');
  const tooMuch = set('plain', { enforcement: 'off', coresPercent: 100, coresLimitPercent: 50 });
  t.false(tooMuch.ok);
  t.is(modeOf('plain')?.mode, 'report');
  set('plain', { enforcement: null });
  t.is(modeOf('plain'), undefined);
  t.is(books.get('plain')?.grant.compute?.weight, 3);
  t.deepEqual(
    set('ofpod', { enforcement: 'off', weight: 2 }),
    err({
      refused: 'grant ofpod belongs to pod local/pod-ofpod: annotate the pod to change its enforcement mode',
    }),
  );
  t.is(books.get('ofpod')?.grant.compute, undefined);
});
