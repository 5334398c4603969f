// The page on the way of a pod: its manifest, annotations and sentences are those of the code, its commands are there.
import test from 'ava';
import { parse as parseYaml } from 'yaml';
import { usableState } from '../../../src/agent/allocation/driver-state.ts';
import { type NodeGpu, verifyGrant } from '../../../src/agent/allocation/verify-grant.ts';
import { describe } from '../../../src/agent/enforcement/action-record.ts';
import { OWN_KIND } from '../../../src/agent/kubelet/cdi/split-spec.ts';
import { type PodGrant, parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION, OWN_RESOURCES, REQUEST_ANNOTATION, UUIDS_PREFIX } from '../../../src/api/names.ts';
import { inspect } from '../../../src/cli/commands/status/inspect.ts';
import { why } from '../../../src/cli/commands/status/why.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { blocks, quoted, readPage, rowsWith, section } from '../../support/docs.ts';
import { grantOf } from '../agent/node.ts';
import { answerOf, creation } from '../webhook/reviews.ts';

const page = readPage('docs/use/pod-lifecycle.md');
const prose = page.replace(/^```[\s\S]*?^```/gm, '');
const [manifest = ''] = blocks(page, 'yaml');
const [request = '', grant = ''] = blocks(page, 'json').map((text) => text.trim());
const annotations = { [REQUEST_ANNOTATION]: request, [GRANT_ANNOTATION]: grant };
const uuid = /GPU-[0-9a-f-]{36}/.exec(grant)?.[0] ?? '';
const gpu: NodeGpu = {
  gpuUuid: uuid,
  usableBytes: 22_600 * MIB,
  healthy: true,
  granted: { memoryBytes: 0, coresPercent: 0, tenants: 0 },
};

test('the webhook writes the shown record; the agent accepts it with the shown grant', (t) => {
  const { outcome, pod } = answerOf(creation(parseYaml(manifest)));
  t.is(outcome, 'patched');
  const patched = pod as { metadata: { annotations: Record<string, string> }; spec: { schedulerName: string } };
  t.is(patched.metadata.annotations[REQUEST_ANNOTATION], request);
  for (const key of [...Object.keys(patched.metadata.annotations), patched.spec.schedulerName])
    t.true(page.includes(key), key);
  t.deepEqual(verifyGrant(annotations, [gpu]), {
    ok: true,
    grant: (parsePodGrant(grant) as { value: PodGrant }).value,
  });
  for (const key of [...OWN_RESOURCES, GRANT_ANNOTATION, `${UUIDS_PREFIX}main`])
    t.true(quoted(prose).includes(key), key);
  t.true(page.includes(`${OWN_KIND}=${uuid}`));
});

/** What the agent says of pods like that of the page when something is wrong with them. */
function refusals(): readonly string[] {
  const other = (change: object): typeof annotations => ({ ...annotations, ...change });
  const granted = (from: string, to: string) => other({ [GRANT_ANNOTATION]: grant.replace(from, to) });
  const full = { memoryBytes: 22_000 * MIB, coresPercent: 0, tenants: 1 };
  const cases: readonly (readonly [object, NodeGpu | undefined])[] = [
    [other({ [REQUEST_ANNOTATION]: undefined }), gpu],
    [other({ [REQUEST_ANNOTATION]: '{}' }), gpu],
    [other({ [GRANT_ANNOTATION]: undefined }), gpu],
    [other({ [GRANT_ANNOTATION]: '{}' }), gpu],
    [granted('"main"', '"other"'), gpu],
    [granted('"limitBytes":2147483648', '"limitBytes":1'), gpu],
    [annotations, undefined],
    [annotations, { ...gpu, healthy: false }],
    [annotations, { ...gpu, granted: full }],
    [annotations, { ...gpu, granted: { memoryBytes: 0, coresPercent: 80, tenants: 1 } }],
  ];
  const ruled = cases.map(([of, on]) => verifyGrant(of, on === undefined ? [] : [on]));
  return ruled.map((ruling) => (ruling.ok ? 'nothing' : ruling.why));
}

test("the agent's messages on an unpublished volume are on the page", (t) => {
  const rows = rowsWith(
    section(page, '## Where a pod waits, and the message that it shows'),
    'sentence',
    'it may pass',
  );
  t.true(rows.length > 15);
  const documented = rows.flatMap(({ sentence }) => quoted(sentence));
  const driverNotRead = usableState(undefined, false, undefined);
  const said = [...refusals(), ...(driverNotRead.ok ? [] : [driverNotRead.error.refused])];
  for (const sentence of said)
    t.true(
      documented.some((part) => sentence.includes(part)),
      sentence,
    );
});

test('what the page lets the agent say, and the reasons of Events, are in the code', (t) => {
  const agent = [
    'kubelet/csi/publish-pod',
    'allocation/process-grants',
    'allocation/driver-state',
    'allocation/pod-grants',
    'allocation/verify-grant',
    'node',
    'isolation/gpu-checks',
  ];
  const files = [...agent.map((name) => `agent/${name}`), 'api/csi-volume'];
  const source = files.map((name) => readPage(`src/${name}.ts`)).join('\n');
  const rows = rowsWith(
    section(page, '## Where a pod waits, and the message that it shows'),
    'sentence',
    'it may pass',
  );
  for (const sentence of rows.flatMap((row) => quoted(row.sentence))) t.true(source.includes(sentence), sentence);
  const reasons = new Set(quoted(prose).filter((each) => /^GPU[A-Z][a-z]/.test(each)));
  t.is(reasons.size, 3);
  const writers = ['src/cli/daemons/agent.ts', 'src/scheduler/evictions/overcommit-evictor.ts']
    .map(readPage)
    .join('\n');
  for (const reason of reasons) t.true(writers.includes(`'${reason}'`), reason);
});

test('the stop sentence on the page is the one in use', (t) => {
  const [shown = ''] = blocks(section(page, '## 9. A container over its grant is stopped'), 'text');
  const worst = { gpuUuid: uuid, usedBytes: 3000 * MIB, limitBytes: 2048 * MIB, bypassBytes: 2900 * MIB };
  const verdict = { severity: 'hard', reason: 'bypass', overBytes: 952 * MIB, worst } as Parameters<typeof describe>[2];
  const of = { ...grantOf('g', 2048), namespace: 'team', pod: 'trainer', container: 'main' };
  t.is(describe(of, 'kill', verdict), shown.trim());
});

test('the first pod of the front page is one that the webhook makes one with a share', (t) => {
  const [first = ''] = blocks(readPage('README.md'), 'yaml');
  t.like(answerOf(creation(parseYaml(first))), { outcome: 'patched', denial: undefined });
});

test('commands and metrics of the page are there', (t) => {
  const commands = [...page.matchAll(/kubectl cotenant (\w+)/g)].map(([, name = '']) => name);
  t.deepEqual([...new Set(commands)].toSorted(), [inspect.name, why.name]);
  const described = readPage('docs/reference/metrics.md');
  const metrics = [...page.matchAll(/`(cotenant_\w+)`/g)].map(([, name = '']) => name);
  t.true(metrics.length > 2);
  for (const name of metrics) t.true(described.includes(`\`${name}\``), name);
});
