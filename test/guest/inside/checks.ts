// Checks on cgroup v2 alone: attribution of processes to containers, and killing all processes of a container or a
// plain grant. The code is the agent's own; cgroups and processes are real.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { type Owner, ownerOfProcess } from '../../../src/agent/attribution/attribute.ts';
import { createContainerIndex } from '../../../src/agent/attribution/container-index.ts';
import {
  findTargets,
  groupOf,
  killTargets,
  removeGroup as removeGrantGroup,
} from '../../../src/agent/enforcement/targets.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import { loadNative } from '../../../src/agent/os/addon.ts';
import { containerGroup, ownerOf, tenantGroup, unifiedMount } from '../../../src/agent/os/cgroup.ts';
import {
  cgroupOf,
  isPopulated,
  MOUNT,
  makeGroup,
  makeInner,
  removeGroup,
  sleepIn,
  start,
  startIn,
  until,
} from './groups.ts';
import { HOME, UNSHARE } from './report.ts';
import { stopsRogueRun } from './rogue-run.ts';

export type Check = { readonly name: string; readonly run: () => Promise<void> | void };

const UID = '0f3c1c4e-77aa-4c2f-9f3b-2b5d0c9a1e77';
const OTHER_UID = 'aaaaaaaa-1111-4111-8111-aaaaaaaaaaaa';
const STATIC = '4d1e2a7b9c0f4e5d8a6b3c2d1e0f9a8b';
const ID = 'c0ffee'.padEnd(64, '0123456789abcdef');
const SIDE = 'deadbeef'.repeat(8);
const under = (uid: string) => uid.replaceAll('-', '_');
const slice = (uid: string) => `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${under(uid)}.slice`;

type Shape = { readonly name: string; readonly group: string; readonly id?: string; readonly uid?: string };

/** Cgroup paths of kubelets and runtimes on such hosts; each must be attributed to this container of this pod. */
const SHAPES: readonly Shape[] = [
  { name: 'systemd, containerd, burstable', group: `${slice(UID)}/cri-containerd-${ID}.scope`, id: ID, uid: UID },
  {
    name: 'systemd, containerd, guaranteed',
    group: `kubepods.slice/kubepods-pod${under(UID)}.slice/cri-containerd-${ID}.scope`,
    id: ID,
    uid: UID,
  },
  { name: 'systemd, CRI-O with crun', group: `${slice(UID)}/crio-${ID}.scope/container`, id: ID, uid: UID },
  { name: "systemd, CRI-O's monitor", group: `${slice(UID)}/crio-conmon-${ID}.scope`, uid: UID },
  { name: 'systemd, a static pod', group: `${slice(STATIC)}/cri-containerd-${ID}.scope`, id: ID, uid: STATIC },
  { name: 'cgroupfs, best effort', group: `kubepods/besteffort/pod${UID}/${ID}`, id: ID, uid: UID },
  { name: 'cgroupfs, guaranteed', group: `kubepods/pod${UID}/${ID}`, id: ID, uid: UID },
  {
    name: 'drivers that do not match',
    group: `system.slice/containerd.service/kubepods-burstable-pod${under(UID)}.slice:cri-containerd:${ID}`,
    id: ID,
    uid: UID,
  },
  {
    name: 'kind',
    group: `kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod${under(UID)}.slice/cri-containerd-${ID}.scope`,
    id: ID,
    uid: UID,
  },
  {
    name: 'Docker in a container of a pod',
    group: `${slice(UID)}/cri-containerd-${ID}.scope/docker/${SIDE}`,
    id: ID,
    uid: UID,
  },
  { name: 'plain Docker', group: `system.slice/docker-${ID}.scope`, id: ID },
  { name: 'a service of the host', group: 'system.slice/sshd.service' },
];

/** Loaded when a check runs, because this list is also read outside of the guest. */
const native = () => loadNative();

const readProcess = (pid: number) => {
  const facts = native().readProcess(pid);
  assert.ok(facts, `process ${pid} is there`);
  return facts;
};

const shapes: readonly Check[] = SHAPES.map(({ name, group, id, uid }) => ({
  name: `a process is attributed to its container and its pod: ${name}`,
  async run() {
    makeGroup(group);
    const child = await sleepIn(group);
    const { cgroup } = readProcess(child.pid);
    assert.equal(cgroup, cgroupOf(child.pid), 'the native reader sees what is there');
    const { containerId, podUid, path } = ownerOf(cgroup);
    assert.deepEqual({ containerId, podUid, path }, { containerId: id, podUid: uid, path: `/${group}` });
    await removeGroup(group.split('/')[0] ?? '');
  },
}));

const podGrant = (container: string): Grant => ({
  id: 'abc123',
  namespace: 'team',
  pod: 'train',
  container,
  createdMs: 0,
  gpus: [],
  isolateMemory: true,
  owner: { podUid: UID, target: '/volume', kind: 'app' },
});

/** Two containers of one pod, as the runtime reports them. */
const book = createContainerIndex((id) =>
  id === ID ? { podUid: UID, container: 'main' } : id === SIDE ? { podUid: UID, container: 'side' } : undefined,
);

/** Forks as long as one of its processes lives: signals to single processes always come too late for one of them. */
const STORM = 's() { s & }; while :; do s; sleep 1; done';

export const CHECKS: readonly Check[] = [
  {
    name: 'the guest has cgroup v2 only, with every controller that a kubelet needs',
    run() {
      const mounts = readFileSync('/proc/self/mountinfo', 'utf8')
        .split('\n')
        .filter((line) => / - cgroup2? /.test(line));
      assert.equal(mounts.length, 1);
      assert.equal(unifiedMount(), MOUNT);
      const controllers = readFileSync(join(MOUNT, 'cgroup.controllers'), 'utf8').trim().split(' ');
      for (const name of ['cpuset', 'cpu', 'io', 'memory', 'pids']) assert.ok(controllers.includes(name), name);
    },
  },
  ...shapes,
  {
    name: 'a zombie whose cgroup was removed is still attributed',
    async run() {
      const group = `kubepods/pod${UID}/${ID}`;
      makeGroup(group);
      // Its parent does not wait for it: a zombie keeps the name of its cgroup, which may be removed.
      const parent = start(`sh -c 'echo $$ > ${MOUNT}/${group}/cgroup.procs; echo $$' & exec sleep 1000`);
      await until(() => /^\d+\n/.test(parent.said()), 'its PID is printed');
      const pid = Number(parent.said());
      await until(() => native().readProcess(pid)?.ended === true, 'it is a zombie');
      await until(() => !isPopulated(group), 'its group is empty');
      rmdirSync(join(MOUNT, group));
      const { containerId, podUid, path } = ownerOf(cgroupOf(pid));
      assert.match(path, / \(deleted\)$/);
      assert.deepEqual({ containerId, podUid }, { containerId: ID, podUid: UID });
      process.kill(parent.pid, 'SIGKILL');
      await removeGroup('kubepods');
    },
  },
  {
    name: 'pods are recognized from inside a cgroup namespace, without wrong paths',
    async run() {
      const group = `${slice(UID)}/cri-containerd-${ID}.scope`;
      makeGroup(group);
      const child = await sleepIn(group);
      const own = 'agent.slice';
      makeGroup(own);
      const reader = await startIn(own, `exec ${UNSHARE} -C sh -c 'cat /proc/${child.pid}/cgroup; sleep 1000'`);
      await until(() => /^0::.*\n/m.test(reader.said()) || !reader.isAlive(), 'it has read');
      const text = reader.said().replace('in\n', '');
      assert.match(text, /^0::\/\.\.\//);
      assert.deepEqual({ ...ownerOf(text), path: '' }, { containerId: ID, podUid: UID, path: '' });
      assert.equal(containerGroup(text, ID), undefined);
      await removeGroup(own);
      await removeGroup('kubepods.slice');
    },
  },
  {
    name: 'a process belongs to a grant, a container without a grant, or the host',
    async run() {
      const groups = {
        main: `${slice(UID)}/cri-containerd-${ID}.scope`,
        side: `${slice(UID)}/cri-containerd-${SIDE}.scope`,
        foreign: `${slice(OTHER_UID)}/cri-containerd-${'ab'.repeat(32)}.scope`,
        starting: `${slice(UID)}/cri-containerd-${'cd'.repeat(32)}.scope`,
        host: 'system.slice/sshd.service',
      };
      const owners: Record<string, Owner> = {};
      const pods = {
        nameOf: book.nameOf,
        grantOf: (podUid: string, container: string) => (podUid === UID && container === 'main' ? 'abc123' : undefined),
        grantsOf: (podUid: string) => (podUid === UID ? ['pod1'] : []),
      };
      for (const [name, group] of Object.entries(groups)) {
        makeGroup(group);
        const { pid = 0 } = await sleepIn(group);
        const { startTicks, command, cgroup } = readProcess(pid);
        const sampled = { pid, startTicks, command, cgroup, ancestors: [1], gpus: [] };
        const facts = { roots: [], grantIds: new Set(['abc123']), known: new Map(), pods, isAlive: () => false };
        owners[name] = ownerOfProcess(sampled, facts);
      }
      assert.deepEqual(owners, {
        main: { kind: 'grant', id: 'abc123' },
        side: { kind: 'container', containerId: SIDE, podUid: UID },
        foreign: { kind: 'container', containerId: 'ab'.repeat(32), podUid: OTHER_UID },
        starting: { kind: 'unknown', reason: 'container_not_known' },
        host: { kind: 'host' },
      });
      for (const top of ['kubepods.slice', 'system.slice']) await removeGroup(top);
    },
  },
  ...[`${slice(UID)}/cri-containerd-ID.scope`, `kubepods/burstable/pod${UID}/ID`].map(
    (shape): Check => ({
      name: `a fork bomb is killed with its nested cgroups, and nothing else: ${shape.includes('slice') ? 'systemd' : 'cgroupfs'}`,
      async run() {
        const [main, side] = [shape.replace('ID', ID), shape.replace('ID', SIDE)];
        const next = shape.replaceAll(UID, OTHER_UID).replaceAll(under(UID), under(OTHER_UID)).replace('ID', ID);
        for (const group of [main, side, next]) makeGroup(group);
        // If a container has created cgroups of its own, no process is in the upper one.
        for (const inner of ['init', 'docker/x']) makeInner(`${main}/${inner}`);
        await sleepIn(`${main}/init`);
        await startIn(`${main}/docker/x`, STORM);
        const spared = [await sleepIn(side), await sleepIn(next)];
        const targets = findTargets(podGrant('main'), native(), [], book);
        assert.ok(targets.length >= 2, `${targets.length} processes`);
        assert.ok(
          targets.every(({ cgroup }) => cgroup.includes(main)),
          'all of the container, none of another',
        );
        const { hit, whole } = killTargets(podGrant('main'), targets, {
          native: native(),
          mount: MOUNT,
          containers: book,
        });
        assert.ok(whole);
        assert.ok(hit.every(({ result }) => result === 'sent'));
        await until(() => !isPopulated(main), 'the cgroup is empty');
        assert.deepEqual(findTargets(podGrant('main'), native(), [], book), []);
        assert.deepEqual(
          spared.map((one) => one.isAlive()),
          [true, true],
        );
        await removeGroup(shape.split('/')[0] ?? '');
      },
    }),
  ),
  {
    name: "a plain grant's cgroup is killed and removed, and the granting process lives",
    async run() {
      makeGroup('user.slice/session');
      const owner = await startIn('user.slice/session', 'exec sleep 1000');
      const { startTicks, cgroup } = readProcess(owner.pid);
      const path = cgroup.trim().replace('0::', '');
      const grant: Grant = { ...podGrant('x'), owner: { pid: owner.pid, startTicks, cgroup: path } };
      const group = join(path, tenantGroup(grant.id));
      makeInner(group);
      await startIn(group, STORM);
      const targets = findTargets(grant, native(), []);
      const [first] = targets;
      assert.ok(first);
      assert.equal(groupOf(grant, first, MOUNT), join(MOUNT, group));
      assert.ok(killTargets(grant, targets, { native: native(), mount: MOUNT }).whole);
      await until(() => !isPopulated(group), 'the cgroup is empty');
      removeGrantGroup(grant, MOUNT);
      assert.throws(() => isPopulated(group), { code: 'ENOENT' });
      assert.ok(owner.isAlive());
      await removeGroup('user.slice');
    },
  },
  {
    name: 'a process whose first thread ended is missed by cgroup.kill and killed anyway',
    async run() {
      const group = `kubepods/pod${UID}/${ID}`;
      makeGroup(group);
      // A pipe with an open writer, so that the reader waits for input.
      const words = '/tmp/words';
      execFileSync('/bin/sh', ['-c', `mkfifo ${words}`]);
      const child = await startIn(group, `exec ${HOME}/native/build/tests/client leaderless:libc.so.6 <>${words}`);
      await until(() => native().readProcess(child.pid)?.leaderless === true, 'its first thread has ended');
      const targets = findTargets(podGrant('main'), native(), [], book);
      assert.deepEqual(
        targets.map(({ pid, leaderless }) => [pid, leaderless]),
        [[child.pid, true]],
      );
      const { hit, whole } = killTargets(podGrant('main'), targets, {
        native: native(),
        mount: MOUNT,
        containers: book,
      });
      assert.deepEqual([hit.map(({ result }) => result), whole], [['sent'], false]);
      await until(() => !isPopulated(group), 'the cgroup is empty');
      await removeGroup('kubepods');
    },
  },
  {
    name: 'a process gets a signal only while it is in the cgroup where it was found',
    async run() {
      makeGroup('a');
      makeGroup('b');
      const child = await sleepIn('a');
      const { startTicks, cgroup } = readProcess(child.pid);
      execFileSync('/bin/sh', ['-c', `echo ${child.pid} > ${MOUNT}/b/cgroup.procs`]);
      assert.equal(native().signalExact(child.pid, startTicks, cgroup, 9), 'moved');
      assert.ok(child.isAlive());
      assert.equal(native().signalExact(child.pid, startTicks, cgroupOf(child.pid), 9), 'sent');
      await child.ended;
      for (const group of ['a', 'b']) await removeGroup(group);
    },
  },
  { name: 'the agent kills the whole cgroup of a `cotenant run` over its grant and removes it', run: stopsRogueRun },
];
