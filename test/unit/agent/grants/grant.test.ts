// Grants as they are stored: read back as written, and refused whenever the text is not exactly that of a grant.
import test from 'ava';
import fc from 'fast-check';
import {
  formatGrant,
  freeName,
  GRANT_ID,
  type Grant,
  groupOfGrant,
  parseGrant,
  plainName,
} from '../../../../src/agent/grants/grant.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { grantOf } from '../node.ts';

const stored = (): Record<string, unknown> =>
  JSON.parse(formatGrant(grantOf('abc123', 512, [0, 1]))) as Record<string, unknown>;
const wrong = (text: string): string => {
  const found = parseGrant(text);
  return 'wrong' in found ? found.wrong : 'taken';
};
const without = (name: string) => JSON.stringify({ ...stored(), [name]: undefined });
const put = (more: Record<string, unknown>) => JSON.stringify({ ...stored(), ...more });

test('a grant is read back as it was stored', (t) => {
  const count = fc.integer({ min: 0, max: 2 ** 40 });
  const grant = fc.record<Grant>({
    id: fc.stringMatching(/^[a-z0-9]{6,32}$/),
    namespace: fc.string(),
    pod: fc.string(),
    container: fc.string(),
    createdMs: count,
    gpus: fc.array(
      fc.record({
        gpuUuid: fc.string(),
        memoryBytes: count,
        limitBytes: count,
        coresPercent: fc.integer({ min: 0, max: 100 }),
      }),
      { minLength: 1, maxLength: 4 },
    ),
    isolateMemory: fc.boolean(),
    owner: fc.oneof(
      fc.record({ pid: count, startTicks: count, cgroup: fc.string() }),
      fc.record({
        podUid: fc.uuid(),
        target: fc.constantFrom('/var/lib/kubelet/pods/x/volumes/kubernetes.io~csi/cotenant/mount', '/a'),
        kind: fc.constantFrom('init' as const, 'sidecar' as const, 'app' as const),
      }),
    ),
  });
  t.notThrows(() => {
    fc.assert(
      fc.property(grant, (written) => {
        const read = parseGrant(formatGrant(written));
        if (JSON.stringify(read) !== JSON.stringify(written)) throw new Error(JSON.stringify(read));
      }),
      { numRuns: 500 },
    );
  });
});

test('a text that is not exactly a grant is refused with what is wrong', (t) => {
  const owner = { pid: 1000, startTicks: 5, cgroup: '' };
  const ofPod = { podUid: '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11', target: '/a', kind: 'app' };
  const gpu = { gpuUuid: 'GPU-0', memoryBytes: 512 * MIB, limitBytes: 512 * MIB, coresPercent: 0 };
  const cases: [text: string, wrong: string][] = [
    ['null', 'not a grant of version 1'],
    ['[]', 'not a grant of version 1'],
    ['7', 'not a grant of version 1'],
    [without('version'), 'not a grant of version 1'],
    [put({ version: 2 }), 'not a grant of version 1'],
    [put({ version: '1' }), 'not a grant of version 1'],
    [without('id'), 'a name is missing'],
    [put({ id: 'abc12' }), 'a name is missing'],
    [put({ id: '../../etc' }), 'a name is missing'],
    [put({ id: 'abc123\n' }), 'a name is missing'],
    [put({ pod: 7 }), 'a name is missing'],
    [without('gpus'), 'its GPUs are not GPUs'],
    [put({ gpus: [] }), 'its GPUs are not GPUs'],
    [put({ gpus: [null] }), 'its GPUs are not GPUs'],
    [put({ gpus: { 0: gpu } }), 'its GPUs are not GPUs'],
    [put({ gpus: [{ ...gpu, limitBytes: undefined }] }), 'its GPUs are not GPUs'],
    [put({ gpus: [{ ...gpu, memoryBytes: '512' }] }), 'its GPUs are not GPUs'],
    [put({ gpus: [{ ...gpu, memoryBytes: -1 }] }), 'its GPUs are not GPUs'],
    [put({ gpus: [{ ...gpu, limitBytes: 1.5 }] }), 'its GPUs are not GPUs'],
    [put({ gpus: [{ ...gpu, limitBytes: 2 ** 60 }] }), 'its GPUs are not GPUs'],
    [put({ gpus: [gpu, { ...gpu, gpuUuid: 5 }] }), 'its GPUs are not GPUs'],
    [without('isolateMemory'), 'isolateMemory is missing'],
    [put({ isolateMemory: 'true' }), 'isolateMemory is missing'],
    [put({ isolateMemory: null }), 'isolateMemory is missing'],
    [without('createdMs'), 'its time is missing'],
    [without('owner'), 'its owner is missing'],
    [put({ owner: { ...owner, pid: '1000' } }), 'its owner is missing'],
    [put({ owner: { ...owner, pid: -1 } }), 'its owner is missing'],
    [put({ owner: { podUid: 'me', target: '/a', kind: 'app' } }), 'its owner is missing'],
    [put({ owner: { ...ofPod, target: 'a' } }), 'its owner is missing'],
    [put({ owner: { ...ofPod, target: '/a/../b' } }), 'its owner is missing'],
    [put({ owner: { ...ofPod, kind: 'other' } }), 'its owner is missing'],
    [put({ owner: { ...owner, startTicks: undefined } }), 'its owner is missing'],
    [put({ owner: { ...owner, cgroup: undefined } }), 'its owner is missing'],
  ];
  for (const [text, expected] of cases) t.is(wrong(text), expected, text);
  t.is(wrong(put({})), 'taken');
});

test('a file cut anywhere is refused', (t) => {
  const text = formatGrant(grantOf('abc123', 512)).trimEnd();
  for (let length = 0; length < text.length; length++) t.regex(wrong(text.slice(0, length)), /SyntaxError/);
});

test('names become texts that may stand in labels, file names and messages', (t) => {
  const cases: [string, string][] = [
    ['trainer-7.b_2', 'trainer-7.b_2'],
    ['my job', 'my-job'],
    ['a/../../b', 'a-..-..-b'],
    ['"}\nevil{x="', '-evil-x-'],
    ['\u0000\u001b[31m', '-31m'],
    ['ÄÖÜ', '-'],
    ['', 'unnamed'],
    ['x'.repeat(100), 'x'.repeat(63)],
  ];
  for (const [text, expected] of cases) t.is(plainName(text), expected);
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        if (!/^[A-Za-z0-9._-]{1,63}$/.test(plainName(text))) throw new Error(plainName(text));
      }),
    );
  });
});

test("a grant's own group lies below that of the process that it was given to, where there is one", (t) => {
  const at = (cgroup: string) => groupOfGrant({ id: 'abc123', owner: { pid: 1, startTicks: 1, cgroup } });
  t.is(at('/user.slice/a.scope'), '/user.slice/a.scope/cotenant-abc123');
  t.is(at('/'), '/cotenant-abc123');
  t.is(at(''), undefined);
  t.regex('abc123', GRANT_ID);
});

test('a name in use gets the first number that is free, and stays short enough for a label', (t) => {
  const taken = new Set(['train', 'train-2', 'x'.repeat(63)]);
  const has = (name: string) => taken.has(name);
  t.is(freeName('other', has), 'other');
  t.is(freeName('train', has), 'train-3');
  t.is(freeName('x'.repeat(63), has), `${'x'.repeat(58)}-2`);
});
