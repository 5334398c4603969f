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
  return found.ok ? 'accepted' : found.error;
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
        if (!read.ok || JSON.stringify(read.value) !== JSON.stringify(written)) throw new Error(JSON.stringify(read));
      }),
      { numRuns: 500 },
    );
  });
});

test('a text that is not a grant is refused with the wrong field', (t) => {
  const owner = { pid: 1000, startTicks: 5, cgroup: '' };
  const ofPod = { podUid: '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11', target: '/a', kind: 'app' };
  const gpu = { gpuUuid: 'GPU-0', memoryBytes: 512 * MIB, limitBytes: 512 * MIB, coresPercent: 0 };
  const cases: [text: string, wrong: string][] = [
    ['null', 'version: is missing'],
    ['[]', 'version: is missing'],
    ['7', 'version: is missing'],
    [without('version'), 'version: is missing'],
    [put({ version: 2 }), 'version: 2 is not 1'],
    [put({ version: '1' }), 'version: "1" is not 1'],
    [without('id'), 'id: is missing'],
    [put({ id: 'abc12' }), 'id: "abc12" is not the id of a grant'],
    [put({ id: '../../etc' }), 'id: "../../etc" is not the id of a grant'],
    [put({ id: 'abc123\n' }), 'id: "abc123\\n" is not the id of a grant'],
    [put({ pod: 7 }), 'pod: 7 is not a text'],
    [without('gpus'), 'gpus: is missing'],
    [put({ gpus: [] }), 'gpus: a list of 0 is not a list of at least 1'],
    [put({ gpus: [null] }), 'gpus[0]: null is not an object'],
    [put({ gpus: { 0: gpu } }), 'gpus: an object is not a list'],
    [put({ gpus: [{ ...gpu, limitBytes: undefined }] }), 'gpus[0].limitBytes: is missing'],
    [put({ gpus: [{ ...gpu, memoryBytes: '512' }] }), 'gpus[0].memoryBytes: "512" is not a whole number from 0'],
    [put({ gpus: [{ ...gpu, memoryBytes: -1 }] }), 'gpus[0].memoryBytes: -1 is not a whole number from 0'],
    [put({ gpus: [{ ...gpu, limitBytes: 1.5 }] }), 'gpus[0].limitBytes: 1.5 is not a whole number from 0'],
    [
      put({ gpus: [{ ...gpu, limitBytes: 2 ** 60 }] }),
      'gpus[0].limitBytes: 1152921504606847000 is not a whole number from 0',
    ],
    [put({ gpus: [gpu, { ...gpu, gpuUuid: 5 }] }), 'gpus[1].gpuUuid: 5 is not a text'],
    [without('isolateMemory'), 'isolateMemory: is missing'],
    [put({ isolateMemory: 'true' }), 'isolateMemory: "true" is not true or false'],
    [put({ isolateMemory: null }), 'isolateMemory: null is not true or false'],
    [without('createdMs'), 'createdMs: is missing'],
    [without('owner'), 'owner: is missing'],
    [put({ owner: { ...owner, pid: '1000' } }), 'owner.pid: "1000" is not a whole number from 0'],
    [put({ owner: { ...owner, pid: -1 } }), 'owner.pid: -1 is not a whole number from 0'],
    [put({ owner: { podUid: 'me', target: '/a', kind: 'app' } }), 'owner.podUid: "me" is not the UID of a pod'],
    [put({ owner: { ...ofPod, target: 'a' } }), 'owner.target: "a" is not an absolute path'],
    [put({ owner: { ...ofPod, target: '/a/../b' } }), 'owner.target: "/a/../b" is not an absolute path'],
    [put({ owner: { ...ofPod, kind: 'other' } }), 'owner.kind: "other" is not one of init, sidecar, app'],
    [put({ owner: { ...owner, startTicks: undefined } }), 'owner.startTicks: is missing'],
    [put({ owner: { ...owner, cgroup: undefined } }), 'owner.cgroup: is missing'],
  ];
  for (const [text, expected] of cases) t.is(wrong(text), expected, text);
  t.is(wrong(put({})), 'accepted');
});

test('a file cut anywhere is refused', (t) => {
  const text = formatGrant(grantOf('abc123', 512)).trimEnd();
  for (let length = 0; length < text.length; length++) t.regex(wrong(text.slice(0, length)), /^it is not JSON$/);
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

test("a process grant's cgroup lies below that of its owner", (t) => {
  const at = (cgroup: string) => groupOfGrant({ id: 'abc123', owner: { pid: 1, startTicks: 1, cgroup } });
  t.is(at('/user.slice/a.scope'), '/user.slice/a.scope/cotenant-abc123');
  t.is(at('/'), '/cotenant-abc123');
  t.is(at(''), undefined);
  t.regex('abc123', GRANT_ID);
});

test('a name in use gets the first free number and stays short enough for a label', (t) => {
  const taken = new Set(['train', 'train-2', 'x'.repeat(63)]);
  const has = (name: string) => taken.has(name);
  t.is(freeName('other', has), 'other');
  t.is(freeName('train', has), 'train-3');
  t.is(freeName('x'.repeat(63), has), `${'x'.repeat(58)}-2`);
});
