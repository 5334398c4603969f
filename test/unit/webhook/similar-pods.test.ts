// Pods of the same kinds as the reported ones (reported-pods.test.ts), with other inputs: taints, small shares, counts, two
// kinds of GPUs in one pod, schedulers of others, tracing, and Windows.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import type { JsonObject } from '../../../src/common/json.ts';
import { ROOT } from '../../support/docs.ts';
import { answerOf, configured, creation } from './reviews.ts';

/** The chart's own defaults. */
const { configuration: DEFAULTS } = parse(readFileSync(join(ROOT, 'charts/cotenant/values.yaml'), 'utf8')).webhook;
const [GPU, MEMORY, CORES] = ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'] as const;
const ONE = { [MEMORY]: '1Gi' };

/** `c`, `s`, `m`: more of its container, its spec and its metadata; `o`: another container. */
type More = { readonly c?: object; readonly s?: object; readonly m?: object; readonly o?: object };
const pod = (limits: object, { c = {}, s = {}, m = {}, o }: More = {}): JsonObject => ({
  metadata: { name: 'p', ...m },
  spec: {
    ...s,
    containers: [
      { name: 'c', image: 'i', resources: { limits }, ...c },
      ...(o ? [{ name: 'o', image: 'i', ...o }] : []),
    ],
  },
});
const ask = (of: JsonObject, settings: object = {}) => {
  const configuration = configured({ ...DEFAULTS, ...settings });
  const answer = answerOf(creation(of), configuration);
  return { ...answer, again: answer.outcome === 'patched' ? answerOf(creation(answer.pod), configuration).patch : [] };
};

const PLUGIN = "is given by NVIDIA's device plugin, which does not run";
const WINDOWS = 'has no shares of GPUs';
const affinity = (key: string, operator: string, values: string[]) => ({
  affinity: {
    nodeAffinity: {
      requiredDuringSchedulingIgnoredDuringExecution: {
        nodeSelectorTerms: [{ matchExpressions: [{ key, operator, values }] }],
      },
    },
  },
});
const capable = (...add: string[]) => ({ c: { securityContext: { capabilities: { add, drop: ['ALL'] } } } });
const TRACING = { rules: { ...DEFAULTS.rules, allowPtrace: true } };
const [CORES_OF_ONE, MEMORY_OF] = [
  `spec.containers[0].resources.limits["${CORES}"]:`,
  `resources.limits["${MEMORY}"]:`,
];

const REFUSED: Record<string, [pod: JsonObject, said: string, settings?: object]> = {
  'no compute': [pod({ ...ONE, [CORES]: 0 }), `${CORES_OF_ONE} "0" is less than 1`],
  'more compute than a GPU has': [pod({ ...ONE, [CORES]: 101 }), `${CORES_OF_ONE} "101" is more than 100`],
  'compute that two GPUs cannot split': [pod({ [GPU]: 2, [MEMORY]: '2Gi', [CORES]: 101 }), 'write 100 or 102'],
  'memory that three GPUs cannot split': [pod({ [GPU]: 3, [MEMORY]: '1Gi' }), 'write "1023Mi" or "1026Mi"'],
  'more memory than a node has': [pod({ [MEMORY]: '1Ei' }), `${MEMORY_OF} "1Ei" is more than any node has`],
  'no memory of a GPU': [pod({ [GPU]: 1, [MEMORY]: 0 }), `${MEMORY_OF} "0" is not more than 0`],
  'a request that is not the limit': [
    pod({ [MEMORY]: '2Gi' }, { c: { resources: { limits: { [MEMORY]: '2Gi' }, requests: { [MEMORY]: '1Gi' } } } }),
    '"1Gi" is not the limit "2Gi"',
  ],
  'a replica of NVIDIA beside a share': [pod({ ...ONE, 'nvidia.com/gpu.shared': 1 }), PLUGIN],
  'a MIG instance in another container': [
    pod(ONE, { o: { resources: { limits: { 'nvidia.com/mig-1g.10gb': 1 } } } }),
    PLUGIN,
  ],
  'a whole GPU in an init container': [
    pod(ONE, { s: { initContainers: [{ name: 'i', image: 'i', resources: { limits: { 'nvidia.com/gpu': 1 } } }] } }),
    PLUGIN,
  ],
  'a whole GPU among the requests alone': [
    pod(ONE, { c: { resources: { limits: ONE, requests: { ...ONE, 'nvidia.com/gpu': 1 } } } }),
    PLUGIN,
  ],
  "the scheduler of Dask's users": [pod(ONE, { s: { schedulerName: 'dask-user-scheduler' } }), 'does not grant shares'],
  'more than tracing where that is allowed': [
    pod(ONE, capable('SYS_PTRACE', 'SYS_ADMIN')),
    'capabilities.add[1]: "SYS_ADMIN" would let',
    TRACING,
  ],
  'all capabilities where tracing is allowed': [pod(ONE, capable('ALL')), '"ALL" would let', TRACING],
  'Windows by the older label': [pod(ONE, { s: { nodeSelector: { 'beta.kubernetes.io/os': 'windows' } } }), WINDOWS],
  'Windows by the older label in an affinity': [
    pod(ONE, { s: affinity('beta.kubernetes.io/os', 'In', ['windows']) }),
    WINDOWS,
  ],
  'a Windows user of one container': [
    pod(ONE, { c: { securityContext: { windowsOptions: { runAsUserName: 'ContainerUser' } } } }),
    `spec.containers[0].securityContext.windowsOptions: ${WINDOWS}`,
  ],
  'a process of a Windows host': [
    pod(ONE, { s: { securityContext: { windowsOptions: { hostProcess: true, runAsUserName: 'x' } } } }),
    `spec.securityContext.windowsOptions: ${WINDOWS}`,
  ],
};

for (const [name, [of, said, settings]] of Object.entries(REFUSED)) {
  test(`refused: ${name}`, (t) => {
    const { denial = '' } = ask(of, settings);
    t.regex(denial, /^(422 Invalid|403 Forbidden): .+; .+/);
    t.true(denial.includes(said), denial);
  });
}

const tolerations = (...of: object[]) => ({ s: { tolerations: of } });
const TAINT = { key: 'nvidia.com/gpu', operator: 'Exists', effect: 'NoSchedule' };
const TOLERATED: Record<string, [before: object[], added: object[], settings?: object]> = {
  'the same one': [[TAINT], []],
  'one of its value': [[{ ...TAINT, operator: 'Equal', value: 'present' }], [TAINT]],
  'one of all taints': [[{ operator: 'Exists' }], []],
  'one of all effects': [[{ key: 'nvidia.com/gpu', operator: 'Exists' }], []],
  'one of another effect': [[{ ...TAINT, effect: 'NoExecute', tolerationSeconds: 60 }], [TAINT]],
  "a taint of AKS's own": [[], [{ ...TAINT, key: 'sku' }, TAINT], { toleratedTaints: ['sku', 'nvidia.com/gpu'] }],
};

for (const [name, [before, added, settings]] of Object.entries(TOLERATED)) {
  test(`tolerations of a pod that has ${name}`, (t) => {
    const { pod: after, again } = ask(pod(ONE, tolerations(...before)), settings);
    t.deepEqual((after.spec as JsonObject).tolerations, [...before, ...added] as JsonObject[]);
    t.deepEqual(again, []);
  });
}

const ofDialect = (name: string, more: object = {}) => ({ rules: { ...DEFAULTS.rules, dialects: [name], ...more } });
const SMALL: Record<string, [pod: JsonObject, mib: number, settings?: object]> = {
  'of two GPUs': [pod({ [GPU]: 2, [MEMORY]: '600Mi' }), 300],
  'of HAMi': [pod({ 'nvidia.com/gpumem': 100 }), 100, ofDialect('hami')],
  'of TKE': [pod({ 'tencent.com/vcuda-core': 10, 'tencent.com/vcuda-memory': 1 }), 256, ofDialect('tke')],
  'of Koordinator': [pod({ 'koordinator.sh/gpu-memory': '100Mi' }), 100, ofDialect('koordinator')],
  'of ACK, by its unit': [pod({ 'aliyun.com/gpu-mem': 1 }), 128, ofDialect('ack', { ack: { unit: '128MiB' } })],
  'of KAI': [pod({}, { m: { annotations: { 'gpu-memory': '100' } } }), 100, ofDialect('kai')],
};

for (const [name, [of, mib, settings]] of Object.entries(SMALL)) {
  test(`a share smaller than a context is warned of: ${name}`, (t) => {
    const { warnings, again } = ask(of, settings);
    t.true(warnings.join().includes(`c: ${mib} MiB of a GPU may not hold a CUDA context`), warnings.join());
    t.deepEqual(again, []);
  });
}

test('a name of a dialect that is off beside a share is warned of', (t) => {
  const said = (name: string) => `c: ${name} is not read and stays: the pod waits for a node that has it`;
  for (const name of ['nvidia.com/gpumem', 'volcano.sh/vgpu-memory', 'cnvrg.io/metagpu', 'tencent.com/vcuda-core'])
    t.deepEqual(ask(pod({ ...ONE, [name]: 3 })).warnings, [said(name)]);
  for (const name of ['nvidia.com/gpumem', 'nvidia.com/gpu', 'amd.com/gpu', 'nvidia.com/hostdev'])
    t.deepEqual(ask(pod({ ...ONE, [name]: name === 'amd.com/gpu' || name.endsWith('hostdev') ? 1 : 0 })).warnings, []);
});

test('Linux nodes, allowed tracing and listed schedulers are taken', (t) => {
  for (const of of [
    pod(ONE, { s: affinity('kubernetes.io/os', 'NotIn', ['windows']) }),
    pod(ONE, { s: { os: { name: 'linux' }, securityContext: { windowsOptions: {} } } }),
    pod(ONE, { o: { securityContext: { capabilities: { add: ['NET_ADMIN'] } } } }),
  ])
    t.like(ask(of), { outcome: 'patched', again: [] });
  for (const name of ['SYS_PTRACE', 'CAP_SYS_PTRACE', 'sys_ptrace'])
    t.like(ask(pod(ONE, capable(name)), TRACING), { outcome: 'patched', again: [] });
  for (const schedulerName of ['', 'default-scheduler', 'cotenant-scheduler', 'dask-user-scheduler']) {
    const after = ask(pod(ONE, { s: { schedulerName } }), { replacedSchedulers: ['dask-user-scheduler'] });
    t.like(after.pod.spec, { schedulerName: 'cotenant-scheduler' });
  }
});
