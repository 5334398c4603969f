// CDI devices of slices, made of a specification as NVIDIA's toolkit writes it; fields as in CDI's SPEC.md
// (github.com/cncf-tags/container-device-interface).
import { readFileSync } from 'node:fs';
import test from 'ava';
import { parse } from 'yaml';
import { driverLibraries, GRANT_FOLDER, sliceSpec } from '../../../../src/agent/containers/device-edits.ts';
import { type CdiSpec, readSpec } from '../../../../src/agent/kubelet/cdi/spec.ts';
import { engineFlags } from '../../../../src/cli/lib/engine-flags.ts';

const read = readSpec(parse(readFileSync('test/fixtures/cdi/nvidia.yaml', 'utf8'), { version: '1.1' }));
if (!read.ok) throw new Error(read.error);
const NVIDIA = read.value;
const UUIDS = NVIDIA.devices.map(({ name }) => name).filter((name) => name.startsWith('GPU-'));
const [FIRST = '', SECOND = ''] = UUIDS;
const FOLDER = '/var/lib/cotenant/grants/abcdef012345';
const CUDA = '/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08';

const made = (gpuUuids: readonly string[]): CdiSpec => {
  const spec = sliceSpec(NVIDIA, [{ name: 'small', gpuUuids, folder: FOLDER }]);
  if (!spec) throw new Error('no specification');
  return spec;
};
const all = (spec: CdiSpec) => [spec.containerEdits, ...spec.devices.map(({ containerEdits }) => containerEdits)];
const mountsOf = (spec: CdiSpec) => all(spec).flatMap(({ mounts = [] }) => mounts);

test('the libraries of CUDA and NVML are found, 64-bit ones only', (t) => {
  t.deepEqual(
    driverLibraries(NVIDIA).map(({ containerPath, object }) => [containerPath, object]),
    [
      [CUDA, 'libcotenant.so'],
      ['/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08', 'libcotenant-nvml.so'],
    ],
  );
});

test('a slice is a valid device with the interposer over the driver', (t) => {
  const spec = made([FIRST]);
  t.true(readSpec(structuredClone(spec)).ok);
  t.is(spec.kind, 'cotenant.io/slice');
  t.is(spec.cdiVersion, NVIDIA.cdiVersion);
  t.deepEqual(
    spec.devices.map(({ name }) => name),
    ['small'],
  );
  const at = new Map(mountsOf(spec).map((mount) => [mount.containerPath, mount]));
  t.is(at.size, mountsOf(spec).length, 'no two mounts at one place');
  t.is(at.get(CUDA)?.hostPath, `${FOLDER}/libcuda.so.575.57.08`);
  t.is(at.get('/usr/lib/cotenant/driver/libcuda.so.575.57.08')?.hostPath, CUDA);
  t.is(at.get(GRANT_FOLDER)?.hostPath, FOLDER);
  const optionsAt = (path: string) => (at.get(path)?.options ?? []) as readonly string[];
  t.true(optionsAt(GRANT_FOLDER).includes('ro'));
  t.true(optionsAt(`${GRANT_FOLDER}/ledger`).includes('rw'));
  t.deepEqual(
    mountsOf(spec).filter(({ containerPath }) => /i386.*libcuda/.test(containerPath)),
    [],
    'a 32-bit program would get the whole GPU',
  );
});

test('a slice has the device nodes of its own GPUs, and its runtime adds no others', (t) => {
  const nodesOf = (uuid: string) =>
    NVIDIA.devices.find(({ name }) => name === uuid)?.containerEdits.deviceNodes?.map(({ path }) => path) ?? [];
  const given = all(made([FIRST])).flatMap(({ deviceNodes = [] }) => deviceNodes.map(({ path }) => path));
  for (const path of nodesOf(FIRST)) t.true(given.includes(path), path);
  for (const path of nodesOf(SECOND).filter((one) => !nodesOf(FIRST).includes(one)))
    t.false(given.includes(path), path);
  t.true((made([FIRST]).containerEdits.env as string[]).includes('NVIDIA_VISIBLE_DEVICES=void'));
  const both = all(made([FIRST, SECOND])).flatMap(({ deviceNodes = [] }) => deviceNodes.map(({ path }) => path));
  for (const path of [...nodesOf(FIRST), ...nodesOf(SECOND)]) t.true(both.includes(path), path);
  t.is(sliceSpec(NVIDIA, [{ name: 'gone', gpuUuids: ['GPU-0'], folder: FOLDER }]), undefined);
});

test('hooks that lead around the limits are left out', (t) => {
  const args = all(made([FIRST])).flatMap(({ hooks = [] }) => hooks.flatMap((hook) => hook.args ?? []));
  t.true(args.includes('update-ldcache'));
  t.false(args.includes('enable-cuda-compat'), "it puts the image's own driver before the interposer");
});

test('engines without CDI get the same as flags, with links to the driver', (t) => {
  const flags = engineFlags('docker', made([FIRST]));
  const pairs = flags.flatMap((flag, index) => (index % 2 === 0 ? [`${flag} ${flags[index + 1]}`] : []));
  t.true(pairs.includes('--device /dev/nvidia0:/dev/nvidia0'), pairs.join('\n'));
  t.true(pairs.includes(`--mount type=bind,source=${FOLDER}/libcuda.so.575.57.08,target=${CUDA},readonly`));
  t.true(
    pairs.includes(
      `--mount type=bind,source=${FOLDER}/libcuda.so.575.57.08,target=/usr/lib/x86_64-linux-gnu/libcuda.so.1,readonly`,
    ),
  );
  t.true(pairs.includes(`--mount type=bind,source=${FOLDER}/ledger,target=${GRANT_FOLDER}/ledger`));
  t.true(pairs.includes('--env NVIDIA_VISIBLE_DEVICES=void'));
  const ofCtr = engineFlags('ctr', made([FIRST])).join(' ');
  t.true(ofCtr.includes(`--mount type=bind,src=${FOLDER},dst=${GRANT_FOLDER},options=rbind:ro`), ofCtr);
  const odd = sliceSpec(NVIDIA, [{ name: 'odd', gpuUuids: [FIRST], folder: '/a,b' }]);
  t.throws(() => engineFlags('podman', odd ?? NVIDIA), { message: /podman takes no mount with a comma/ });
});
