// A screen of `cotenant top`: who is on it, in which order, and that it fits.
import test from 'ava';
import fc from 'fast-check';
import type { View } from '../../../src/agent/view.ts';
import { type SORTS, topLines, userLines, usersOf } from '../../../src/cli/top-lines.ts';
import { MIB } from '../../../src/request/quantity.ts';
import { exampleContainer, exampleView, withInstance } from '../../support/views.ts';

const BY_CARD = { sort: 'card', processes: false, width: 80 } as const;
const GIB = 1024 * MIB;

test('a grant, a whole card, an instance and use without a grant are in one table, by card and memory', (t) => {
  const local = { ...exampleContainer, namespace: 'local', pod: 'plain', usedBytes: 7 * GIB, compute: undefined };
  const view = { ...withInstance, containers: [exampleContainer, { ...local, over: true, bytesTold: true }] };
  t.deepEqual(userLines(view, BY_CARD), [
    'GPU  CONTAINER         USED/GRANT MiB   SM    SHARE  HELD BY     STATE',
    '  0  plain                  7168/4096  25%  ~30-60%  interposer  OVER',
    '  0  team/train/main        3072/4096  25%   30-60%  interposer  within',
    '  1  0123456789ab              5120/-    -        -  none        NO GRANT',
    '  1  team/whole/main           1024/-  50%        -  none        whole card',
    '  2  team/sliced/main             0/-    -        -  none        instance',
  ]);
});

test('processes stand below their container, the largest first; by SM the busiest', (t) => {
  const lines = (sort: 'card' | 'sm') => {
    const processes = [
      { pid: 7, command: 'small', usedBytes: MIB, smPercent: 20, types: 1, inLedger: true },
      { pid: 8, command: 'large\u001b[2J', usedBytes: GIB, smPercent: 5, types: 1, inLedger: true },
    ];
    const view = { ...exampleView, assigned: [], foreign: [], containers: [{ ...exampleContainer, processes }] };
    return userLines(view, { sort, processes: true, width: 80 }).slice(2);
  };
  t.deepEqual(lines('card'), [
    '       8 large [2J              1024   5%',
    '       7 small                     1  20%',
  ]);
  t.deepEqual(
    lines('sm').map((line) => line.trim().split(' ')[0]),
    ['7', '8'],
  );
});

test('what is not told is last, and no number', (t) => {
  const untold = { ...exampleContainer, pod: 'untold', bytesTold: false, smPercent: undefined };
  const view = { ...exampleView, foreign: [], containers: [untold, exampleContainer] };
  const order = (sort: (typeof SORTS)[number]) =>
    userLines(view, { ...BY_CARD, sort })
      .slice(1)
      .map((line) => line.trim().split(/ +/)[1]);
  t.deepEqual(order('memory'), ['team/train/main', 'team/whole/main', 'team/untold/main']);
  t.deepEqual(order('sm'), ['team/whole/main', 'team/train/main', 'team/untold/main']);
  t.deepEqual(order('name'), ['team/train/main', 'team/untold/main', 'team/whole/main']);
  t.regex(userLines(view, BY_CARD).find((line) => line.includes('untold')) ?? '', / -\/4096 +- /);
});

test('no line is wider than the terminal, whatever the names are; the end of a name and the beginning of a state are kept', (t) => {
  const name = fc.stringMatching(/^[a-z0-9-]{1,60}$/);
  t.notThrows(() => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(name, name, name), { maxLength: 6 }),
        fc.integer({ min: 80, max: 200 }),
        (names, width) => {
          const containers = names.map(([namespace, pod, container], index) => ({
            ...exampleContainer,
            namespace,
            pod,
            container,
            over: index % 2 === 0,
            bypassBytes: index * GIB,
          }));
          const view: View = { ...exampleView, containers };
          for (const line of topLines(view, { sort: 'memory', processes: true, width }))
            if (line.length > width) throw new Error(`${line.length} of ${width}: ${line}`);
        },
      ),
    );
  });
  const long = {
    ...exampleContainer,
    namespace: 'a-namespace-of-some-length',
    pod: 'and-a-pod-with-a-hash-7c9f',
    over: true,
  };
  const view = { ...exampleView, assigned: [], foreign: [], containers: [{ ...long, bypassBytes: GIB }] };
  const line = userLines(view, BY_CARD)[1] ?? '';
  t.regex(line, /^ {2}0 {2}…-hash-7c9f\/main {2}.* OVER, BYPASS \d+…$/);
  t.is(usersOf(view)[0]?.name, 'a-namespace-of-some-length/and-a-pod-with-a-hash-7c9f/main');
});

test('a card says what it holds, draws, how warm it is, and what is wrong with it', (t) => {
  const lines = topLines(exampleView, BY_CARD);
  t.is(lines[0], 'driver 580.65.06, mode enforce, sorted by card');
  t.regex(lines[2] ?? '', /^GPU {2}MODEL +USED\/USABLE MiB {2}BUSY {2}TEMP +POWER {2}IN USE BY {2}FAULT$/);
  t.regex(lines[3] ?? '', /^ {2}0 {2}NVIDIA L4 +6144\/24064 +40% +41C +31\/72W +1$/);
  t.regex(lines[4] ?? '', /^ {2}1 {2}.*odd.* +6144\/24576 +- +- +- +1 {2}XID 119$/);
});
