// What may be granted on GPUs of different modes. The programs that try a GPU are the integration tests' part: here
// none has run yet.
import test from 'ava';
import * as v from 'valibot';
import { createGpuChecks } from '../../../../src/agent/isolation/gpu-checks.ts';
import { ISOLATION_ENTRIES } from '../../../../src/agent/isolation/settings.ts';

const gpu = (digit: number) => `GPU-${String(digit).repeat(8)}-0000-0000-0000-000000000000`;

test('a pod that was bound to a GPU before it was left to others is refused', (t) => {
  const [shared, exclusive, none] = [gpu(0), gpu(1), gpu(2)];
  const settings = v.parse(v.object(ISOLATION_ENTRIES), { gpuModes: { [exclusive]: 'exclusive', [none]: 'none' } });
  const unused = {} as never;
  const checks = createGpuChecks({
    configuration: { ...settings, stateFolder: '', nvmlLibrary: '' },
    native: unused,
    tools: unused,
    profiles: { of: () => ({ contextBytes: 0 }) } as never,
    limitRecords: unused,
    grants: () => [],
    onCalibrated: () => {},
    driver: unused,
    faultOf: () => undefined,
    log: { info: t.log, warn: t.log },
    clock: () => 0,
  });
  const waits = checks.notYet([shared], false);
  t.true(waits?.later, 'a check that is to come is waited for');
  t.deepEqual(checks.notYet([exclusive], false), waits);
  t.deepEqual(checks.notYet([shared, none], false), {
    refused: `${none} is left to other software by the settings of the agent`,
  });
});
