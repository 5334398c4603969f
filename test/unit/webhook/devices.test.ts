// How a container with a share gets its GPUs and its parts of the driver, and what it must not set itself.
import test from 'ava';
import { objectAt } from '../../../src/common/json.ts';
import { capabilities, configured, granted, mainOf, patched, sharePod, specOf } from './reviews.ts';

test("devices of a share come from its grant; a tenant's own value is replaced", (t) => {
  const env = [
    { name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' },
    { name: 'A', value: '1' },
    { name: 'NVIDIA_VISIBLE_DEVICES', value: '0' },
    { name: 'NVIDIA_DRIVER_CAPABILITIES', value: 'all' },
  ];
  const devices = [
    ['nri', { name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }],
    ['environment', granted('main')],
  ] as const;
  for (const [deviceRoute, visible] of devices) {
    const answer = patched(sharePod({ env }), configured({ deviceRoute }));
    t.deepEqual(mainOf(answer.pod).env, [visible, { name: 'A', value: '1' }, capabilities]);
    t.deepEqual(answer.warnings, [
      'main: NVIDIA_VISIBLE_DEVICES is replaced',
      'main: NVIDIA_DRIVER_CAPABILITIES is replaced; allowed are compute, utility',
    ]);
  }
});

const REQUIRED = 'required-plugins.noderesource.dev';
const requiredOf = (annotations: Record<string, string>, settings: object = {}) => {
  const spec = { containers: [mainOf(sharePod()), { name: 'side' }] };
  const answer = patched(sharePod({}, spec, { annotations }), configured(settings));
  const given = Object.entries(objectAt(objectAt(answer.pod, 'metadata'), 'annotations'));
  return { answer, required: Object.fromEntries(given.filter(([key]) => key.startsWith(REQUIRED))) };
};

test('with deviceRoute nri, the runtime must require our plugin', (t) => {
  const cases: [given: Record<string, string>, wanted: Record<string, string>][] = [
    [{}, { [REQUIRED]: '["cotenant"]' }],
    [{ [REQUIRED]: '["numa"]' }, { [REQUIRED]: '["numa","cotenant"]' }],
    [{ [REQUIRED]: '[ "cotenant", "numa" ]' }, { [REQUIRED]: '[ "cotenant", "numa" ]' }],
    // What is more special wins with the runtime, so it must name us too; other containers are not ours.
    [
      { [`${REQUIRED}/pod`]: '[]', [`${REQUIRED}/container.main`]: '["a"]', [`${REQUIRED}/container.side`]: '[]' },
      {
        [REQUIRED]: '["cotenant"]',
        [`${REQUIRED}/pod`]: '["cotenant"]',
        [`${REQUIRED}/container.main`]: '["a","cotenant"]',
        [`${REQUIRED}/container.side`]: '[]',
      },
    ],
  ];
  for (const [given, wanted] of cases) {
    const { answer, required } = requiredOf(given);
    t.deepEqual(required, wanted);
    t.deepEqual(patched(answer.pod).patch, [], 'a second pass changes nothing');
    t.deepEqual(requiredOf(given, { deviceRoute: 'environment' }).required, given);
  }
  for (const text of ['numa', '{}', '[1]']) {
    t.is(
      requiredOf({ [`${REQUIRED}/pod`]: text }).answer.denial,
      `422 Invalid: metadata.annotations["${REQUIRED}/pod"]: ${JSON.stringify(text)} is not a list of names; write them as JSON, such as ["cotenant"]`,
    );
  }
});

test('driver capabilities within the allowed ones stay', (t) => {
  const chosen = (value: string, settings: object = {}) => {
    const env = [{ name: 'NVIDIA_DRIVER_CAPABILITIES', value }];
    return mainOf(patched(sharePod({ env }), configured(settings)).pod).env?.[0]?.value;
  };
  t.is(chosen('utility'), 'utility');
  t.is(chosen('utility,compute'), 'utility,compute');
  t.is(chosen('compute,graphics'), 'compute');
  t.is(chosen(' utility ,,compute, utility'), 'utility,compute');
  t.is(chosen('graphics'), 'compute,utility');
  t.is(chosen(''), 'compute,utility');
  t.is(chosen('all'), 'compute,utility');
  const drawing = { namespaces: { 'team-a': { driverCapabilities: ['compute', 'utility', 'graphics', 'video'] } } };
  t.is(chosen('compute,graphics', drawing), 'compute,graphics');
  t.is(chosen('all', drawing), 'compute,utility,graphics,video');
  t.is(chosen('compute, all', drawing), 'compute,utility,graphics,video');
  t.is(chosen('graphics, display', drawing), 'graphics');
  t.is(
    chosen('graphics', { namespaces: { other: drawing.namespaces['team-a'] } }),
    'compute,utility',
    'not its namespace',
  );
  t.is(chosen('compute', { rules: { driverCapabilities: ['utility'] } }), 'utility');
});

test('a container whose driver capabilities differ from its request gets a warning', (t) => {
  const drawing = configured({ rules: { driverCapabilities: ['compute', 'utility', 'graphics', 'video'] } });
  const warned = (value: string | undefined, configuration = drawing) => {
    const env = value === undefined ? [] : [{ name: 'NVIDIA_DRIVER_CAPABILITIES', value }];
    const answer = patched(sharePod({ env }), configuration);
    t.deepEqual(patched(answer.pod, configuration).warnings, [], 'a second pass says nothing');
    return answer.warnings.map((text) => text.replace(/^main: NVIDIA_DRIVER_CAPABILITIES /, ''));
  };
  const allowed = 'allowed are compute, utility, graphics, video';
  t.deepEqual(warned(undefined), ['is set to compute,utility; the pod may set more: graphics, video']);
  t.deepEqual(warned('video, compute'), []);
  t.deepEqual(warned('compute,display,graphics,ngx'), [`loses display, ngx; ${allowed}`]);
  t.deepEqual(warned('compute,display,Graphics'), [`loses display, unknown names; ${allowed}`]);
  t.deepEqual(warned('compute,\r\nx'), [`loses unknown names; ${allowed}`]);
  for (const value of ['all', 'display', '', ' , ']) t.deepEqual(warned(value), [`is replaced; ${allowed}`], value);
  t.deepEqual(warned(undefined, configured()), [], 'nothing else is allowed, as anybody expects');
  t.deepEqual(warned(undefined, configured({ rules: { driverCapabilities: ['video'] } })), []);
});

test('variables that would bypass a limit are removed, only where there is a share', (t) => {
  const names = [
    'CUDA_MPS_PIPE_DIRECTORY',
    'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE',
    'CUDA_DISABLE_CONTROL',
    'CGPU_DISABLE',
    'LD_AUDIT',
    'NVIDIA_GPU_MEMORY_LIMIT',
    'NVIDIA_MIG_CONFIG_DEVICES',
    'COTENANT_OFF',
    'LD_PRELOAD',
    'LD_LIBRARY_PATH',
    'CUDA_VISIBLE_DEVICES',
    'NVIDIA_REQUIRE_CUDA',
  ];
  const env = names.map((name) => ({ name, value: '1' }));
  const { pod, warnings } = patched(sharePod({ env }, { initContainers: [{ name: 'init', env }] }));
  const kept = mainOf(pod).env?.map(({ name }) => name);
  t.deepEqual(kept, [
    'LD_PRELOAD',
    'LD_LIBRARY_PATH',
    'CUDA_VISIBLE_DEVICES',
    'NVIDIA_REQUIRE_CUDA',
    'NVIDIA_VISIBLE_DEVICES',
    'NVIDIA_DRIVER_CAPABILITIES',
  ]);
  t.deepEqual(specOf(pod).initContainers?.[0]?.env, [...env, { name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }]);
  t.is(warnings.filter((warning) => warning.includes('is removed')).length, 7, 'CGPU_DISABLE had its effect');
});
