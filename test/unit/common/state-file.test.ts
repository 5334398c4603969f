// Files of the state folder: what is found there, and that nothing of it is lost, whatever it is and whenever the agent
// ends.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import * as v from 'valibot';
import { COMPUTE_FORMAT } from '../../../src/agent/compute/policy-file.ts';
import { FAULTS_FORMAT } from '../../../src/agent/isolation/gpu-faults.ts';
import { WITHOUT_GPUS_FORMAT } from '../../../src/agent/kubelet/missed-containers.ts';
import { err, ok } from '../../../src/common/result.ts';
import { formatState, openStateFile, parseState, type StateFormat } from '../../../src/common/state-file.ts';
import { temporaryFolder } from '../../support/native/node.ts';
import { loggerTo } from '../../support/product/logger.ts';

type Count = { readonly count: number };
const FORMAT: StateFormat<Count> = {
  version: 2,
  schema: v.object({ count: v.number() }),
};

function open(t: ExecutionContext, text?: string) {
  const folder = temporaryFolder(t);
  const path = join(folder, 'count.json');
  if (text !== undefined) writeFileSync(path, text);
  const warnings: string[] = [];
  const again = () => openStateFile(path, FORMAT, { lost: 'it begins anew', log: loggerTo(warnings) });
  return { folder, path, warnings, again, file: again() };
}

test('the next process finds the written state, and no other file is left', (t) => {
  const { folder, file, again, warnings } = open(t);
  t.is(file.found, undefined);
  for (const count of [1, 2]) file.write({ count });
  t.deepEqual(again().found, { count: 2 });
  t.deepEqual(readdirSync(folder), ['count.json']);
  t.deepEqual(warnings, []);
});

const UNREADABLE: readonly (readonly [string, RegExp])[] = [
  ['', /so it begins anew: it is not JSON; the next write keeps it as \S+\/count\.json\.unread$/],
  ['{"version":2,"cou', /so it begins anew: it is not JSON;/],
  ['{"version":1,"count":7}', /so it begins anew: version: 1 is not 2;/],
  ['{"version":"2","count":7}', /so it begins anew: version: "2" is not 2;/],
  ['[]', /so it begins anew: version: is missing;/],
  ['null', /so it begins anew: version: is missing;/],
  ['{"version":2,"count":"7"}', /so it begins anew: count: "7" is not a number;/],
];
for (const [text, says] of UNREADABLE) {
  test(`an unreadable file is reported and put aside: ${text}`, (t) => {
    const { path, file, warnings, again } = open(t, text);
    t.is(file.found, undefined);
    t.is(warnings.length, 1);
    t.true(warnings[0]?.startsWith(`${path} is ignored, `));
    t.regex(warnings[0] ?? '', says);
    t.is(readFileSync(path, 'utf8'), text, 'it stays where it is until then');
    t.false(existsSync(`${path}.unread`));
    for (const count of [1, 2]) file.write({ count });
    t.is(readFileSync(`${path}.unread`, 'utf8'), text);
    t.deepEqual(again().found, { count: 2 });
    t.is(warnings.length, 1);
  });
}

test('an entry that is no file is reported and put aside', (t) => {
  const { path, warnings, file } = open(t);
  t.is(warnings.length, 0);
  file.write({ count: 1 });
  const folder = join(temporaryFolder(t), 'count.json');
  mkdirSync(folder);
  const other = openStateFile(folder, FORMAT, { lost: 'it begins anew', log: loggerTo(warnings) });
  t.regex(warnings[0] ?? '', /EISDIR/);
  other.write({ count: 3 });
  t.is(readFileSync(folder, 'utf8'), readFileSync(path, 'utf8').replace('1', '3'));
});

test('where it cannot be kept it throws, and the file is as it was', (t) => {
  const { path, file, again } = open(t);
  file.write({ count: 1 });
  mkdirSync(`${path}.new`);
  t.throws(() => file.write({ count: 2 }), { code: 'EISDIR' });
  t.deepEqual(again().found, { count: 1 });
});

test('the files that agents have written until now are read as they are', (t) => {
  const compute = '{\n  "version": 1,\n  "policy": "soft",\n  "gpus": {\n    "A": "fixed"\n  }\n}\n';
  t.deepEqual(parseState(COMPUTE_FORMAT, compute), ok({ policy: 'soft', gpus: { A: 'fixed' } }));
  t.is(formatState(COMPUTE_FORMAT, { policy: 'soft', gpus: { A: 'fixed' } }), compute);
  const fault = {
    gpuUuid: 'GPU-0',
    xid: 79,
    atMs: 5,
    bootId: 'b',
    driverVersion: '580',
    lost: true,
    counts: { ecc: 1 },
  };
  const faults = `${JSON.stringify({ version: 1, faults: [fault] }, null, 2)}\n`;
  t.deepEqual(parseState(FAULTS_FORMAT, faults), ok({ faults: [fault] }) as never);
  t.is(formatState(FAULTS_FORMAT, { faults: [fault] } as never), faults);
  t.deepEqual(parseState(FAULTS_FORMAT, '{"version":1,"faults":[{}]}'), err('faults[0].gpuUuid: is missing'));
  const without = `${JSON.stringify({ version: 2, reported: ['0a1b'], usedGpu: ['2c'] }, null, 2)}\n`;
  t.deepEqual(parseState(WITHOUT_GPUS_FORMAT, without), ok({ reported: ['0a1b'], usedGpu: ['2c'] }));
  t.is(formatState(WITHOUT_GPUS_FORMAT, { reported: ['0a1b'], usedGpu: ['2c'] }), without);
  const wrong: readonly (readonly [unknown, string])[] = [
    ['0a1b', ': "0a1b" is not a list'],
    [[7], '[0]: 7 is not a text'],
    [['x'.repeat(300)], `[0]: "${'x'.repeat(80)}..." is not a container id`],
    [Array(1001).fill('a'), ': a list of 1001 is not a list of 0 to 1000'],
  ];
  for (const [no, why] of wrong) {
    const readOf = (value: object) => parseState(WITHOUT_GPUS_FORMAT, JSON.stringify({ version: 2, ...value }));
    t.deepEqual(readOf({ reported: no }), err(`reported${why}`));
    t.deepEqual(readOf({ reported: [], usedGpu: no }), err(`usedGpu${why}`));
  }
});
