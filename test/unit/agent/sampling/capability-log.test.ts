// What the driver does not tell of a GPU, in words, and when they are said.
import test from 'ava';
import { createCapabilityLog, missingCapabilities } from '../../../../src/agent/sampling/capability-log.ts';
import type { SampledGpu } from '../../../../src/agent/sampling/sample.ts';
import { gpu, sampleOf } from '../node.ts';

const WHOLE: Partial<SampledGpu> = {
  utilizationPercent: 0,
  eccUncorrectedVolatile: 0,
  powerMilliwatts: 1,
  powerLimitMilliwatts: 1,
  pcieReceivedBytes: 0,
  nvlinkReceivedBytes: 0,
  reportsXids: true,
};
const without = (...names: readonly (keyof SampledGpu)[]): SampledGpu =>
  Object.fromEntries(
    Object.entries(gpu(0, WHOLE)).filter(([name]) => !names.some((one) => one === name)),
  ) as SampledGpu;

test('of a GPU that tells all nothing is said, nor of one that is lost or has it in instances', (t) => {
  t.deepEqual(missingCapabilities(without()), []);
  t.deepEqual(missingCapabilities({ ...without('totalBytes'), healthy: false }), []);
  t.deepEqual(missingCapabilities({ ...without('totalBytes', 'hasProcessUtilization'), migEnabled: true }), []);
});

test('a GPU of which nobody knows whether MIG divides it is named so', (t) => {
  t.regex(missingCapabilities({ ...without(), migModeUnknown: true }).join(), /^whether MIG divides it: /);
});

const CASES: readonly [names: readonly (keyof SampledGpu)[], says: RegExp][] = [
  [['totalBytes'], /^how much memory it has: /],
  [['hasProcessUtilization'], /^how much compute each process uses: /],
  [['utilizationPercent'], /^how busy it is$/],
  [['eccUncorrectedVolatile'], /^errors of its memory: /],
  [['powerMilliwatts'], /^what power it draws$/],
  [['powerLimitMilliwatts'], /^its power limit$/],
  [['pcieReceivedBytes', 'nvlinkReceivedBytes'], /^what goes over its links$/],
  [['reportsXids'], /^its Xids: /],
];
for (const [names, says] of CASES) {
  test(`what is missing is named: ${names.join(', ')}`, (t) => {
    const words = missingCapabilities(without(...names));
    t.is(words.length, 1);
    t.regex(words[0] ?? '', says);
  });
}

test('who uses a GPU is not told where any list of them is not, but for one that the driver has not', (t) => {
  const of = (processLists: readonly string[], failedProcessLists?: readonly string[]) =>
    missingCapabilities({ ...without(), processLists, ...(failedProcessLists && { failedProcessLists }) });
  for (const words of [of(['graphics']), of(['compute', 'mps'], ['graphics']), of(['compute'], ['mps'])])
    t.regex(words.join('; '), /^which processes use it: [^;]+$/);
  t.deepEqual(of(['compute']), []);
});

test('a GPU without NVLink has its links', (t) => {
  t.deepEqual(missingCapabilities(without('nvlinkReceivedBytes')), []);
});

test('it is said once, and not of what fails for some samples', (t) => {
  const said: string[] = [];
  const { see } = createCapabilityLog((text) => said.push(text));
  const [whole, silent] = [sampleOf([without()], []), sampleOf([without('hasProcessUtilization')], [])];
  for (let turn = 0; turn < 5; turn += 1) {
    for (let sample = 0; sample < 9; sample += 1) see(silent);
    see(whole);
  }
  t.deepEqual(said, []);
  for (let sample = 0; sample < 50; sample += 1) see(silent);
  t.is(said.length, 1);
  t.regex(said[0] ?? '', /^GPU-0: the driver does not tell how much compute each process uses: /);
});
