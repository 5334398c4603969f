// When the agent calibrates a GPU, and how long it waits after a calibration that failed.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { openProfiles } from '../../../../src/agent/isolation/calibration.ts';

const GPU = 'GPU-51a0c07e-4a27-4551-8d21-6e1000000000';
const MEASURED = { uuid: GPU, contextBytes: 1 << 20, granuleBytes: 1 << 21, releasesLate: false };

function openWith(t: ExecutionContext) {
  const stateFolder = mkdtempSync(join(tmpdir(), 'cotenant-profiles-'));
  t.teardown(() => rmSync(stateFolder, { recursive: true }));
  const state = { nowMs: 0, runs: 0, works: false };
  const problems: string[] = [];
  const profiles = openProfiles({
    stateFolder,
    libraries: { cuda: 'libcuda.so.1', nvml: 'libnvidia-ml.so.1' },
    tools: {
      isDriverReleased: () => false,
      run: () => {
        state.runs += 1;
        return Promise.resolve(
          state.works
            ? { stdout: JSON.stringify(MEASURED), stderr: '' }
            : { stdout: '', stderr: 'no context can be made (2)', problem: 'it ended with 1' },
        );
      },
    },
    log: { warn: (text) => void problems.push(text) },
    clock: () => state.nowMs,
    random: () => 0,
  });
  return { state, problems, profiles };
}

test('after failed calibrations the agent waits longer each time, 5 minutes at most', async (t) => {
  const { state, problems, profiles } = openWith(t);
  const startedAtS: number[] = [];
  for (let second = 0; second < 1200; second++) {
    const before = state.runs;
    state.nowMs = second * 1000;
    t.false(await profiles.measure([GPU], '470.256.02'));
    if (state.runs > before) startedAtS.push(second);
  }
  t.deepEqual(startedAtS, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111]);
  t.is(problems.length, startedAtS.length);
  t.true(problems[0]?.startsWith(`${GPU} could not be calibrated`), problems[0]);
});

test('a GPU whose calibration failed is calibrated at once with another driver', async (t) => {
  const { state, profiles } = openWith(t);
  await profiles.measure([GPU], '470.256.02');
  await profiles.measure([GPU], '470.256.02');
  t.is(state.runs, 1);
  state.works = true;
  t.true(await profiles.measure([GPU], '550.54.15'));
  t.is(profiles.of(GPU).contextBytes, MEASURED.contextBytes);
});
