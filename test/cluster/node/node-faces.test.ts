// The agent's interfaces to a real kubelet, containerd and API server: device slots, published memory and compute, GPUs
// inside of containers, and all of it again after a restart of the other side.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { ExecutionContext } from 'ava';
import { GPU, GPU_CORES, GPU_MEMORY, GPUS_ANNOTATION } from '../../../src/api/names.ts';
import { formatNodeGpus, type NodeGpus } from '../../../src/api/node-annotation.ts';
import { testUnless } from '../../support/gate.ts';
import { firstSample } from '../../support/product/sample.ts';
import { type Bed, bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { addProgramImage, addSimulatedGpus } from '../bed/product.ts';
import type { FaceReport, Order } from '../support/node-faces.ts';

const tools = bedTools(console.log, false);
const FACES = join(import.meta.dirname, '../support/node-faces.ts');
const KUBELET_ROOT = '/var/lib/kubelet';
const READER = 'local.test/sampler:1';
const MIB = 2 ** 20;

type Node = {
  metadata: { annotations: Record<string, string> };
  status: { capacity: Record<string, string>; allocatable: Record<string, string> };
};
type Pod = {
  metadata: { uid: string };
  status: {
    phase?: string;
    containerStatuses?: {
      name: string;
      containerID?: string;
      state?: { waiting?: { reason?: string; message?: string } };
    }[];
  };
};

/** Runs device plugin, NRI plugin and resource publishing (support/node-faces.ts) as a process inside the node. */
function startFaces(t: ExecutionContext, bed: Bed) {
  const enter = ['-t', String(bed.namespaces.pid), '-m', '-n', process.execPath, FACES];
  const args = [...enter, join(bed.folder, 'kubeconfig'), NODE_NAME];
  const child: ChildProcess = spawn('nsenter', args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const reports: FaceReport[] = [];
  createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
    reports.push(JSON.parse(line) as FaceReport);
  });
  const exited = once(child, 'exit');
  const close = async () => {
    child.stdin?.end();
    const [code] = await exited;
    return code as number;
  };
  t.teardown(async () => {
    if (child.exitCode === null) child.kill('SIGKILL');
    await exited;
  });
  return {
    reports,
    /** The first line of a kind from `from` on. */
    hears: <K extends FaceReport['kind']>(kind: K, from = 0, good = (_: Extract<FaceReport, { kind: K }>) => true) =>
      eventually(
        () =>
          reports
            .slice(from)
            .find((line): line is Extract<FaceReport, { kind: K }> => line.kind === kind && good(line as never)),
        `${kind} is reported`,
      ),
    async order(order: Order) {
      const from = reports.length;
      child.stdin?.write(`${JSON.stringify(order)}\n`);
      return this.hears('done', from);
    },
    signal: (signal: NodeJS.Signals) => child.kill(signal),
    close,
  };
}

/**
 * Not bound yet, so that its grant can exist before its containers. With `gpus` it uses the runtime class that mounts
 * the GPUs of its environment.
 */
const podOf = (
  name: string,
  containers: Readonly<Record<string, string>>,
  gpus?: string,
  limits: Readonly<Record<string, string>> = { [GPU]: '1' },
): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name },
  spec: {
    schedulerName: 'none',
    ...(gpus === undefined ? {} : { runtimeClassName: 'nvidia' }),
    restartPolicy: 'Never',
    terminationGracePeriodSeconds: 1,
    containers: Object.entries(containers).map(([container, script]) => ({
      name: container,
      image: READER,
      imagePullPolicy: 'Never',
      command: ['/bin/sh', '-c', script],
      env: gpus === undefined ? [] : [{ name: 'NVIDIA_VISIBLE_DEVICES', value: gpus }],
      resources: { limits },
    })),
  },
});
/** What the driver shows inside: the sampler's line in the container's log. */
const SHOW = 'cotenant-sampler --library libnvidia-ml.so.1 < /dev/null; exec sleep 600';

testUnless(tools.ok ? undefined : tools.reason)(
  'kubelet, runtime and API server work with the agent, also after their restarts',
  async (t) => {
    t.timeout(600_000);
    if (!tools.ok) throw new Error(tools.reason);
    const bed = await startBed(tools, (line) => t.log(line));
    t.teardown(() => bed.close());
    addProgramImage(bed, READER, 'cotenant-sampler');
    const [l4 = '', a10 = '', t4 = ''] = await addSimulatedGpus(bed, 'l4', 'a10', 't4');
    const node = () => bed.get<Node>('node', NODE_NAME);
    const nodeShows = (what: string, good: (node: Node) => boolean) =>
      eventually(() => [node()].find((one) => one !== undefined && good(one)), what);
    const slotsAre = (capacity: string, allocatable: string) =>
      nodeShows(
        `${allocatable} of ${capacity} slots`,
        ({ status }) => status.capacity[GPU] === capacity && status.allocatable[GPU] === allocatable,
      );
    const bound = (...pod: Parameters<typeof podOf>) => {
      const [name] = pod;
      bed.apply(podOf(...pod));
      const uid = bed.get<Pod>('pod', name)?.metadata.uid ?? '';
      const bind = () => {
        const binding = {
          apiVersion: 'v1',
          kind: 'Binding',
          metadata: { name },
          target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
        };
        const path = `/api/v1/namespaces/default/pods/${name}/binding`;
        t.is(bed.kubectlWith(JSON.stringify(binding), 'create', '--raw', path, '-f', '-').code, 0);
      };
      return { uid, bind };
    };
    const isIn = (name: string, phase: string) =>
      eventually(
        () => [bed.get<Pod>('pod', name)].find((pod) => pod?.status.phase === phase),
        `pod ${name} is ${phase}`,
      );
    const shown = (name: string, container: string) =>
      eventually(() => {
        const { out } = bed.kubectl('logs', name, '-c', container);
        if (!out.includes('\n')) return undefined;
        const { gpus, problem } = firstSample(out);
        return { uuids: gpus.map(({ uuid }) => uuid), problem };
      }, `${name}/${container} says what it sees`);

    // Slots and their health.
    const faces = startFaces(t, bed);
    await faces.hears('connected');
    await faces.order({ slots: { healthy: 150, unhealthy: 0 } });
    await slotsAre('150', '150');
    await faces.order({ slots: { healthy: 100, unhealthy: 50 } });
    await slotsAre('150', '100');

    // Amounts and GPUs, in one write.
    const gpuOf = (gpuUuid: string, index: number, mib: number, healthy = true) => ({
      gpuUuid,
      index,
      model: 'NVIDIA L4',
      usableBytes: mib * MIB,
      healthy,
    });
    const gpus: NodeGpus = {
      mostTenantsPerGpu: 50,
      gpus: [gpuOf(l4, 0, 22_600), gpuOf(a10, 1, 22_601), gpuOf(t4, 2, 14_940, false)],
    };
    // They include GPUs that are not healthy: the kubelet admitted running pods by them.
    const memory = String((22_600 + 22_601 + 14_940) * MIB);
    const amountsAreRight = ({ metadata, status }: Node) =>
      metadata.annotations[GPUS_ANNOTATION] === formatNodeGpus(gpus) &&
      [status.capacity, status.allocatable].every(
        (amounts) => amounts[GPU_MEMORY] === memory && amounts[GPU_CORES] === '300',
      );
    await faces.order({ gpus });
    await nodeShows('the GPUs and their amounts', amountsAreRight);
    // A change by another client is corrected.
    t.is(bed.kubectl('annotate', 'node', NODE_NAME, `${GPUS_ANNOTATION}=forged`, '--overwrite').code, 0);
    await nodeShows('the GPUs again', amountsAreRight);

    // GPUs inside of containers, and containers by their IDs before they run.
    const pod = bound('first', {
      one: `echo done > /dev/termination-log; ${SHOW}`,
      neighbor: SHOW,
      both: SHOW,
    });
    await faces.order({ grants: { [`${pod.uid}/one`]: [a10], [`${pod.uid}/both`]: [t4, l4] } });
    pod.bind();
    const running = await isIn('first', 'Running');
    t.deepEqual((await shown('first', 'one')).uuids, [a10]);
    t.deepEqual((await shown('first', 'both')).uuids, [l4, t4], 'in the order of the node');
    const none = await shown('first', 'neighbor');
    t.deepEqual(none.uuids, []);
    t.regex(none.problem ?? '', /libnvidia-ml/);
    for (const { name, containerID = '' } of running.status.containerStatuses ?? []) {
      const id = containerID.replace('containerd://', '');
      const { container, isRunning } = await faces.hears('container', 0, (line) => line.container.containerId === id);
      const { terminationLog = '', ...named } = container;
      t.deepEqual(named, { containerId: id, podUid: pod.uid, namespace: 'default', pod: 'first', container: name });
      t.false(isRunning, 'reported before any process ran in it');
      t.true((await faces.order({ isRunning: id })).isRunning);
      const log = join(KUBELET_ROOT, 'pods', pod.uid, 'containers', name, terminationLog);
      t.is(bed.namespaces.run(['cat', log]).out, name === 'one' ? 'done\n' : '', log);
      t.is(faces.reports.filter((line) => line.kind === 'container' && line.container.containerId === id).length, 1);
    }

    // By the environment alone, and with a grant, which then takes precedence.
    const environment = bound('environment', { one: SHOW }, `${t4},${a10}`);
    const all = bound('all', { whole: SHOW, granted: SHOW }, 'all');
    const nothing = bound('nothing', { none: SHOW }, 'void');
    const unknown = bound('unknown', { main: SHOW });
    await faces.order({
      grants: { [`${all.uid}/granted`]: [a10], [`${unknown.uid}/main`]: ['GPU-00000000-0000-4000-8000-000000000000'] },
    });
    for (const { bind } of [environment, all, nothing, unknown]) bind();
    t.deepEqual((await shown('environment', 'one')).uuids, [a10, t4]);
    t.deepEqual((await shown('all', 'whole')).uuids, [l4, a10, t4]);
    t.deepEqual((await shown('all', 'granted')).uuids, [a10]);
    t.regex((await shown('nothing', 'none')).problem ?? '', /libnvidia-ml/);
    // A container does not start without its GPU.
    await eventually(() => {
      const message = bed.get<Pod>('pod', 'unknown')?.status.containerStatuses?.[0]?.state?.waiting?.message ?? '';
      return /nvidia\.com\/gpu=GPU-0{8}-/.test(message) || undefined;
    }, 'the runtime refuses a GPU that is not there');
    t.is(bed.kubectl('delete', 'pod', 'environment', 'all', 'nothing', 'unknown', '--wait=true').code, 0);

    const problems = () => faces.reports.flatMap((line) => (line.kind === 'problem' ? [line.text] : []));
    t.deepEqual(problems(), []);

    // A kubelet that starts without its checkpoint forgets plugins, and may reset resources of other components to
    // zero.
    t.is(bed.namespaces.run(['rm', '/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint']).code, 0);
    await bed.restart('kubelet');
    await faces.order({ slots: { healthy: 120, unhealthy: 30 } });
    await slotsAre('150', '120');
    await nodeShows('the amounts again', amountsAreRight);
    const zero = JSON.stringify({ status: { capacity: { [GPU_MEMORY]: '0', [GPU_CORES]: '0' } } });
    const patch = ['patch', 'node', NODE_NAME, '--subresource=status', '--type=merge', '-p', zero];
    t.regex(bed.kubectl(...patch).out, /patched/);
    await nodeShows('the amounts that another client set to zero', amountsAreRight);

    // A restarted runtime forgets plugins, too.
    const before = faces.reports.length;
    await bed.restart('containerd');
    await faces.hears('connected', before, ({ connected }) => !connected);
    t.regex((await faces.hears('problem', before)).text, /get no GPUs$/);
    await faces.hears('connected', before, ({ connected }) => connected);
    const second = bound('second', { main: SHOW });
    await faces.order({ grants: { [`${second.uid}/main`]: [l4] } });
    second.bind();
    await isIn('second', 'Running');
    t.deepEqual((await shown('second', 'main')).uuids, [l4]);
    // Removals of pods that were deleted earlier may be reported only now.
    const living = new Set(running.status.containerStatuses?.map(({ containerID = '' }) => containerID.split('//')[1]));
    t.is(living.size, 3);
    t.deepEqual(
      faces.reports.slice(before).filter((line) => line.kind === 'removed' && living.has(line.containerId)),
      [],
      'containers outlive their runtime',
    );

    // The runtime's own record keeps the GPUs that we gave a container, whatever was restarted.
    const passedBy = (pod: string) =>
      faces.reports.slice(before).flatMap((line) => {
        const ofPod = line.kind === 'passed by' && line.container.pod === pod;
        return ofPod ? [line.container.container] : [];
      });
    t.deepEqual(passedBy('first'), ['neighbor']);
    // A container created while the plugin does not answer has no GPU and is reported. It requests no slot, which would
    // have to wait.
    const late = bound('late', { main: SHOW }, undefined, {});
    await faces.order({ grants: { [`${late.uid}/main`]: [l4] } });
    faces.signal('SIGSTOP');
    late.bind();
    await isIn('late', 'Running');
    const without = await shown('late', 'main');
    t.deepEqual(without.uuids, []);
    t.regex(without.problem ?? '', /libnvidia-ml/);
    t.deepEqual(passedBy('late'), []);
    faces.signal('SIGCONT');
    await eventually(() => passedBy('late').length > 0 || undefined, 'it is reported');
    t.deepEqual(passedBy('late'), ['main']);

    // A removed container is reported, too.
    t.is(bed.kubectl('delete', 'pod', 'second', '--wait=true').code, 0);
    const { container } = await faces.hears('container', before, (line) => line.container.pod === 'second');
    await faces.hears('removed', before, ({ containerId }) => containerId === container.containerId);

    // Without the plugin the node offers no slots, and none of our sockets stays open.
    t.is(await faces.close(), 0);
    await slotsAre('150', '0');
    for (const text of problems()) t.regex(text, /^(the kubelet does not get the slots|\/var\/run\/nri)/);
  },
);
