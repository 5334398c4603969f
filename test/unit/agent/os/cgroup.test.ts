// Every shape of /proc/PID/cgroup that runtimes in use write, and shapes that tenants could try.
import test from 'ava';
import fc from 'fast-check';
import { isInGroup, knownOwnerOf, ownerOf, tenantGroup, unifiedPath } from '../../../../src/agent/os/cgroup.ts';

const UID = '0f3c1c4e-77aa-4c2f-9f3b-2b5d0c9a1e77';
const UNDERSCORED = UID.replaceAll('-', '_');
const STATIC = '4d1e2a7b9c0f4e5d8a6b3c2d1e0f9a8b';
const OUTER_UID = 'aaaaaaaa-1111-4111-8111-aaaaaaaaaaaa';
const ID = 'c0ffee'.padEnd(64, '0123456789abcdef');
const OTHER = 'deadbeef'.repeat(8);
const SLICE = `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${UNDERSCORED}.slice`;

type Expected = { readonly containerId?: string; readonly podUid?: string };
const POD: Expected = { containerId: ID, podUid: UID };
const BARE: Expected = { containerId: ID };
const NO_CONTAINER: Expected = {};

const SHAPES: [shape: string, text: string, expected: Expected][] = [
  ['v1, cgroupfs, burstable', `11:memory:/kubepods/burstable/pod${UID}/${ID}`, POD],
  ['v1, cgroupfs, guaranteed', `11:memory:/kubepods/pod${UID}/${ID}`, POD],
  ['v1, cgroupfs, CRI-O', `4:memory:/kubepods/besteffort/pod${UID}/crio-${ID}`, POD],
  ['v1, controllers that share a hierarchy', `3:cpu,cpuacct:/kubepods/pod${UID}/${ID}`, POD],
  ['v1, named hierarchy only', `1:name=systemd:/kubepods/pod${UID}/${ID}`, POD],
  ['v2, systemd, containerd', `0::${SLICE}/cri-containerd-${ID}.scope`, POD],
  ['v2, systemd, Docker by cri-dockerd', `0::${SLICE}/docker-${ID}.scope`, POD],
  ['v2, systemd, CRI-O', `0::${SLICE}/crio-${ID}.scope`, POD],
  ['v2, systemd, guaranteed', `0::/kubepods.slice/kubepods-pod${UNDERSCORED}.slice/cri-containerd-${ID}.scope`, POD],
  [
    'v2, systemd, best effort',
    `0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod${UNDERSCORED}.slice/cri-containerd-${ID}.scope`,
    POD,
  ],
  ['v2, cgroupfs, as k3s has it', `0::/kubepods/besteffort/pod${UID}/${ID}`, POD],
  ['v2, CRI-O with crun', `0::${SLICE}/crio-${ID}.scope/container`, POD],
  ["CRI-O's monitor is not the workload", `0::${SLICE}/crio-conmon-${ID}.scope`, { podUid: UID }],
  [
    'drivers that do not match',
    `0::/system.slice/containerd.service/kubepods-burstable-pod${UNDERSCORED}.slice:cri-containerd:${ID}`,
    POD,
  ],
  [
    'kind',
    `0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod${UNDERSCORED}.slice/cri-containerd-${ID}.scope`,
    POD,
  ],
  [
    'kind, old: the node itself is a container',
    `9:pids:/docker/${OTHER}/kubelet/kubepods/burstable/pod${UID}/${ID}`,
    POD,
  ],
  [
    'a cluster in a pod of a cluster',
    `0::/kubepods/pod${OUTER_UID}/${OTHER}/kubelet/kubepods/burstable/pod${UID}/${ID}`,
    POD,
  ],
  ['Docker in a container of a pod', `0::${SLICE}/cri-containerd-${ID}.scope/docker/${OTHER}`, POD],
  ['systemd in a container of a pod', `0::${SLICE}/cri-containerd-${ID}.scope/system.slice/foo.service`, POD],
  ['an init scope in a container of a pod', `0::${SLICE}/cri-containerd-${ID}.scope/init.scope`, POD],
  [
    'read from within a cgroup namespace',
    `0::/../../kubepods-burstable-pod${UNDERSCORED}.slice/cri-containerd-${ID}.scope`,
    POD,
  ],
  ['a sibling in the own pod: no pod is named', `0::/../cri-containerd-${ID}.scope`, BARE],
  ['the own group of a cgroup namespace', '0::/', NO_CONTAINER],
  ['static pod, cgroupfs', `0::/kubepods/burstable/pod${STATIC}/${ID}`, { containerId: ID, podUid: STATIC }],
  [
    'static pod, systemd',
    `0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${STATIC}.slice/cri-containerd-${ID}.scope`,
    { containerId: ID, podUid: STATIC },
  ],
  ['the pod level alone, as a sandboxed runtime has it', `0::${SLICE}`, { podUid: UID }],
  ['plain Docker, v1', `8:memory:/docker/${ID}`, BARE],
  ['plain Docker, v2', `0::/system.slice/docker-${ID}.scope`, BARE],
  ['plain containerd', `0::/default/${ID}`, BARE],
  ['podman, crun', `0::/machine.slice/libpod-${ID}.scope/container`, BARE],
  [
    'podman, rootless',
    `0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-${ID}.scope/container`,
    BARE,
  ],
  ["podman's monitor and container differ", `0::/machine.slice/libpod-${ID}.scope`, BARE],
  ['a service of the host', '0::/system.slice/sshd.service', NO_CONTAINER],
  ['a session of the host', '0::/user.slice/user-0.slice/session-1.scope', NO_CONTAINER],
  ['a zombie', `0::${SLICE}/cri-containerd-${ID}.scope (deleted)`, POD],
  [
    'hybrid: the unified line points at the runtime',
    `0::/system.slice/containerd.service\n12:memory:/kubepods/pod${UID}/${ID}\n1:name=systemd:/`,
    POD,
  ],
  [
    'hybrid: some controllers are not used',
    `5:devices:/\n4:memory:/\n3:pids:/kubepods/pod${UID}/${ID}\n0::/system.slice`,
    POD,
  ],
  ['all of v1, as a kubelet has it', `2:freezer:/kubepods/pod${UID}/${ID}\n1:cpu:/kubepods/pod${UID}/${ID}\n`, POD],
  [
    'controllers name two containers: memory counts before the others',
    `0::/docker/${OTHER}\n5:freezer:/docker/${OTHER}\n3:cpu:/docker/${OTHER}\n9:memory:/docker/${ID}`,
    BARE,
  ],
  ['controllers disagree: a pod beats a bare id', `9:memory:/docker/${OTHER}\n0::/kubepods/pod${UID}/${ID}`, POD],
];

test('container and pod are found in every shape that runtimes write', (t) => {
  for (const [shape, text, expected] of SHAPES) {
    const { path, ...found } = ownerOf(text);
    t.deepEqual(found, expected, shape);
    t.true(text.includes(path), shape);
  }
});

test('names that only look like a pod or a container identify none', (t) => {
  const odd: [string, string, Expected][] = [
    ['an empty text', '', NO_CONTAINER],
    ['no lines of the kind', 'hello\n::\n0:memory\n', NO_CONTAINER],
    ['63 digits', `0::/docker/${ID.slice(1)}`, NO_CONTAINER],
    ['65 digits', `0::/docker/0${ID}`, NO_CONTAINER],
    ['capital digits', `0::/docker/${ID.toUpperCase()}`, NO_CONTAINER],
    ['an id with something behind it', `0::/docker/${ID}.service`, NO_CONTAINER],
    ['a prefix that no runtime has', `0::/docker/X9-${ID}`, NO_CONTAINER],
    ['a pod without a uid', '0::/kubepods/pod/x', NO_CONTAINER],
    ['a name that ends in pod and a uid', `0::/kubepods/xpod${UID}/y`, NO_CONTAINER],
    ['a uid with something behind it', `0::/kubepods/pod${UID}x/y`, NO_CONTAINER],
    ['an id before the pod is not the container of the pod', `0::/docker/${OTHER}/kubepods/pod${UID}`, { podUid: UID }],
    ['only the end of a path can be deleted', `0::/docker (deleted)/${ID}`, BARE],
    ['slashes and dots', `0::////..//./docker//${ID}///`, BARE],
    ['a hundred levels below the container', `0::/docker/${ID}${'/x'.repeat(100)}`, BARE],
    ['a line that is cut', `0::/docker/${ID.slice(0, 40)}`, NO_CONTAINER],
  ];
  for (const [what, text, expected] of odd) {
    const { path: _, ...found } = ownerOf(text);
    t.deepEqual(found, expected, what);
  }
});

test('a tenant cannot leave its container by the names of cgroups that it creates', (t) => {
  // Every character but "/" and a line feed may be in such a name.
  for (const name of [
    'a\rb',
    '\u2028',
    'a\r0::',
    ' (deleted)',
    `docker-${OTHER}.scope`,
    OTHER,
    'x:y:z',
    '..',
    '\u0000',
  ]) {
    const { path: _, ...found } = ownerOf(`0::${SLICE}/cri-containerd-${ID}.scope/${name}\n`);
    t.deepEqual(found, POD, JSON.stringify(name));
  }
});

test('no text throws, and a match is a container ID and a pod UID', (t) => {
  const part = fc.constantFrom(
    '0::',
    '1:memory:',
    '/',
    'pod',
    UID,
    UNDERSCORED,
    ID,
    'crio-',
    '.scope',
    '.slice',
    '\n',
    '\r',
  );
  const text = fc.array(fc.oneof(part, fc.string({ maxLength: 4 })), { maxLength: 30 }).map((parts) => parts.join(''));
  t.notThrows(() => {
    fc.assert(
      fc.property(text, (written) => {
        const { containerId, podUid } = ownerOf(written);
        const id = containerId === undefined || (/^[0-9a-f]{64}$/.test(containerId) && written.includes(containerId));
        const uid = podUid === undefined || /^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})$/.test(podUid);
        if (!id || !uid) throw new Error(JSON.stringify({ containerId, podUid }));
      }),
      { numRuns: 3000 },
    );
  });
});

test('a process is in a group by the whole path of the unified hierarchy, or below it', (t) => {
  const group = `/user.slice/run/${tenantGroup('abc123')}`;
  const cases: [text: string, inside: boolean][] = [
    [`0::${group}\n`, true],
    [`0::${group}/deeper/still\n`, true],
    [`12:memory:/elsewhere\n0::${group}\n`, true],
    [`0::${group}4\n`, false],
    [`0::/user.slice/run\n`, false],
    [`0::/${tenantGroup('abc123')}\n`, false],
    [`0::/evil${group}\n`, false],
    [`1:name=systemd:${group}\n`, false],
    [`0::${group}\rx\n`, false],
    [`0::/evil\u2028${group}\n`, false],
    [`1:name=systemd:/evil\r0::${group}\n0::/evil\n`, false],
    ['', false],
  ];
  for (const [text, inside] of cases) t.is(isInGroup(text, group), inside, JSON.stringify(text));
});

test('the unified path is that of the line that begins with 0::', (t) => {
  t.is(unifiedPath('0::/\n'), '/');
  t.is(unifiedPath('3:cpu:/a\n0::/b\n'), '/b');
  t.is(unifiedPath('0::/a:b c'), '/a:b c');
  t.is(unifiedPath('10::/a\n'), undefined);
  t.is(unifiedPath(''), undefined);
});

test('a known container counts before cgroups nested in it, whatever their names', (t) => {
  const pods = new Map([
    [ID, UID],
    [OTHER, OUTER_UID],
  ]);
  const own = `${SLICE}/cri-containerd-${ID}.scope`;
  const podOf = (known: readonly string[]) => (id: string) => (known.includes(id) ? pods.get(id) : undefined);
  const cases: [what: string, text: string, known: string[], expected: Expected][] = [
    ['a group named after a container of another pod', `0::${own}/pod${OUTER_UID}/${OTHER}`, [ID, OTHER], POD],
    ['that other one is not known', `0::${own}/pod${OUTER_UID}/${OTHER}`, [ID], POD],
    [
      'a cluster in a pod: the outer one is of another cluster',
      `0::/kubepods/pod${OUTER_UID}/${OTHER}/pod${UID}/${ID}`,
      [ID],
      POD,
    ],
    ['known of another pod than the path has it', `0::${own}/pod${OUTER_UID}/${ID}`, [ID], POD],
    ['no container is known', `0::${own}`, [], POD],
    ['no pod', `0::/docker/${ID}`, [ID], BARE],
  ];
  for (const [what, text, known, expected] of cases) {
    const { path: _, ...found } = knownOwnerOf(text, podOf(known));
    t.deepEqual(found, expected, what);
  }
});
