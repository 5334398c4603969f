// NVIDIA's CDI specification in parts: which file is whose, that nothing is lost, and what a container is given.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import fc from 'fast-check';
import { parse } from 'yaml';
import { capabilitiesOfFile } from '../../../../src/agent/kubelet/cdi/driver-files.ts';
import { type CdiSpec, type Edits, type Found, readSpec, sourceOf } from '../../../../src/agent/kubelet/cdi/spec.ts';
import { allowedBy, devicesFor, OWN_KIND, splitSpec } from '../../../../src/agent/kubelet/cdi/split-spec.ts';
import { err } from '../../../../src/common/result.ts';
import { DRIVER_CAPABILITIES, type DriverCapability } from '../../../../src/request/rules/namespace-rules.ts';

const FIXTURE = join(import.meta.dirname, '../../../fixtures/cdi/nvidia.yaml');
const [ONE, TWO] = ['GPU-51a0c07e-4a27-4551-8d21-6e1004000000', 'GPU-51a0c07e-4a27-4551-8d21-6e1004000001'] as const;
const KIND = 'nvidia.com/gpu';

function specOf(value: unknown): CdiSpec {
  const spec = readSpec(value);
  if (!spec.ok) throw new Error(spec.error);
  return spec.value;
}
const found = (spec: CdiSpec, path = '/etc/cdi/nvidia.yaml', folder = 0): Found => ({ path, folder, spec });
const nvidia = () => specOf(parse(readFileSync(FIXTURE, 'utf8'), { version: '1.1' }));
const dividedOf = (spec: CdiSpec) => {
  const source = sourceOf([found(spec)], KIND);
  if (!source) throw new Error('no source');
  return splitSpec(source);
};
/** Paths in the container, links of hooks by what they make. */
const pathsOf = ({ mounts, deviceNodes, hooks }: Edits = {}) => [
  ...(mounts ?? []).map(({ containerPath }) => containerPath),
  ...(deviceNodes ?? []).map(({ path }) => path),
  ...(hooks ?? []).map(({ args }) => (args ?? []).slice(1).join(' ')),
];
/** Without the folder and the driver's version, for reading. */
const short = (path: string) => path.replace(/^\/usr\/lib\/x86_64-linux-gnu\//, '').replace(/\.so\.[0-9.]+$/, '');

test("each file of NVIDIA's CDI specification is in the part of its driver capability", (t) => {
  const { spec, gpus, parts } = dividedOf(nvidia());
  t.deepEqual([...gpus], [ONE, TWO]);
  t.deepEqual([spec.kind, spec.cdiVersion], [OWN_KIND, '0.5.0']);
  const shown = Object.fromEntries(
    [
      ['', spec.containerEdits] as const,
      ...spec.devices.map(({ name, containerEdits }) => [name, containerEdits] as const),
    ].map(([name, edits]) => [name, pathsOf(edits).map(short)]),
  );
  const dri = (gpu: number, render: number, bus: string) => [
    `/dev/dri/card${gpu}`,
    `/dev/dri/renderD${render}`,
    `create-symlinks --link ../card${gpu}::/dev/dri/by-path/pci-0000:${bus}-card --link ../renderD${render}::/dev/dri/by-path/pci-0000:${bus}-render`,
    'chmod --mode 755 --path /dev/dri',
  ];
  const everybodys = shown[''] ?? [];
  delete shown[''];
  t.deepEqual(shown, {
    graphics: [
      'libEGL_nvidia',
      'libGLESv1_CM_nvidia',
      'libGLESv2_nvidia',
      'libGLX_nvidia',
      'libnvidia-eglcore',
      'libnvidia-fbc',
      'libnvidia-glsi',
      'libnvidia-glvkspirv',
      'libnvidia-present',
      'libnvidia-rtcore',
      'libnvidia-vksc-core',
      'libnvoptix',
      'libnvidia-egl-gbm',
      'libnvidia-egl-wayland',
      'libnvidia-egl-wayland2',
      '/etc/vulkan/icd.d/nvidia_icd.json',
      '/etc/vulkan/implicit_layer.d/nvidia_layers.json',
      '/usr/share/glvnd/egl_vendor.d/10_nvidia.json',
      '/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json',
      '/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json',
      '/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json',
      '/usr/share/nvidia/nvoptix.bin',
    ],
    'graphics-display': ['libnvidia-glcore', 'libnvidia-tls', '/dev/nvidia-modeset'],
    video: ['libnvcuvid', 'libnvidia-encode', 'libnvidia-opticalflow', 'vdpau/libvdpau_nvidia'],
    display: [
      'libnvidia-gtk3',
      'libnvidia-wayland-client',
      '/usr/lib/xorg/modules/drivers/nvidia_drv.so',
      '/usr/lib/xorg/modules/extensions/libglxserver_nvidia',
      '/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf',
    ],
    ngx: ['libnvidia-ngx', 'nvidia/wine/_nvngx.dll', 'nvidia/wine/nvngx.dll'],
    compat32: ['/usr/lib/i386-linux-gnu/libcuda', '/usr/lib/i386-linux-gnu/libnvidia-ml'],
    'graphics.compat32': ['/usr/lib/i386-linux-gnu/libGLX_nvidia'],
    'video.compat32': ['/usr/lib/i386-linux-gnu/libnvidia-encode'],
    [ONE]: ['/dev/nvidia0'],
    [`${ONE}.graphics-display`]: dri(1, 128, '65:00.0'),
    [TWO]: ['/dev/nvidia1'],
    [`${TWO}.graphics-display`]: dri(2, 129, 'b3:00.0'),
  });
  t.deepEqual(
    parts.map(({ name }) => name).toSorted(),
    Object.keys(shown)
      .filter((name) => name !== ONE && name !== TWO)
      .toSorted(),
  );
  // What CUDA, OpenCL, NVML and nvidia-smi may need.
  t.deepEqual(everybodys, [
    'libcuda',
    'libcudadebugger',
    'libnvidia-allocator',
    'libnvidia-cfg',
    'libnvidia-gpucomp',
    'libnvidia-ml',
    'libnvidia-nscq',
    'libnvidia-nvvm',
    'libnvidia-opencl',
    'libnvidia-pkcs11-openssl3',
    'libnvidia-ptxjitcompiler',
    'libnvidia-sandboxutils',
    '/etc/OpenCL/vendors/nvidia.icd',
    '/lib/firmware/nvidia/575.57.08/gsp_ga10x.bin',
    '/lib/firmware/nvidia/575.57.08/gsp_tu10x.bin',
    '/usr/bin/nvidia-cuda-mps-control',
    '/usr/bin/nvidia-cuda-mps-server',
    '/usr/bin/nvidia-debugdump',
    '/usr/bin/nvidia-persistenced',
    '/usr/bin/nvidia-smi',
    '/run/nvidia-persistenced/socket',
    '/dev/nvidia-uvm',
    '/dev/nvidia-uvm-tools',
    '/dev/nvidiactl',
    ...pathsOf({ hooks: nvidia().containerEdits.hooks ?? [] }),
  ]);
  t.deepEqual(spec.containerEdits.env, nvidia().containerEdits.env);
});

test('our CDI devices lack the hook that sets driver limits, and nothing else', (t) => {
  const hook = (...args: readonly string[]) => ({ hookName: 'createRuntime', path: '/usr/bin/nvidia-ctk', args });
  const limits = ['--driver-root', '/run/nvidia/driver', '--gpu-id', ONE];
  const spec = specOf({
    cdiVersion: '0.5.0',
    kind: KIND,
    containerEdits: { hooks: [hook('nvidia-ctk', 'hook', 'apply-cuda-memory-limits', ...limits)] },
    devices: [
      {
        name: ONE,
        containerEdits: {
          deviceNodes: [{ path: '/dev/nvidia0' }],
          hooks: [hook('nvidia-cdi-hook', 'apply-cuda-memory-limits', ...limits), hook('nvidia-cdi-hook', 'other')],
        },
      },
      { name: TWO, containerEdits: { hooks: [hook('nvidia-cdi-hook', 'apply-cuda-memory-limits', ...limits)] } },
    ],
  });
  const divided = dividedOf(spec);
  t.deepEqual(divided.spec.containerEdits, {});
  t.deepEqual(divided.spec.devices, [
    {
      name: ONE,
      containerEdits: { deviceNodes: [{ path: '/dev/nvidia0' }], hooks: [hook('nvidia-cdi-hook', 'other')] },
    },
  ]);
  t.deepEqual([...divided.gpus], [ONE], 'a device that would change nothing is none');
  t.true(readFileSync(FIXTURE, 'utf8').includes('apply-cuda-memory-limits'));
  t.false(JSON.stringify(dividedOf(nvidia()).spec).includes('apply-cuda-memory-limits'));
});

test('a file with an unknown name is in all parts; a known name is known in any folder', (t) => {
  const cases: readonly (readonly [string, readonly string[]])[] = [
    ['/usr/lib64/libcuda.so.1', []],
    ['/usr/lib64/libnvidia-tileiras.so.595.10', []],
    ['/usr/lib64/libnvidia-gpucomp.so.575.57.08', []],
    ['/usr/lib64/libnvidia-glcore-next.so.1', []],
    ['/usr/lib64/libcuda_libEGL_nvidia.so.1', []],
    ['/opt/graphics/readme', []],
    ['/usr/lib64/libEGL_nvidia.so.0', ['graphics']],
    ['/driver/lib/libGLX_nvidia.so.999.1', ['graphics']],
    ['/usr/lib64/libnvidia-egl-xlib2.so.1.0.0', ['graphics']],
    ['/usr/lib64/gbm/nvidia-drm_gbm.so', ['graphics']],
    ...[
      'GL.so.1.7.0',
      'EGL.so.1',
      'GLESv1_CM.so.1.2.0',
      'GLESv2.so.2',
      'GLX.so.0',
      'GLdispatch.so.0',
      'OpenGL.so.0',
    ].map((name) => [`/usr/lib64/lib${name}`, ['graphics']] as const),
    ['/usr/lib64/libGLU.so.1', []],
    ['/usr/share/vulkansc/icd.d/nvidia_icd_vksc.json', ['graphics']],
    ['/usr/share/nvidia/nvidia-application-profiles-575.57.08-rc', ['graphics']],
    ['/usr/lib64/libnvidia-tls.so.575.57.08', ['graphics', 'display']],
    ['/usr/lib64/xorg/modules/drivers/nvidia_drv.so', ['display']],
    ['/usr/lib64/nvidia/wine/nvngx_dlssg.dll', ['ngx']],
  ];
  for (const [path, whose] of cases) t.deepEqual([...capabilitiesOfFile(path)], whose, path);
});

test('/usr/lib holds 32-bit libraries only where lib64 has the same ones', (t) => {
  const partsOf = (...paths: readonly string[]) => {
    const mounts = paths.map((path) => ({ hostPath: path, containerPath: path }));
    const gpu = { name: ONE, containerEdits: { deviceNodes: [{ path: '/dev/nvidia0' }] } };
    const { spec } = dividedOf(specOf({ cdiVersion: '0.5.0', kind: KIND, containerEdits: { mounts }, devices: [gpu] }));
    return Object.fromEntries(
      spec.devices
        .filter(({ name }) => name !== ONE)
        .map(({ name, containerEdits }) => [name, pathsOf(containerEdits)]),
    );
  };
  t.deepEqual(partsOf('/usr/lib/libcuda.so.1', '/usr/lib32/libcuda.so.1'), { compat32: ['/usr/lib32/libcuda.so.1'] });
  t.deepEqual(partsOf('/usr/lib64/libcuda.so.1', '/usr/lib/libcuda.so.1', '/usr/lib/vdpau/libvdpau_nvidia.so.1'), {
    compat32: ['/usr/lib/libcuda.so.1'],
    video: ['/usr/lib/vdpau/libvdpau_nvidia.so.1'],
  });
  t.deepEqual(partsOf('/usr/lib64/libcuda.so.1', '/usr/lib/x86_64-linux-gnu/libcuda.so.1'), {});
});

test('a container gets its GPUs, and of the parts those that it may have', (t) => {
  const divided = dividedOf(nvidia());
  const given = (gpus: readonly string[], value?: string) =>
    devicesFor(divided, gpus, allowedBy(value === undefined ? ['A=b'] : [`X=${value}`], 'X'))?.map((name) =>
      name.replace(`${OWN_KIND}=`, ''),
    );
  const cases: readonly (readonly [string | undefined, readonly string[]])[] = [
    [undefined, []],
    ['', []],
    ['compute,utility', []],
    ['nonsense,Graphics', []],
    ['video', ['video']],
    ['compute,graphics', ['graphics', 'graphics-display', `${ONE}.graphics-display`]],
    ['display', ['graphics-display', 'display', `${ONE}.graphics-display`]],
    ['compat32,utility', ['compat32']],
    ['video,compat32', ['video', 'compat32', 'video.compat32']],
    ['ngx', ['ngx']],
  ];
  for (const [value, parts] of cases)
    t.deepEqual(given([ONE], value)?.toSorted(), [ONE, ...parts].toSorted(), value ?? 'no variable');
  t.is(given([ONE], 'all')?.length, 1 + divided.parts.length - 1, 'all but the other GPU’s');
  t.deepEqual(given([TWO, ONE], 'compute'), [TWO, ONE]);
  t.is(given([ONE, 'GPU-other'], 'compute'), undefined);
  t.deepEqual([...allowedBy(['X=graphics', 'Y=video', 'X=ngx'], 'X')], ['ngx'], 'the last one counts');
});

const FILES = [
  'libcuda',
  'libnvidia-ml',
  'libEGL_nvidia',
  'libnvidia-encode',
  'libnvidia-glcore',
  'libglxserver_nvidia',
  'libnvidia-ngx',
  'libnvidia-new',
];
const path = fc
  .tuple(
    fc.constantFrom('/usr/lib64', '/usr/lib', '/usr/lib32', '/lib/i386-linux-gnu', '/opt'),
    fc.constantFrom(...FILES),
  )
  .map(([folder, name]) => `${folder}/${name}.so.1`);
const edits = fc
  .record({
    mounts: fc.uniqueArray(
      path.map((one) => ({ hostPath: `/driver${one}`, containerPath: one })),
      { selector: (m) => m.containerPath },
    ),
    deviceNodes: fc.subarray([{ path: '/dev/nvidiactl' }, { path: '/dev/nvidia-modeset' }, { path: '/dev/dri/card0' }]),
    hooks: fc.subarray([
      { hookName: 'createContainer', path: '/hook', args: ['hook', 'chmod', '--path', '/dev/dri'] },
      { hookName: 'createContainer', path: '/hook', args: ['hook', 'links', 'a::/dev/dri/x', 'b::/usr/lib64/y'] },
      { hookName: 'createContainer', path: '/hook' },
      { hookName: 'createRuntime', path: '/hook', args: ['hook', 'apply-cuda-memory-limits'] },
    ]),
    env: fc.subarray(['A=1']),
  })
  .map((all) => Object.fromEntries(Object.entries(all).filter(([, list]) => list.length > 0)));
const specs = fc.record({ common: edits, one: edits, two: edits }).map(({ common, one, two }) =>
  specOf({
    cdiVersion: '0.5.0',
    kind: KIND,
    ...(Object.keys(common).length > 0 && { containerEdits: common }),
    devices: [
      { name: ONE, containerEdits: one },
      { name: TWO, containerEdits: two },
    ],
  }),
);
const entriesOf = (all: readonly Edits[]) =>
  all.flatMap(({ mounts, deviceNodes, hooks, env }) =>
    [mounts, deviceNodes, hooks, env].flatMap((list) => ((list as unknown[]) ?? []).map((one) => JSON.stringify(one))),
  );

test('for any specification no entry of a GPU is lost or doubled', (t) => {
  fc.assert(
    fc.property(specs, fc.subarray([...DRIVER_CAPABILITIES]), (source, allowed) => {
      const divided = dividedOf(source);
      const { spec, gpus } = divided;
      for (const { name, containerEdits } of spec.devices) t.true(entriesOf([containerEdits]).length > 0, name);
      t.is(new Set(spec.devices.map(({ name }) => name)).size, spec.devices.length);
      const bring = (gpu: string, may: readonly DriverCapability[]) => {
        const names = devicesFor(divided, [gpu], new Set(may))?.map((name) => name.replace(`${OWN_KIND}=`, ''));
        return entriesOf([
          spec.containerEdits,
          ...spec.devices.filter(({ name }) => names?.includes(name)).map(({ containerEdits }) => containerEdits),
        ]);
      };
      for (const gpu of gpus) {
        const own = source.devices.find(({ name }) => name === gpu)?.containerEdits ?? {};
        const whole = entriesOf([source.containerEdits, own])
          .filter((entry) => !entry.includes('apply-cuda-memory-limits'))
          .toSorted();
        t.deepEqual(bring(gpu, DRIVER_CAPABILITIES).toSorted(), whole);
        // More is allowed, more is brought; what CUDA and NVML need always is.
        const some = bring(gpu, allowed);
        for (const entry of bring(gpu, [])) t.true(some.includes(entry), entry);
        for (const entry of whole.filter((one) => /libcuda|libnvidia-ml|nvidiactl|libnvidia-new/.test(one)))
          t.true(some.includes(entry) || /lib32|i386|\/usr\/lib\/lib/.test(entry), entry);
      }
    }),
    { numRuns: 200 },
  );
});

test('an invalid specification is refused with the place of its error', (t) => {
  const device = { name: ONE, containerEdits: {} };
  const good = { cdiVersion: '0.5.0', kind: KIND, devices: [device] };
  const of = (more: object) => {
    const spec = readSpec({ ...good, ...more });
    return spec.ok ? undefined : spec.error;
  };
  t.is(of({}), undefined);
  t.is(of({ containerEdits: null, somethingNew: 1 }), undefined);
  t.is(of({ containerEdits: { mounts: null, somethingNew: [1] } }), undefined);
  const cases: readonly (readonly [object, string])[] = [
    [{ kind: 7 }, 'kind is no text'],
    [{ kind: '' }, 'kind is no text'],
    [{ cdiVersion: undefined }, 'cdiVersion is no text'],
    [{ devices: undefined }, 'devices is no list of some'],
    [{ devices: [] }, 'devices is no list of some'],
    [{ devices: [device, { name: '' }] }, 'devices[1].name is no text'],
    [{ devices: [{ name: ONE }] }, 'devices[0].containerEdits is no map'],
    [{ devices: [null] }, 'devices[0].name is no text'],
    [{ containerEdits: [] }, 'containerEdits is no map'],
    [{ containerEdits: { mounts: 'all' } }, 'containerEdits.mounts is no list'],
    [{ containerEdits: { mounts: [{ hostPath: '/a' }] } }, 'containerEdits.mounts[0].containerPath is no text'],
    [{ containerEdits: { deviceNodes: [{}] } }, 'containerEdits.deviceNodes[0].path is no text'],
    [{ containerEdits: { hooks: [{}, { args: [1] }] } }, 'containerEdits.hooks[1].args is no list of texts'],
  ];
  for (const [more, wrong] of cases) t.is(of(more), wrong);
  for (const none of [null, undefined, [], 'text', 7]) t.deepEqual(readSpec(none), err('it is no map'));
  fc.assert(fc.property(fc.anything(), (value) => void readSpec(value)));
});

test('of several files the effective one counts, and of two equal names neither', (t) => {
  const of = (kind: string, ...names: readonly string[]) =>
    specOf({ cdiVersion: '0.5.0', kind, devices: names.map((name) => ({ name, containerEdits: {} })) });
  const [one, both] = [of(KIND, ONE, '0', 'all'), of(KIND, ONE, TWO)];
  const source = (...all: readonly (readonly [CdiSpec, string, number])[]) => {
    const best = sourceOf(
      all.map(([spec, where, folder]) => found(spec, where, folder)),
      KIND,
    );
    return best && [best.found.path, ...best.gpus];
  };
  t.deepEqual(source([one, 'a', 0]), ['a', ONE]);
  t.deepEqual(source([both, 'old', 0], [both, 'new', 1]), ['new', ONE, TWO]);
  t.deepEqual(
    source([both, 'old', 0], [one, 'new', 1]),
    ['new', ONE],
    'each has one that counts: that of the later folder',
  );
  t.deepEqual(source([both, 'a', 0], [one, 'b', 0]), ['a', TWO]);
  t.is(source([one, 'a', 0], [one, 'b', 0]), undefined);
  t.is(source([of(KIND, '0', 'all'), 'a', 0], [of('example.com/gpu', ONE), 'b', 0]), undefined);
  t.is(source(), undefined);
});
