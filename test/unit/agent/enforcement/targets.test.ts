// Whom a stop hits, found in the real /proc: the grant's tree and what was seen of it, never its owner, never a
// stranger.
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { WHOLE_POD } from '../../../../src/agent/attribution/container-index.ts';
import {
  findTargets,
  groupOf,
  killTargets,
  removeGroup,
  signalTargets,
  type Target,
} from '../../../../src/agent/enforcement/targets.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import type { Native, ProcessFacts } from '../../../../src/agent/os/addon.ts';
import { unifiedMount } from '../../../../src/agent/os/cgroup.ts';
import { grantOf } from '../node.ts';

/** /proc as the addon reads it, so that these tests need no build; signals are written down instead of sent. */
function reader() {
  const signaled: unknown[][] = [];
  const readProcess = (pid: number): ProcessFacts | undefined => {
    try {
      const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
      const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
      return {
        ended: fields[0] === 'Z',
        leaderless: false,
        parent: Number(fields[1]),
        startTicks: Number(fields[19]),
        command: text.slice(text.indexOf('(') + 1, text.lastIndexOf(')')),
        cgroup: readFileSync(`/proc/${pid}/cgroup`, 'utf8'),
        pidNamespace: 0,
        namespacePid: pid,
      };
    } catch {
      return undefined;
    }
  };
  const signalExact = (...call: unknown[]) => {
    signaled.push(call);
    return call[0] === 1 ? 'refused: no' : 'sent';
  };
  return { native: { readProcess, signalExact } as unknown as Native, readProcess, signaled };
}

/** A shell with two children of its own; resolves to the pids, shell first. */
async function family(t: ExecutionContext): Promise<{ shell: ChildProcess; pids: number[] }> {
  const shell = spawn('/bin/sh', ['-c', 'sleep 600 & echo $!; sleep 600 & echo $!; echo $$; wait'], {
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true,
  });
  t.teardown(() => {
    process.kill(-(shell.pid ?? 0), 'SIGKILL');
  });
  const lines: number[] = [];
  for await (const line of createInterface({ input: shell.stdout })) {
    lines.push(Number(line));
    if (lines.length === 3) break;
  }
  return { shell, pids: [lines[2] ?? 0, lines[0] ?? 0, lines[1] ?? 0] };
}
const pidsOf = (targets: readonly Target[]) => targets.map(({ pid }) => pid).toSorted((a, b) => a - b);

test('targets are all descendants of the owner, without the owner', async (t) => {
  const { native, readProcess } = reader();
  const { pids } = await family(t);
  const [root = 0, ...children] = pids;
  const grant = grantOf('abc123', 1, [0], {
    owner: { pid: root, startTicks: readProcess(root)?.startTicks ?? 0, cgroup: '' },
  });
  const targets = findTargets(grant, native, []);
  t.deepEqual(
    pidsOf(targets),
    children.toSorted((a, b) => a - b),
  );
  for (const target of targets) {
    const { startTicks, command, cgroup } = target;
    t.like(readProcess(target.pid), { startTicks, command, cgroup });
  }
});

test('a reused PID of the owner has no targets below it', async (t) => {
  const { native, readProcess } = reader();
  const { pids } = await family(t);
  const [root = 0] = pids;
  const start = readProcess(root)?.startTicks ?? 0;
  const grant = (startTicks: number): Grant =>
    grantOf('abc123', 1, [0], { owner: { pid: root, startTicks, cgroup: '' } });
  t.is(findTargets(grant(start), native, []).length, 2);
  t.deepEqual(findTargets(grant(start - 1), native, []), []);
  t.deepEqual(findTargets(grant(start + 1), native, []), []);
});

test('targets are processes that were sampled with its memory, and their children', async (t) => {
  const { native, readProcess } = reader();
  const { pids } = await family(t);
  const [root = 0, child = 0] = pids;
  const gone = grantOf('abc123', 1, [0], { owner: { pid: 2 ** 22, startTicks: 1, cgroup: '' } });
  const seen = (pid: number, later = 0): Target => {
    const facts = readProcess(pid);
    return { pid, startTicks: (facts?.startTicks ?? 0) + later, command: '', cgroup: '' };
  };
  t.deepEqual(findTargets(gone, native, []), []);
  t.deepEqual(pidsOf(findTargets(gone, native, [seen(child)])), [child]);
  t.deepEqual(
    pidsOf(findTargets(gone, native, [seen(root)])),
    pids.toSorted((a, b) => a - b),
  );
  t.deepEqual(findTargets(gone, native, [seen(root, 1)]), [], 'a pid that was reused since');
});

test('targets are all processes of its cgroup, never the agent itself', async (t) => {
  const { native, readProcess } = reader();
  const { pids } = await family(t);
  const [, child = 0] = pids;
  const grant = grantOf('abc123', 1, [0], { owner: { pid: 2 ** 22, startTicks: 1, cgroup: '/a' } });
  const inGroup = (...members: number[]): Native => ({
    ...native,
    readProcess: (pid) => {
      const facts = readProcess(pid);
      return facts && { ...facts, cgroup: members.includes(pid) ? '0::/a/cotenant-abc123' : '0::/a' };
    },
  });
  t.deepEqual(pidsOf(findTargets(grant, inGroup(child), [])), [child]);
  const withAgent = pidsOf(findTargets(grant, inGroup(child, process.pid), []));
  t.true(withAgent.includes(child));
  t.false(withAgent.includes(process.pid));
});

test('each process is signaled by PID, start time and cgroup, and the result is kept', (t) => {
  const { native, signaled } = reader();
  const target = (pid: number): Target => ({ pid, startTicks: pid * 10, command: 'x', cgroup: `0::/${pid}` });
  t.deepEqual(signalTargets([target(1), target(2)], native, 9), [
    { ...target(1), result: 'refused: no' },
    { ...target(2), result: 'sent' },
  ]);
  t.deepEqual(signaled, [
    [1, 10, '0::/1', 9],
    [2, 20, '0::/2', 9],
  ]);
});

/** Groups of a made-up unified hierarchy, with the file by which the kernel kills them. */
function groupsIn(t: ExecutionContext, ...groups: readonly string[]) {
  const mount = mkdtempSync(join(tmpdir(), 'cotenant-groups-'));
  t.teardown(() => rmSync(mount, { recursive: true, force: true }));
  for (const group of groups) {
    mkdirSync(join(mount, group), { recursive: true });
    writeFileSync(join(mount, group, 'cgroup.kill'), '');
  }
  const killed = () => groups.filter((group) => readFileSync(join(mount, group, 'cgroup.kill'), 'utf8') === '1');
  return { mount, killed };
}

const at = (pid: number, cgroup: string): Target => ({ pid, startTicks: pid * 10, command: 'x', cgroup });

test('a cgroup is killed as a whole where possible; processes outside are signaled', (t) => {
  const { mount, killed } = groupsIn(t, 'a/cotenant-abc123', 'a');
  const grant = grantOf('abc123', 1, [0], { owner: { pid: 1, startTicks: 1, cgroup: '/a' } });
  const [inside, deeper] = [at(2, '0::/a/cotenant-abc123\n'), at(3, '0::/a/cotenant-abc123/x\n')];
  const outside = at(4, '0::/a\n');
  const { native, signaled } = reader();
  t.deepEqual(killTargets(grant, [inside, deeper], { native, mount }), {
    hit: [inside, deeper].map((target) => ({ ...target, result: 'sent' })),
    whole: true,
  });
  t.deepEqual(killed(), ['a/cotenant-abc123']);
  t.deepEqual(signaled, []);
  t.false(killTargets(grant, [inside, outside], { native, mount }).whole);
  t.deepEqual(signaled, [[4, 40, '0::/a\n', 9]]);
  // The kernel passes over whose first thread has ended, and it may have had a child meanwhile.
  const passedOver: Target = { ...deeper, leaderless: true };
  t.false(killTargets(grant, [inside, passedOver], { native, mount }).whole);
  t.deepEqual(signaled.slice(1), [[3, 30, deeper.cgroup, 9]]);

  t.is(groupOf(grant, inside, undefined), undefined, 'no unified hierarchy');
  t.is(groupOf(grantOf('abc123', 1), inside, mount), undefined, 'the grant has no group');
  rmSync(join(mount, 'a/cotenant-abc123/cgroup.kill'));
  t.is(groupOf(grant, inside, mount), undefined, 'a kernel without cgroup.kill');
});

test('the processes of a cgroup that cannot be killed are signaled one by one', (t) => {
  const { mount } = groupsIn(t, 'a/cotenant-abc123');
  rmSync(join(mount, 'a/cotenant-abc123/cgroup.kill'));
  mkdirSync(join(mount, 'a/cotenant-abc123/cgroup.kill')); // cannot be written to
  const grant = grantOf('abc123', 1, [0], { owner: { pid: 1, startTicks: 1, cgroup: '/a' } });
  const { native, signaled } = reader();
  t.like(killTargets(grant, [at(2, '0::/a/cotenant-abc123\n')], { native, mount }), {
    hit: [{ result: 'sent' }],
    whole: false,
  });
  t.is(signaled.length, 1);
});

test("a pod's container is killed by its own cgroup, however deep its processes are", (t) => {
  const podUid = '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11';
  const [main, side] = ['aa'.repeat(32), 'bb'.repeat(32)] as [string, string];
  const pod = `kubepods.slice/kubepods-pod${podUid.replaceAll('-', '_')}.slice`;
  const [own, other] = [`${pod}/cri-containerd-${main}.scope`, `${pod}/cri-containerd-${side}.scope`];
  const { mount, killed } = groupsIn(t, own, `${own}/docker/${side}`, other, pod);
  const grant = grantOf('abc123', 1, [0], { container: 'main', owner: { podUid, target: '/t', kind: 'app' } });
  const known = { nameOf: (id: string) => ({ podUid, container: id === main ? 'main' : 'side' }) };
  const { native, signaled } = reader();
  const inside = at(2, `0::/${own}/docker/${side}\n`);
  t.true(killTargets(grant, [inside], { native, mount, containers: known }).whole);
  t.deepEqual(killed(), [own]);
  // It was in the container once, and is with the neighbor now.
  t.false(killTargets(grant, [at(3, `0::/${other}\n`)], { native, mount, containers: known }).whole);
  t.deepEqual(killed(), [own]);
  t.deepEqual(
    signaled.map(([pid]) => pid),
    [3],
  );
  for (const [what, target, names] of [
    ['its container is not known yet', inside, { nameOf: () => undefined }],
    [
      'a host that keeps containers elsewhere',
      at(4, `4:memory:/kubepods/pod${podUid}/${main}\n0::/system.slice\n`),
      known,
    ],
    ['a path that is not from the root of the mount', at(5, `0::/../../${own}\n`), known],
  ] as const) {
    t.is(groupOf(grant, target, mount, names), undefined, what);
  }
});

test('an empty cgroup is removed; one that is in use or was never made is left alone', (t) => {
  const mount = mkdtempSync(join(tmpdir(), 'cotenant-groups-'));
  t.teardown(() => rmSync(mount, { recursive: true, force: true }));
  const grant = grantOf('abc123', 1, [0], { owner: { pid: 1, startTicks: 1, cgroup: '/' } });
  const folder = join(mount, 'cotenant-abc123');
  mkdirSync(join(folder, 'in-use'), { recursive: true });
  removeGroup(grant, mount);
  t.notThrows(() => mkdirSync(join(folder, 'still-there')));
  rmSync(folder, { recursive: true });
  mkdirSync(folder);
  removeGroup(grant, mount);
  t.throws(() => readFileSync(folder), { code: 'ENOENT' });
  t.notThrows(() => removeGroup(grant, mount));
  t.notThrows(() => removeGroup(grant, undefined));
});

test('the mount of the unified cgroup hierarchy is found', (t) => {
  const mount = unifiedMount();
  const mounted = readFileSync('/proc/self/mountinfo', 'utf8').includes(' - cgroup2 ');
  t.is(mount !== undefined, mounted);
  if (mount !== undefined) t.notThrows(() => readFileSync(join(mount, 'cgroup.controllers')));
});

test('a stop signals all of one container, its first process first, and no other', async (t) => {
  const { native, readProcess } = reader();
  const { pids } = await family(t);
  const [root = 0, child = 0, other = 0] = pids;
  const podUid = '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11';
  const [main, side] = ['aa'.repeat(32), 'bb'.repeat(32)] as [string, string];
  const groups = new Map([
    [root, `4:memory:/kubepods/pod${podUid}/${main}`],
    [child, `4:memory:/kubepods/pod${podUid}/${main}/deeper`],
    [other, `4:memory:/kubepods/pod${podUid}/${side}`],
  ]);
  const placed: Native = {
    ...native,
    readProcess: (pid) => {
      const facts = readProcess(pid);
      const first = pid === child ? 1 : pid; // the child is its container's first process
      return facts && { ...facts, namespacePid: first, cgroup: groups.get(pid) ?? facts.cgroup };
    },
  };
  const grant = grantOf('abc123', 1, [0], { container: 'main', owner: { podUid, target: '/t', kind: 'app' } });
  const known = {
    nameOf: (id: string) => ({ podUid, container: id === main ? 'main' : 'side' }),
  };
  t.deepEqual(
    findTargets(grant, placed, [], known).map(({ pid }) => pid),
    [child, root],
  );
  t.deepEqual(findTargets(grant, placed, []), [], 'its container is not known yet');
  const moved: Native = {
    ...placed,
    readProcess: (pid) => {
      const facts = placed.readProcess(pid);
      return facts && (pid === root ? { ...facts, cgroup: '0::/elsewhere' } : facts);
    },
  };
  const seen = { pid: root, startTicks: readProcess(root)?.startTicks ?? 0, command: '', cgroup: '' };
  t.true(
    findTargets(grant, moved, [seen], known).some(({ pid }) => pid === root),
    'seen in it before it moved away',
  );
});

test('a sandbox process is signaled only for the grant that the sample gives it', async (t) => {
  const { native, readProcess } = reader();
  const { pids } = await family(t);
  const [sandbox = 0, helper = 0, other = 0] = pids;
  const podUid = '2f0a3c1e-9f4b-4a52-8a3e-5f1d7c9b0e11';
  const [whole, side] = ['aa'.repeat(32), 'bb'.repeat(32)] as [string, string];
  const inside = `0::/kubepods/burstable/pod${podUid}/`;
  const groups = new Map([
    [sandbox, `${inside}${whole}`],
    [helper, `${inside}${whole}`],
    [other, `${inside}${side}`],
  ]);
  const placed: Native = {
    ...native,
    readProcess: (pid) => {
      const facts = readProcess(pid);
      return facts && { ...facts, cgroup: groups.get(pid) ?? facts.cgroup };
    },
  };
  const grant = grantOf('abc123', 1, [0], { container: 'main', owner: { podUid, target: '/t', kind: 'app' } });
  const known = { nameOf: (id: string) => ({ podUid, container: id === whole ? WHOLE_POD : 'side' }) };
  const seen = [sandbox, other].map((pid) => ({
    pid,
    startTicks: readProcess(pid)?.startTicks ?? 0,
    command: '',
    cgroup: '',
  }));
  t.deepEqual(pidsOf(findTargets(grant, placed, seen, known)), [sandbox]);
  t.deepEqual(findTargets(grant, placed, [], known), [], 'its container is not known yet');
});
