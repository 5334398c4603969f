// What the driver does not tell of a GPU, in words, and when they are said.
import test from 'ava';
import { createUntold, untoldOf } from '../../../../src/agent/sampling/capability-log.ts';
import type { SampledGpu } from '../../../../src/agent/sampling/sample.ts';
import { gpu, sampleOf } from '../node.ts';

const WHOLE: Partial<SampledGpu> = {
  utilizationPercent: 0,
  eccUncorrectedVolatile: 0,
  powerMw: 1,
  powerLimitMw: 1,
  pcieReceivedBytes: 0,
  nvlinkReceivedBytes: 0,
  tellsEvents: true,
};
const without = (...names: readonly (keyof SampledGpu)[]): SampledGpu =>
  Object.fromEntries(
    Object.entries(gpu(0, WHOLE)).filter(([name]) => !names.some((one) => one === name)),
  ) as SampledGpu;

test('of a GPU that tells all nothing is said, nor of one that is lost or has it in instances', (t) => {
  t.deepEqual(untoldOf(without()), []);
  t.deepEqual(untoldOf({ ...without('totalBytes'), healthy: false }), []);
  t.deepEqual(untoldOf({ ...without('totalBytes', 'useTold'), divided: true }), []);
});

test('a GPU of which nobody knows whether MIG divides it is named so', (t) => {
  t.regex(untoldOf({ ...without(), divisionUntold: true }).join(), /^whether MIG divides it: /);
});

const CASES: readonly [names: readonly (keyof SampledGpu)[], says: RegExp][] = [
  [['totalBytes'], /^how much memory it has: /],
  [['useTold'], /^how much compute each process uses: /],
  [['utilizationPercent'], /^how busy it is$/],
  [['eccUncorrectedVolatile'], /^errors of its memory: /],
  [['powerMw'], /^what power it draws$/],
  [['powerLimitMw'], /^its power limit$/],
  [['pcieReceivedBytes', 'nvlinkReceivedBytes'], /^what goes over its links$/],
  [['tellsEvents'], /^its Xids: /],
];
for (const [names, says] of CASES) {
  test(`what is missing is named: ${names.join(', ')}`, (t) => {
    const words = untoldOf(without(...names));
    t.is(words.length, 1);
    t.regex(words[0] ?? '', says);
  });
}

test('who uses a GPU is not told where any list of them is not, but for one that the driver has not', (t) => {
  const of = (lists: readonly string[], failedLists?: readonly string[]) =>
    untoldOf({ ...without(), lists, ...(failedLists && { failedLists }) });
  for (const words of [of(['graphics']), of(['compute', 'mps'], ['graphics']), of(['compute'], ['mps'])])
    t.regex(words.join('; '), /^which processes use it: [^;]+$/);
  t.deepEqual(of(['compute']), []);
});

test('a GPU without NVLink has its links', (t) => {
  t.deepEqual(untoldOf(without('nvlinkReceivedBytes')), []);
});

test('it is said once, and not of what fails for some samples', (t) => {
  const said: string[] = [];
  const { see } = createUntold((text) => said.push(text));
  const [whole, silent] = [sampleOf([without()], []), sampleOf([without('useTold')], [])];
  for (let turn = 0; turn < 5; turn += 1) {
    for (let sample = 0; sample < 9; sample += 1) see(silent);
    see(whole);
  }
  t.deepEqual(said, []);
  for (let sample = 0; sample < 50; sample += 1) see(silent);
  t.is(said.length, 1);
  t.regex(said[0] ?? '', /^GPU-0: the driver does not tell how much compute each process uses: /);
});
