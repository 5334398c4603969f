// GPUs that a DRA driver gives to pods by claims: ResourceSlices in the API server, the scheduler's choice, the
// kubelet's list of allocated devices, and the container's use of them. Each device is named like another GPU, so that
// code that goes by names fails.
import type { ExecutionContext } from 'ava';
import { seriesOf } from '../../support/product/agent.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { CDI_KIND } from '../bed/gpus.ts';
import { NODE_NAME } from '../bed/node.ts';
import { type DraDriver, startDraDriver } from '../support/dra.ts';
import { clientOf, MIB, podOf, untilGone, untilRunning } from '../support/pods.ts';
import { agentPage } from '../support/release.ts';

const DRIVER = 'gpu.nvidia.com';
const TEAM = { namespace: 'team' };
const HELD_MIB = 400;

const resource = (kind: string, name: string, spec: object, metadata: object = {}): object => ({
  apiVersion: 'resource.k8s.io/v1',
  kind,
  metadata: { name, ...metadata },
  spec,
});

/** As NVIDIA's driver publishes a GPU, except for its name, which has another GPU's number. */
const deviceOf = (name: string, uuid: string, more: object = {}): object => ({
  name,
  attributes: {
    type: { string: 'gpu' },
    uuid: { string: uuid },
    productName: { string: 'a GPU' },
    architecture: { string: 'Ada Lovelace' },
    cudaComputeCapability: { version: '8.9.0' },
    driverVersion: { version: '580.95.5' },
    'resource.kubernetes.io/pcieRoot': { string: 'pci0000:00' },
  },
  capacity: { memory: { value: '23034Mi' } },
  ...more,
});

/** Pods of `team` with claims: `whole` has the second GPU alone, `part` and `other` share the first one. */
export async function startClaims(bed: Bed, [first = '', second = '']: readonly string[]): Promise<DraDriver> {
  const named = new Map([
    ['gpu-1', first],
    ['gpu-0', second],
  ]);
  const driver = await startDraDriver(bed, DRIVER, (device) => `${CDI_KIND}=${named.get(device)}`);
  await driver.registered;
  // Several claims may share the first GPU: a claim without an amount gets one GiB.
  const memory = { value: '23034Mi', requestPolicy: { default: '1Gi', validRange: { min: '1Gi' } } };
  const devices = [
    deviceOf('gpu-1', first, { allowMultipleAllocations: true, capacity: { memory } }),
    deviceOf('gpu-0', second),
  ];
  const pool = { name: NODE_NAME, generation: 1, resourceSliceCount: 1 };
  const isOne = { cel: { expression: `device.driver == "${DRIVER}"` } };
  bed.apply(
    resource('DeviceClass', DRIVER, { selectors: [isOne] }),
    resource('ResourceSlice', `${NODE_NAME}-${DRIVER}`, { driver: DRIVER, nodeName: NODE_NAME, pool, devices }),
  );
  return driver;
}

const claimOf = (name: string, uuid: string): object => {
  const selectors = [{ cel: { expression: `device.attributes["${DRIVER}"].uuid == "${uuid}"` } }];
  const exactly = { deviceClassName: DRIVER, selectors };
  return resource('ResourceClaim', name, { devices: { requests: [{ name: 'gpu', exactly }] } }, TEAM);
};

const holderOf = (name: string): object => {
  const commands = ['init', 'context 0', `alloc ${HELD_MIB * MIB}`];
  const container = clientOf({}, commands, { resources: { claims: [{ name: 'gpu' }] } });
  return podOf(name, [container], { ...TEAM, spec: { resourceClaims: [{ name: 'gpu', resourceClaimName: name }] } });
};

export async function claimed(
  t: ExecutionContext,
  bed: Bed,
  [first = '', second = '']: readonly string[],
  driver: DraDriver,
): Promise<void> {
  const asked = [
    ['whole', second, { gpu: '1', gpu_uuid: second, mode: 'exclusive' }],
    ['part', first, { gpu: '0', gpu_uuid: first, mode: 'shared' }],
    ['other', first, { gpu: '0', gpu_uuid: first, mode: 'shared' }],
  ] as const;
  bed.apply(...asked.flatMap(([name, uuid]) => [claimOf(name, uuid), holderOf(name)]));
  for (const [name] of asked) await untilRunning(bed, name, TEAM);
  t.deepEqual([...driver.prepared].toSorted(), ['team/other', 'team/part', 'team/whole']);

  const used = 'cotenant_container_memory_used_bytes';
  const page = await eventually(async () => {
    const text = (await agentPage(bed)) ?? '';
    const isHeld = ([pod]: (typeof asked)[number]) =>
      (seriesOf(text, used, { ...TEAM, pod }) ?? 0) > HELD_MIB * MIB &&
      seriesOf(text, 'cotenant_foreign_memory_used_bytes', { ...TEAM, pod }) === undefined;
    return asked.every(isHeld) ? text : undefined;
  }, 'what pods with claims hold, under their names');
  for (const [pod, , gpu] of asked) {
    const bytes = seriesOf(page, used, { ...TEAM, pod, container: 'main', ...gpu });
    t.true(bytes !== undefined && bytes < (HELD_MIB + 400) * MIB, `${pod}: ${bytes}, its block and a context`);
    t.is(seriesOf(page, 'cotenant_container_memory_limit_bytes', { pod }), undefined, 'no limit applies to it');
  }
  t.is(seriesOf(page, 'cotenant_exporter_unknown_devices'), 0);
  t.is(seriesOf(page, 'cotenant_device_allocation_mode', { gpu: '1', mode: 'exclusive' }), 1);

  t.is(bed.kubectl('-n', TEAM.namespace, 'delete', 'pod', ...asked.map(([name]) => name), '--wait=false').code, 0);
  for (const [name] of asked) await untilGone(bed, name, TEAM);
  await eventually(() => driver.prepared.size === 0 || undefined, 'the kubelet gives the devices back');
  await eventually(async () => {
    const text = await agentPage(bed);
    return (text !== undefined && asked.every(([pod]) => seriesOf(text, used, { pod }) === undefined)) || undefined;
  }, 'deleted pods have no series');
}
