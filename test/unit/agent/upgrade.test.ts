// State files that an agent of commit 286300f wrote (test/fixtures/upgrade/state): the agent of today goes on from
// them.
import { cpSync, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { openComputeStore } from '../../../src/agent/compute/policy-file.ts';
import { openAudit } from '../../../src/agent/enforcement/audit-log.ts';
import { openNodeMode } from '../../../src/agent/enforcement/node-mode.ts';
import { restore } from '../../../src/agent/enforcement/resume.ts';
import { parseGrant, podGrantId } from '../../../src/agent/grants/grant.ts';
import { CANARY_FORMAT } from '../../../src/agent/isolation/canary/cleanup.ts';
import { openGpuFaults } from '../../../src/agent/isolation/gpu-faults.ts';
import { parseState } from '../../../src/common/state-file.ts';
import { temporaryFolder } from '../../support/native/node.ts';
import { loggerTo } from '../../support/product/logger.ts';

const FIXTURES = join(import.meta.dirname, '../../fixtures/upgrade/state');
const GPU = 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000';
const POD_UID = '2b1f6f3e-6c1f-4b0e-9d2e-0a4f8c1d2e3f';

const fail = (t: ExecutionContext) => loggerTo({ push: (text) => t.fail(text) });
function stateFolder(t: ExecutionContext): string {
  const folder = temporaryFolder(t);
  cpSync(FIXTURES, folder, { recursive: true });
  return folder;
}

test('a grant whose GPUs were stored under the key cards is adopted in full', (t) => {
  const gpus = [
    { gpuUuid: GPU, memoryBytes: 2 ** 30, limitBytes: 2 ** 30, coresPercent: 25 },
    {
      gpuUuid: 'GPU-51a0c07e-4a27-4551-8d21-6e1005000001',
      memoryBytes: 2 ** 30,
      limitBytes: 2 ** 30,
      coresPercent: 25,
      heldBytes: 2 ** 31,
      coresLimitPercent: 50,
    },
  ];
  const both = {
    createdMs: 1_764_000_000_000,
    gpus,
    isolateMemory: true,
    compute: { priority: 'high', weight: 3 },
    computeOverride: '{"version":1}',
    enforcement: { mode: 'report', by: 'administrator' },
  };
  const read = (name: string) => parseGrant(readFileSync(join(FIXTURES, 'grants', name), 'utf8'));
  const plain = { id: '0123456789ab', namespace: 'local', pod: 'trainer', container: 'python3' };
  const owner = { pid: 4242, startTicks: 99, cgroup: '/user.slice/session-1.scope' };
  t.deepEqual(read('plain.json'), { ok: true, value: { ...both, ...plain, owner } } as never);
  const target = `/var/lib/kubelet/pods/${POD_UID}/volumes/kubernetes.io~csi/cotenant/mount`;
  const ofPod = { id: podGrantId(POD_UID, 'main'), namespace: 'team', pod: 'train', container: 'main' };
  t.deepEqual(read('pod.json'), {
    ok: true,
    value: { ...both, ...ofPod, owner: { podUid: POD_UID, target, kind: 'app' } },
  } as never);
});

test('compute policies that were set hold, and are written under the new key', (t) => {
  const folder = stateFolder(t);
  const store = openComputeStore(folder, fail(t));
  const expected = { policy: 'soft', gpus: { [GPU]: 'native' }, highCapPercent: 80 } as const;
  t.deepEqual(store.get(), expected);
  store.put(store.get());
  t.deepEqual(JSON.parse(readFileSync(join(folder, 'compute.json'), 'utf8')), { version: 1, ...expected });
});

test('a GPU with an Xid stays unhealthy, by the file under its old name', (t) => {
  const folder = stateFolder(t);
  const options = { stateFolder: folder, unhealthyXids: 'default', log: fail(t) };
  const faults = openGpuFaults({ ...options, bootId: 'boot-1' });
  t.regex(faults.textOf(GPU) ?? '', /^Xid 79 at 2025-11-24T16:00:00.000Z/);
  t.deepEqual(faults.of(GPU)?.counts, { energyMillijoules: 5 });
  t.false(existsSync(join(folder, 'card-faults.json')));
  t.true(existsSync(join(folder, 'gpu-faults.json')));
});

test('limits of a canary and the mode of the node are read', (t) => {
  const folder = stateFolder(t);
  t.deepEqual(parseState(CANARY_FORMAT, readFileSync(join(folder, 'canary-limits.json'), 'utf8')), {
    ok: true,
    value: { limits: [{ gpuUuid: GPU, folder: '/sys/fs/cgroup/cotenant-canary-77', hardBytes: 67_108_864 }] },
  });
  const mode = openNodeMode(
    { stateFolder: folder, configured: 'enforce', hears: true },
    { ...fail(t), info: () => {} },
  );
  t.is(mode.mode(), 'report');
});

test('enforcement continues from an old audit log and from an interrupted stop', (t) => {
  const audit = openAudit(stateFolder(t), fail(t));
  t.deepEqual(
    audit.recent().map(({ action, result, refusal, detail }) => [action, result, refusal, detail]),
    [
      ['warn', 'done', undefined, undefined],
      ['refuse', 'refused', 'other', 'the data is 9000 ms old'],
      ['kill', 'sent', undefined, undefined],
      ['kill', 'none-left', undefined, undefined],
    ],
  );
  t.like(audit.interrupted, { action: 'kill', result: 'interrupted', pod: 'train' });
  const records = [...audit.steps(), ...(audit.interrupted ? [audit.interrupted] : [])];
  const { states, stops } = restore(records, { dateMs: 1_764_000_005_000, steadyMs: 100_000 });
  t.deepEqual(
    stops.map(({ atMs, namespace }) => [atMs, namespace]),
    [
      [97_000, 'team'],
      [99_000, 'team'],
    ],
  );
  t.like(states.get(podGrantId(POD_UID, 'main'))?.ladder, { rung: 'killed', unsure: true, stoppedAtMs: 99_000 });
});
