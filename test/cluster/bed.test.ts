// The test cluster itself: it comes up, runs a pod as any Kubernetes does, and leaves the machine as it was.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { testUnless } from '../support/gate.ts';
import { eventually } from '../support/node.ts';
import { processesNaming } from '../support/processes.ts';
import { type Bed, BUSYBOX_IMAGE, bedGround, startBed } from './bed/bed.ts';
import { bedCgroup } from './bed/cgroups.ts';
import { BOUND } from './bed/node.ts';

const ground = bedGround(console.log, false);
if (ground.ok) console.log(`the cluster of these tests: ${ground.versions}`);

const SETTINGS = ['vm/overcommit_memory', 'kernel/panic', 'kernel/panic_on_oops', 'net/ipv4/ip_forward'];
const settings = () => SETTINGS.map((name) => readFileSync(`/proc/sys/${name}`, 'utf8'));
const mounts = () => readFileSync('/proc/self/mounts', 'utf8');
const folders = () => BOUND.filter((path) => existsSync(path));
const interfaces = () => readFileSync('/proc/net/dev', 'utf8').match(/^ *[^ :]+(?=:)/gm);

type Pod = {
  status?: { phase?: string; podIP?: string; containerStatuses?: { state?: { terminated?: { exitCode?: number } } }[] };
};

const podOf = (name: string, script: string): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name },
  spec: {
    restartPolicy: 'Never',
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: 'main',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command: ['/bin/sh', '-c', script],
        resources: { limits: { memory: '64Mi' } },
      },
    ],
  },
});

const phase = (bed: Bed, name: string, wanted: string) =>
  eventually(
    () => {
      const pod = bed.get<Pod>('pod', name);
      return pod?.status?.phase === wanted ? pod : undefined;
    },
    `pod ${name} is ${wanted}`,
    60_000,
  );

testUnless(ground.ok ? undefined : ground.reason)(
  'a Kubernetes comes up, runs pods, and leaves the machine as it was',
  async (t) => {
    t.timeout(300_000);
    if (!ground.ok) throw new Error(ground.reason);
    const before = { settings: settings(), mounts: mounts(), interfaces: interfaces(), folders: folders() };
    const started = performance.now();
    const bed = await startBed(ground, (line) => t.log(line));
    t.teardown(() => bed.close());
    t.log(`up after ${Math.round((performance.now() - started) / 1000)} s`);

    const memory = 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max';
    bed.apply(podOf('one', `echo "limit $(${memory})"; exit 3`), podOf('two', 'echo here; exec sleep 600'));
    const ended = await phase(bed, 'one', 'Failed');
    t.is(ended.status?.containerStatuses?.[0]?.state?.terminated?.exitCode, 3);
    t.is(bed.kubectl('logs', 'one').out, `limit ${64 * 2 ** 20}\n`);
    const running = await phase(bed, 'two', 'Running');
    t.regex(running.status?.podIP ?? '', /^10\.231\.7\.\d+$/);
    t.is(bed.kubectl('exec', 'two', '--', 'cat', '/etc/hostname').out, 'two\n');
    t.true(processesNaming(bed.folder).length > 5);

    // With a pod still running.
    await bed.close();
    t.deepEqual(processesNaming(bed.folder), []);
    t.deepEqual(
      readdirSync('/sys/fs/cgroup/memory').filter((name) => name === bedCgroup(process.pid)),
      [],
    );
    t.false(existsSync(bed.folder));
    t.deepEqual({ settings: settings(), mounts: mounts(), interfaces: interfaces(), folders: folders() }, before);
  },
);
