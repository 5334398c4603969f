// `npm run test:long`: what npm test has in a bounded form, in full. Each part runs whatever became of those before it,
// the longest last; those that failed are named at the end.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { allOf, type Part } from './support/parts.ts';

const CHURN = [
  'test/integration/scale/churn.test.ts',
  'test/integration/scale/webhook-churn.test.ts',
  'test/integration/agent/kubelet/churn.test.ts',
];

const PARTS: readonly Part[] = [
  {
    name: 'layers',
    words: ['native', 'sanitizers', 'clients', 'guest', 'cluster'],
    environment: {
      COTENANT_FUZZ_SECONDS: '300',
      COTENANT_STORM_SHARE: '10',
      COTENANT_RANDOM_STEPS: '10',
      COTENANT_BURST_PODS: '1000',
      COTENANT_CLIENTS: 'long',
    },
  },
  {
    name: 'crun',
    words: ['guest', 'test/guest/kubelet.test.ts'],
    environment: { COTENANT_RUNTIME: 'crun' },
  },
  {
    name: 'systemd',
    words: ['guest', 'test/guest/kubelet.test.ts'],
    environment: { COTENANT_CGROUP_DRIVER: 'systemd' },
  },
  {
    name: 'reviews',
    words: ['unit', 'test/unit/webhook/properties.test.ts'],
    environment: { COTENANT_REVIEWS: '1000000' },
  },
  {
    name: 'victims',
    words: ['unit', 'test/unit/placement/preempt.test.ts'],
    environment: { COTENANT_NODES: '100000' },
  },
  {
    name: 'differences',
    words: ['native', 'test/native/interposer/differential.test.ts'],
    environment: { COTENANT_SEQUENCES: '100000' },
  },
  {
    name: 'mutations',
    program: 'mutations/run.ts',
    words: [],
    environment: {},
  },
  {
    name: 'progress',
    words: ['native', 'test/native/compute/progress.test.ts'],
    environment: { COTENANT_SCENARIOS: '10000' },
  },
  {
    name: 'streams',
    words: ['native', 'test/native/compute/random-streams.test.ts'],
    environment: { COTENANT_PROGRAMS: '10000' },
  },
  {
    name: 'attack',
    words: ['integration', 'test/integration/agent/enforcement/hostile-tenants.test.ts'],
    environment: { COTENANT_ATTACK_SECONDS: '1800' },
  },
  {
    name: 'churn',
    words: ['integration', ...CHURN],
    environment: { COTENANT_CHURN_HOURS: '24' },
  },
  {
    name: 'soak',
    words: ['integration', 'test/integration/agent/lifecycle/soak.test.ts'],
    environment: { COTENANT_SOAK_SECONDS: '86400' },
  },
];

const failed = await allOf(PARTS, async ({ name, program = 'run.ts', words, environment }) => {
  console.log(`# long: ${name}`);
  const child = spawn(process.execPath, [join(import.meta.dirname, program), ...words], {
    env: { ...process.env, ...environment },
    stdio: 'inherit',
  });
  const [code] = (await once(child, 'exit')) as [number | null];
  return code === 0;
});
console.log(failed.length === 0 ? 'all long tests passed' : `failed: ${failed.join(', ')}`);
process.exit(failed.length === 0 ? 0 : 1);
